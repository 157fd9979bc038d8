"""Tables and pages from templates: HTML, Markdown and LaTeX by jinja2, CSV by Python's own writer."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from normscale._version import __version__
from normscale.bench.experiments.methods import title_of
from normscale.bench.report.paired import BETTER, BETTER_NOT_ALL, WORSE, WORSE_NOT_ALL
from normscale.bench.report.table import ReportTable
from normscale.bench.report.tables import count, n_summed_up
from normscale.errors import needs

if TYPE_CHECKING:
    from jinja2 import Environment

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "−": r"$-$", "–": "--", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "×": r"$\times$",
}  # fmt: skip
_CLASSES = {BETTER: "better", BETTER_NOT_ALL: "better", WORSE: "worse", WORSE_NOT_ALL: "worse", "holds": "better",
            "differs": "worse", "use this": "better"}  # fmt: skip
"""How verdicts are coloured in a page."""


_NOTHING: dict[str, Any] = {
    "runs": [], "pictures": [], "single": False, "leaderboard": False, "gaps": {}, "notes": [], "networks": {},
}  # fmt: skip
"""Parts that a page need not have."""


def to_csv(table: ReportTable) -> str:
    """Every row with its section, numbers in full; nothing where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    titled = len(table.sections) > 1
    writer.writerow([*([table.section_column] if titled else []), *(column.title for column in table.columns)])
    for section in table.sections:
        writer.writerows([*([section.title] if titled else []), *row] for row in section.rows)
    return text.getvalue()


RENDERERS: dict[str, Callable[[ReportTable], str]] = {
    "md": lambda table: render("table.md.j2", table=table).rstrip("\n") + "\n",
    "tex": lambda table: render("table.tex.j2", table=table),
    "csv": to_csv,
}
"""From the suffix of a file to what makes its text of a table."""


def render(template: str, **values: Any) -> str:
    """Fill a template of ``page/``; in HTML whatever comes from a run is escaped."""
    return _templates().get_template(template).render({**_NOTHING, **values})


@cache
def _templates() -> Environment:
    with needs("a report is made from templates", "report"):
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    folder = resources.files("normscale.bench.report").joinpath("page")
    made = Environment(
        loader=FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8")),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.do"],
    )
    made.filters |= {"latex": latex_text, "markdown": markdown_text, "label": _label, "spans": _html_spans}
    made.tests["auroc"] = lambda heading: heading.startswith("AUROC")
    made.globals |= {"version": __version__, "verdict_class": lambda text: _CLASSES.get(text, ""), "file": _file}
    made.globals |= {"count": count, "n_summed_up": n_summed_up, "title_of": title_of}
    return made


def _file(name: str) -> str:
    """A file of ``page/`` as it is: the style sheet and the scripts."""
    from markupsafe import Markup

    return Markup(resources.files("normscale.bench.report").joinpath("page", name).read_text("utf-8"))


def _label(text: str) -> str:
    return re.sub("[^a-z0-9]+", "-", text.lower())


def latex_text(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    Examples
    --------
    >>> print(latex_text("50 % of my_set ± 1, as `fit` does"))
    50 \% of my\_set $\pm$ 1, as \texttt{fit} does
    """
    return _with_code(
        text,
        lambda part: "".join(_LATEX.get(character, character) for character in part),
        lambda code: rf"\texttt{{{code}}}",
    )


def markdown_text(text: str) -> str:
    """Text that Markdown prints as it stands, on one line; `code` stays code."""
    escaped = re.compile(r"([\\`*_{}\[\]<>|])")
    one_line = text.replace("\n", " ")
    return "".join(
        part if number % 2 and "|" not in part else escaped.sub(r"\\\1", part)
        for number, part in enumerate(re.split("(`[^`]+`)", one_line))
    )


def _html_spans(text: str) -> str:
    from markupsafe import Markup, escape

    return Markup(_with_code(text, lambda part: str(escape(part)), lambda code: f"<code>{code}</code>"))


def _with_code(text: str, plain: Callable[[str], str], code: Callable[[str], str]) -> str:
    """Text whose parts between backticks are shown as code."""
    parts = re.split("`([^`]+)`", text)
    return "".join(code(plain(part)) if number % 2 else plain(part) for number, part in enumerate(parts))
