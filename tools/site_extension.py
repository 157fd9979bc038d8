"""What the documentation site adds to the Markdown files: made pages, notebooks, and links to files that are no pages.

The site has the layout of the repository, so a relative link to a file is the same in both. Linked files are copied
beside the pages; a linked folder is copied whole and gets a listing.
"""

from __future__ import annotations

import html
import inspect
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import normscale as ns
from normscale.detectors.card import DetectorCard, card_of

ROOT = Path(__file__).parent.parent
HEADINGS = {  # the room of a public name -> its heading in the reference
    "detectors": "Detectors",
    "outputs": "Outputs of a network",
    "rows": "Tables",
    "sample": "The embedded sample",
    "scores": "Scores",
    "scaling": "Norm-scaling",
    "moments": "Running moments",
    "metrics": "Metrics",
    "extraction": "A network's outputs",
    "guard": "The guard",
    "bench": "Comparing and reporting",
    "dataframes": "DataFrames",
    "errors": "Errors and warnings",
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("source-read", write_source)
    app.connect("autodoc-process-docstring", plain_formulas, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", own_signature)
    app.connect("doctree-read", link_files, priority=400)  # before Sphinx collects downloads
    app.connect("build-finished", finish)
    return {"parallel_read_safe": False, "parallel_write_safe": True}


def write_source(_app: Sphinx, page: str, source: list[str]) -> None:
    """Fill in what is made at build time."""
    source[0] = re.sub(r"(```python\n.*?)\n\n```", r"\1\n```", source[0], flags=re.DOTALL)  # doctest's blank line
    if page.startswith("docs/notebooks/"):
        source[0] = notebook_as_markdown(json.loads(source[0]))
    elif page == "docs/api":
        source[0] = source[0].replace("<!-- reference -->", "\n".join(reference()))
    elif page == "docs/detectors":
        linked = re.sub(r"^\| `(\w+)` \|", r"| [`\1`](#\1) |", source[0], flags=re.MULTILINE)
        source[0] = linked.replace("<!-- cards -->", "\n".join(cards()))


def reference() -> Iterator[str]:
    """A section for each room, a directive for each public name."""
    names: dict[str, list[str]] = {room: [] for room in HEADINGS}
    for name in ns.__all__:
        if name != "__version__":
            names[ns._HOME_OF[name].split(".")[1]].append(name)
    for room, heading in HEADINGS.items():
        yield f"\n## {heading}\n\n```{{eval-rst}}"
        for name in names[room]:
            kind = "function"
            if isinstance(value := getattr(ns, name), type):
                kind = "exception" if issubclass(value, Exception) else "class"
            yield f".. auto{kind}:: normscale.{name}"
        yield "```"


def plain_formulas(_app: Sphinx, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Keep the lines of an indented formula, and let |f| be a length: docstrings are written to be read as they are."""
    found: list[str] = []
    for place, line in enumerate(lines):
        in_head = not any(one.startswith("---") for one in lines[: place + 2])
        indented = in_head and line.startswith("    ")
        if indented and found and not found[-1] and not any(one.endswith("::") for one in found[-2:]):
            found += ["::", ""]
        if not indented and "|" in line and "`" not in line and not line.lstrip().startswith((">>>", "...")):
            line = line.replace("|", "\\|")
        found.append(line)
    lines[:] = found


def own_signature(
    _app: Sphinx, _what: str, _name: str, value: Any, _options: Any, _arguments: str | None, _returns: str | None
) -> tuple[str, None] | None:
    """Show what a detector's constructor takes; Sphinx would look at ``__new__``, which takes anything."""
    if not (isinstance(value, type) and issubclass(value, ns.Detector)):
        return None
    _, *parameters = inspect.signature(value.__init__).parameters.values()
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(plain)), None


def cards() -> Iterator[str]:
    """The cards of all detectors."""
    for card in map(card_of, ns.list_detectors()):
        yield f"\n({card.name})=\n## {card.title}\n"
        yield from _card(card)


def _card(card: DetectorCard) -> Iterator[str]:
    step = "; a step: `" + card.name + "+energy` lets Energy score" if card.is_step else ""
    yield f"`{card.name}`{', ' + card.paper if card.paper else ''}{step}\n"
    yield _markdown(card.idea) + "\n"
    if card.description:
        yield f"```\n{card.description}\n```\n"
    yield f"* needs: {'; '.join(card.needs)}"
    if card.cost:
        yield f"* cost: {_markdown(card.cost)}"
    yield f"* measured: {', '.join(card.settings)}"
    for parameter in card.parameters:
        yield f"* `{parameter.name}` = `{parameter.default!r}`: {_markdown(parameter.meaning)}"
    if card.reference:
        yield f"* {_markdown(' '.join(card.reference.split()))}"
    if card.python_example:
        yield f"\n```pycon\n{card.python_example}\n```"


def _markdown(text: str) -> str:
    """A sentence of a docstring, nothing in it taken for markup but its code."""
    parts = re.sub(r":\w+:`~?", "`", text).replace("``", "`").split("`")
    plain = [
        html.escape(part, quote=False).replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
        for part in parts[::2]
    ]
    code = [f"`{part}`" for part in parts[1::2]]
    return "".join(one for pair in zip(plain, [*code, ""], strict=False) for one in pair)


def notebook_as_markdown(notebook: dict[str, Any]) -> str:
    """Text cells as they are, code cells with the outputs that are kept in the file."""
    found = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            found.append(text)
            continue
        found.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", [])})
            if "image/png" in data:
                picture = "".join(data["image/png"]).replace("\n", "")
                found.append(f"![what this cell draws](data:image/png;base64,{picture})")
            else:
                found.append(f"```\n{''.join(data['text/plain'])}\n```")
    return "\n\n".join(found) + "\n"


def link_files(app: Sphinx, document: nodes.document) -> None:
    """Let links to files and folders that are no pages lead to their copies."""
    page = app.env.docname
    linked: set[str] = app.env.__dict__.setdefault("normscale_linked_files", set())
    for kind in (addnodes.download_reference, addnodes.pending_xref):
        for node in list(document.findall(kind)):
            target = node["reftarget"]
            if node.get("refdomain") == "doc":
                if target in app.env.found_docs:
                    continue
                target = os.path.relpath(f"{target}.md", PurePosixPath(page).parent)
            if node.get("reftype") != "myst" or target.startswith("#"):
                continue
            path = os.path.normpath(PurePosixPath(page).parent / target)
            if not (ROOT / path).exists():
                continue  # Sphinx says what is missing
            linked.add(path)
            address = f"{target.rstrip('/')}/index.html" if (ROOT / path).is_dir() else target
            node.replace_self(nodes.reference("", "", *(child.deepcopy() for child in node.children), refuri=address))


def finish(app: Sphinx, error: Exception | None) -> None:
    """Copy the linked files, list the linked folders, and lead from the root to the front page."""
    if error is not None or app.builder.format != "html":
        return
    site = Path(app.outdir)
    for path in sorted(app.env.__dict__.get("normscale_linked_files", ())):
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, site / path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            for folder in [site / path, *(one for one in (site / path).rglob("*") if one.is_dir())]:
                _list_folder(folder, folder.relative_to(site))
        else:
            shutil.copyfile(ROOT / path, site / path)
    front = "docs/index.html"
    (site / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><title>normscale</title>'
        f'<meta http-equiv="refresh" content="0; url={front}">'
        f'<p><a href="{front}">normscale</a></p>\n'
    )


def _list_folder(folder: Path, title: Path) -> None:
    names = [f"{one.name}/index.html" if one.is_dir() else one.name for one in sorted(folder.iterdir())]
    items = "".join(
        f'<li><a href="{name}">{name.removesuffix("/index.html")}</a>' for name in names if name != "index.html"
    )
    (folder / "index.html").write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta name="color-scheme" content="light dark"><title>{title}</title>'
        f'<body style="font-family:sans-serif"><h1 style="font-size:1.2em">{title}</h1><ul>{items}</ul>\n'
    )
