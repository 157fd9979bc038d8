"""The documentation site builds without a warning, its links lead somewhere, and what is made for it is there."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import normscale as ns
from normscale.detectors.registry import detector_class
from test_docs import ROOT


class Page(HTMLParser):
    """Ids and links of a page, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif value and name == ("href" if tag in ("a", "link") else "src"):
                self.links.append(value)

    def handle_data(self, data: str) -> None:
        self.text += data


def broken_links(site: Path) -> list[str]:
    """Every link of the site that leads to no file, or to no place in its page."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{path.relative_to(site)}: no such place {link}")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make site` builds it."""
    folder = tmp_path_factory.mktemp("site").resolve()
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--conf-dir", "docs"]
    command += ["--doctree-dir", str(folder / "doctrees"), ".", str(folder / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_every_link_leads_somewhere(site: Path) -> None:
    assert broken_links(site) == []


def test_the_check_of_links_finds_broken_ones(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html"></a><a href="#here"></a><a href="a.html#gone"></a>')
    assert broken_links(tmp_path) == ["a.html: b.html", "a.html: no such place a.html#gone"]


def test_every_public_name_and_detector_has_its_place(site: Path) -> None:
    reference = Page(site / "docs" / "api.html").ids
    assert {f"normscale.{name}" for name in ns.__all__ if name != "__version__"} <= reference
    cards = Page(site / "docs" / "detectors.html").text
    for name in ns.list_detectors():
        if detector_class(name).__module__.startswith("normscale."):  # other tests register some of their own
            assert name in cards


def test_every_page_is_reachable_and_can_be_searched(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    pages = set(json.loads(index[index.index("{") : index.rindex("}") + 1])["docnames"])
    sources = [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/howto").glob("*.md"),
        *(ROOT / "docs/notebooks").glob("*.ipynb"),
    ]
    assert {path.relative_to(ROOT).with_suffix("").as_posix() for path in sources} <= pages
    assert "url=docs/index.html" in (site / "index.html").read_text()
