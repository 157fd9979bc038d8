"""Documentation is executed, and says what the program says."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import normscale
from needed_extras import PAGES as NEEDED_BY_PAGES
from needed_extras import need
from our_detectors import OUR_DETECTORS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("howto/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page: Path) -> None:
    need(*NEEDED_BY_PAGES.get(page.name, ()))
    assert doctest.testfile(str(page), module_relative=False).failed == 0


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def tool(name: str) -> ModuleType:
    """A script of tools/, which may import others of them."""
    if str(ROOT / "tools") not in sys.path:
        sys.path.insert(0, str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_command_reference_is_what_help_prints() -> None:
    reference = tool("write_cli_reference")
    assert reference.TARGET.read_text() == reference.reference(), "run `make docs`"


def test_the_tables_of_the_pages_are_what_was_measured() -> None:
    """Every number between markers in results.md, paper.md and other pages comes from docs/results/."""
    pages = tool("write_pages")
    assert [folder.name for folder in pages.runs()][:1] == ["cifar10-small"]
    shown = {path.name: pages.blocks_in(path.read_text()) for path in pages.PAGES}
    assert {"sets", "averages"} <= {*shown["results.md"]}
    assert {"published", "claims", "differences"} <= {*shown["paper.md"]}
    for path in pages.PAGES:
        page = path.read_text()
        assert pages.with_blocks(page) == page, f"{path.name}: run `make docs`"
    page = (ROOT / "docs" / "results.md").read_text()
    number = re.search(r"\*\*0\.\d{3}\*\*", page)
    assert number is not None
    wrong = page.replace(number[0], "**0.123**", 1)
    assert pages.with_blocks(wrong) == page


def test_the_recorder_makes_or_names_every_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tool("record")
    own = {path.name for path in record.RESULTS.iterdir() if path.suffix != ".png"}
    elsewhere = {name for name in own if name.startswith(("guard-", "imagenet-", "clinc150"))}
    elsewhere |= {"speed.json", "engines-5m.json", "digits"}
    assert own - elsewhere <= set(record.RECORDS)
    folders = ["--runs", str(tmp_path), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", ["record.py", *folders, "cifar10-small", "audit-resnet20.json"])
    said: list[str] = []
    monkeypatch.setattr("builtins.print", lambda text, **_: said.append(text))
    record.main()
    assert [text.split(":")[:2] for text in said] == [
        [name, " skipped"] for name in ("cifar10-small", "audit-resnet20.json")
    ]


STOP = re.compile(r"`((?:\w+\.)*\w+):([\w.]+)`")


def test_the_ways_of_a_row_are_true_to_the_code() -> None:
    """Every stop that ARCHITECTURE.md names is there. How long the ways are is counted by tools/ways.py."""
    need("torch", "uvicorn", "httptools", "msgspec", "prometheus_client", "numba", "matplotlib")
    for module, name in STOP.findall((ROOT / "ARCHITECTURE.md").read_text()):
        found = importlib.import_module(f"normscale.{module}")
        for part in name.split("."):
            found = getattr(found, part)
        assert callable(found), (module, name)


def test_the_changelog_names_the_version() -> None:
    assert f"## {normscale.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_command_and_detector_is_in_the_documentation() -> None:
    text = " ".join(page.read_text() for page in PAGES)
    for name in OUR_DETECTORS:
        assert name in text, f"{name} is not documented"
