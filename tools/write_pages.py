"""Write what the committed results say into the tables between markers in the pages.

    python tools/write_pages.py

`make docs` runs it, and tests compare it with the pages. Whatever of the paper's four sets is in docs/results/ takes
part. With `--reports FOLDER` it also writes the reports that the pages tell of: over these runs, and of each run.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from recorders.choice_table import choice_table
from recorders.streams_table import streams_tables
from recorders.stress_table import stress_table

from normscale.bench.paper.additions import paper_additions
from normscale.bench.paper.claims import claims_table
from normscale.bench.paper.published import IN_SETS
from normscale.bench.report.rendering import markdown_text
from normscale.bench.report.runs import ReportedRun, read_runs
from normscale.bench.report.table import NOTHING, ReportTable, Section
from normscale.bench.report.tables import averages_table, expanded_table, ood_set_table, per_set_table
from normscale.bench.report.writing import report
from normscale.detectors.card import card_of
from normscale.detectors.registry import detector_class, list_detectors

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("results", "paper", "robust", "detectors", "choosing", "stress")),
]


def runs() -> list[Path]:
    """The recorded runs of the paper's sets."""
    return [folder for name in IN_SETS if (folder := RESULTS / f"{name}-small").is_dir()]


@cache
def reported() -> tuple[ReportedRun, ...]:
    """The recorded runs, with the paper beside them."""
    return tuple(read_runs(runs(), paper_additions()))


def in_markdown(table: ReportTable | None, sections: Sequence[Section] | None = None, digits: int = 3) -> str:
    """Sections of a table below each other, with numbers of three digits; the notes follow."""
    assert table is not None
    shown = table.sections if sections is None else sections
    titled = len(shown) > 1
    heads = [*([""] if titled else []), *(column.title for column in table.columns)]
    lines = ["| " + " | ".join(map(markdown_text, heads)) + " |", "|---" * len(heads) + "|"]
    for section in shown:
        for i, row in enumerate(section.rows):
            cells = [*([section.title if not i else ""] if titled else [])]
            for j, (column, value) in enumerate(zip(table.columns, row, strict=True)):
                text = (
                    f"{value:.{digits}f}"
                    if column.kind in ("value", "ranked") and isinstance(value, float)
                    else column.show(value)
                )
                cells.append(f"**{markdown_text(text)}**" if (i, j) in section.best else markdown_text(text))
            lines.append("| " + " | ".join(cells) + " |")
    notes = [f"* {markdown_text(note)}" for note in table.notes]
    return "\n".join([*lines, "", *notes]).rstrip("\n") + "\n"


def sets_table() -> str:
    """AUROC of the CIFAR-10 networks on every OoD set."""
    table = per_set_table(reported()[0], "per_set")
    return in_markdown(table, [one for one in table.sections if one.title.startswith("AUROC")])


def published_tables() -> str:
    """AUROC beside the paper's, over the OoD sets that both have: ours, then the paper's in brackets."""
    columns: dict[str, dict[str, str]] = {}
    for one in reported():
        table = expanded_table(one, "expanded")
        assert table is not None
        ours, theirs = ([column.title for column in table.columns].index(title) for title in ("Ours", "Paper"))
        rows = table.sections[0].rows  # the averages
        columns[one.title] = {str(row[0]): f"{row[ours]:.3f} ({row[theirs]:.3f})" for row in rows}
    methods = dict.fromkeys(method for found in columns.values() for method in found)
    lines = [f"| AUROC, ours (paper) | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(found.get(name, '') for found in columns.values())} |" for name in methods]
    return "\n".join(lines) + "\n"


def sizes_table() -> str:
    """OoD sets that are of another size in the paper: rows and shares of the stream, here and there."""
    tables = {one.title: ood_set_table(one, "ood_sets") for one in reported()}
    first = next(iter(tables.values()))
    lines = [f"| In-distribution set | {' | '.join(column.title for column in first.columns[:5])} |", "|---" * 6 + "|"]
    rows = [(title, *row[:5]) for title, table in tables.items() for row in table.shown()[0]]
    lines += [f"| {' | '.join(row)} |" for row in rows if row[4] not in (NOTHING, row[2])]
    return "\n".join(lines) + "\n"


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
    "sets": sets_table,
    "averages": lambda: in_markdown(averages_table(reported())),
    "published": published_tables,
    "claims": lambda: in_markdown(claims_table(reported())),
    "differences": sizes_table,
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


def write_reports(target: Path) -> None:
    """Write the report over the recorded runs, of each of them, and the leaderboard of those with further methods."""
    os.chdir(ROOT)  # the pages name their folders
    additions = paper_additions()
    known = sorted(path.parent.relative_to(ROOT) for path in RESULTS.glob("*/results.jsonl"))
    report([folder.relative_to(ROOT) for folder in runs()], target / "joint", additions=additions)
    for folder in known:
        report(folder, target / folder.name, additions=additions)
    ranked = [folder for folder in known if (folder / "further.jsonl").exists()]
    if ranked:
        report(ranked, target / "leaderboard", leaderboard=True, additions=additions)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--reports"]:
        write_reports(Path(sys.argv[2]).resolve())
    else:
        for path in PAGES:
            path.write_text(with_blocks(path.read_text()))
