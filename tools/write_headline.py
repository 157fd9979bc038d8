"""Write what the committed results say: the tables between markers in the pages, and the report over the paper's sets.

    python tools/write_headline.py

`make docs` runs it, and tests compare it with the pages. Whatever of the four sets is in docs/results/ takes part.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from choice_table import choice_table
from streams_table import streams_tables
from stress_table import stress_table

from normscale.detectors.card import card_of
from normscale.detectors.registry import detector_class, list_detectors
from normscale.paper.headline import headline_table, joint_findings, joint_headline
from normscale.paper.joint_additions import joint_additions
from normscale.paper.published import IN_SETS
from normscale.report.joint_report import write_joint_report

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("results", "paper", "robust", "detectors", "choosing", "stress")),
]
JOINT = RESULTS / "joint"


def runs() -> list[Path]:
    """The recorded runs of the paper's sets."""
    return [folder for name in IN_SETS if (folder := RESULTS / f"{name}-small").is_dir()]


def detector_table() -> str:
    """Every detector of the package, a line each."""
    cards = [card_of(name) for name in list_detectors() if detector_class(name).__module__.startswith("normscale.")]
    rows = []
    for card in cards:
        idea = re.sub(r"([|*_<\[\]\\])", r"\\\1", re.sub(r":\w+:(?=`)", "", card.idea))
        paper = card.paper.replace("docs/robust.md", "[this project](robust.md)")
        rows.append(f"| `{card.name}` | {idea} | {', '.join(card.reads)} | {paper} |")
    return "\n".join(["| detector | idea | reads | paper |", "|---|---|---|---|", *rows]) + "\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "headline": lambda: headline_table(RESULTS / "cifar10-small" / "results.jsonl"),
    "joint": lambda: joint_headline(runs()),
    "findings": lambda: joint_findings(runs()),
    "streams": lambda: streams_tables(RESULTS),
    "detectors": detector_table,
    "choice": lambda: choice_table(RESULTS),
    "stresses": lambda: stress_table(RESULTS),
}


def markers(name: str) -> tuple[str, str]:
    """What stands before and after a block."""
    return f"<!-- {name}: make docs -->\n", f"<!-- end of {name} -->\n"


def blocks_in(page: str) -> list[str]:
    """Names of the blocks that a page has."""
    return [name for name in BLOCKS if markers(name)[0] in page]


def with_blocks(page: str) -> str:
    """The page with every block written anew from the committed results."""
    for name in blocks_in(page):
        begin, end = markers(name)
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"a page has {begin.strip()} and no {end.strip()} after it")
        page = f"{before}{begin}{BLOCKS[name]()}{end}{after}"
    return page


def write_joint(target: Path = JOINT) -> None:
    """Write the report over all recorded runs; of its tables the readable form is kept."""
    here = Path.cwd()
    os.chdir(ROOT)  # the page names its folders
    try:
        write_joint_report([folder.relative_to(ROOT) for folder in runs()], target, joint_additions())
    finally:
        os.chdir(here)
    for file in (target / "tables").iterdir():
        if file.suffix != ".md":
            file.unlink()


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_blocks(path.read_text()))
    write_joint()
