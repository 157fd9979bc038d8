"""Write what the committed results say into the tables between markers in the pages.

    python tools/write_pages.py

`make docs` runs it, and tests compare it with the pages. Whatever of the paper's four sets is in docs/results/ takes
part. With `--reports FOLDER` it also writes the reports that the pages tell of: over these runs, and of each run.
A table whose record is not there is left as it is.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from normscale.bench.experiments.alarms import UNCHANGED
from normscale.bench.experiments.methods import DEFAULT, FROZEN_SUFFIX, title_of
from normscale.bench.experiments.stress import KINDS
from normscale.bench.paper.additions import paper_additions
from normscale.bench.paper.claims import HERE, NOISE, claims_table
from normscale.bench.paper.presets import FROZEN, RUNNING
from normscale.bench.paper.published import IN_SETS
from normscale.bench.report.rendering import markdown_text
from normscale.bench.report.runs import ReportedRun, read_runs
from normscale.bench.report.table import NOTHING, ReportTable, Section
from normscale.bench.report.tables import (
    OVER_SEEDS,
    averages_table,
    count,
    expanded_table,
    ood_set_table,
    per_set_table,
)
from normscale.bench.report.writing import report
from normscale.detectors.base import Setting
from normscale.detectors.card import card_of
from normscale.detectors.registry import detector_class, list_detectors

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
ALL_LAYERS = "mahalanobis_layers"
"""The rival of the claims that the paper does not have."""
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "results",
            "paper",
            "robust",
            "detectors",
            "choosing",
            "stress",
            "leaderboard",
            "norm-scaling-in-2026",
            "imagenet",
            "howto/text-classifier",
        )
    ),
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
                text = column.show(value, digits)
                cells.append(f"**{markdown_text(text)}**" if (i, j) in section.best else markdown_text(text))
            lines.append("| " + " | ".join(cells) + " |")
    notes = [f"* {markdown_text(note)}" for note in table.notes]
    return "\n".join([*lines, "", *notes]).rstrip("\n") + "\n"


def sets_table() -> str:
    """AUROC of the CIFAR-10 networks on every OoD set."""
    table = per_set_table(reported()[0], "per_set")
    return in_markdown(table, [one for one in table.sections if one.title.startswith("AUROC")])


def published_tables() -> str:
    """AUROC and ± over seeds, over the OoD sets that both have: ours, then the paper's in brackets."""
    columns: dict[str, dict[str, str]] = {}
    for one in reported():
        table = expanded_table(one, "expanded")
        assert table is not None
        titles = [column.title for column in table.columns]
        own = columns[f"{one.title}, {count(len(one.board.seeds), 'network')}"] = {}
        for row in table.sections[0].rows:  # the averages
            cell = dict(zip(titles, row, strict=True))
            ours, theirs = (
                f"{cell[mean]:.3f}" + (f" ± {cell[spread]:.3f}" if cell[spread] is not None else "")
                for mean, spread in (("Ours", OVER_SEEDS), ("Paper", f"Paper {OVER_SEEDS}"))
            )
            own[str(row[0])] = f"{ours} ({theirs})"
        added = one.average("auroc", ALL_LAYERS)
        own[f"{title_of(ALL_LAYERS)} (not in the paper)"] = f"{added.mean:.3f}" + (
            f" ± {added.within_sets:.3f}" if added.within_sets is not None else ""
        )
    methods = dict.fromkeys(method for found in columns.values() for method in found)
    lines = [f"| AUROC, ours (paper) | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(found.get(name, '') for found in columns.values())} |" for name in methods]
    return "\n".join(lines) + "\n"


def pictures_table() -> str:
    """Mean AUROC over the in-distribution sets, on the OoD sets shared with the paper, and without noise."""
    columns = {"all shared OoD sets": [], "pictures alone": list(NOISE)}
    methods = [name for name in reported()[0].board.methods if name in (RUNNING, FROZEN, *HERE, "multi_threshold")]

    def mean(method: str, without: Sequence[str]) -> float:
        sets = {one.title: [name for name in one.shared if name not in without] for one in reported()}
        return fmean(one.board.average("auroc", method, sets[one.title]).mean or 0.0 for one in reported())

    rows = [(title_of(name), *(mean(name, without) for without in columns.values())) for name in methods]
    return table(["mean AUROC of the networks", *columns], sorted(rows, key=lambda row: -float(row[1])))


def sizes_table() -> str:
    """OoD sets that are of another size in the paper: rows and shares of the stream, here and there."""
    tables = {one.title: ood_set_table(one, "ood_sets") for one in reported()}
    first = next(iter(tables.values()))
    lines = [f"| In-distribution set | {' | '.join(column.title for column in first.columns[:5])} |", "|---" * 6 + "|"]
    rows = [(title, *row[:5]) for title, table in tables.items() for row in table.texts()[0]]
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


def compared_table(record: str) -> str:
    """AUROC of every method on every OoD set of a recorded `normscale compare`, best mean first."""
    rows = [row for row in json.loads((RESULTS / f"{record}.json").read_text())["rows"] if not row["skipped"]]
    sets = list(dict.fromkeys(row["ood_set"] for row in rows))
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        found.setdefault((row["method"], row["setting"]), {})[row["ood_set"]] = row["auroc"]
    whole = {method: values for method, values in found.items() if len(values) == len(sets)}
    heads = ["detector", "statistics", *sets, *(["mean"] if len(sets) > 1 else [])]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method, values in sorted(whole.items(), key=lambda item: -fmean(item[1].values())):
        numbers = [*(values[name] for name in sets), fmean(values.values())][: len(heads) - 2]
        lines.append(f"| {' | '.join(method)} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |")
    return "\n".join(lines) + "\n"


COMPARED = ("imagenet-unseen", "imagenet-samples", "clinc150")


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; numbers with three digits, nothing where there is none."""

    def shown(cell: Any) -> str:
        return "" if cell is None else f"{cell:.3f}".replace("0.", ".", 1) if isinstance(cell, float) else str(cell)

    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(map(shown, row)) + " |" for row in rows)]) + "\n"


@cache
def record(name: str) -> Any:
    """A record; a :class:`FileNotFoundError` if it was not made."""
    return json.loads((RESULTS / name).read_text())


@cache
def leaderboard(name: str) -> list[dict[str, str]]:
    """The rows of a table of the leaderboard."""
    return list(csv.DictReader((RESULTS / "leaderboard" / f"{name}.csv").read_text().splitlines()))


def number(text: str) -> float | None:
    """A number of a CSV file."""
    return float(text) if text else None


def wide_table() -> str:
    """AUROC of the wide network beside the narrow ones, over the OoD sets shared with the paper."""
    (wide,) = read_runs([RESULTS / "cifar10-wide"], paper_additions())
    narrow = reported()[0]
    means = {
        one.run.plan.width: {name: one.average("auroc", name).mean for name in one.board.methods}
        for one in (wide, narrow)
    }
    methods = sorted(means[32], key=lambda name: -(means[32][name] or 0.0))
    rows = [(f"width {width}", *(found.get(name) for name in methods)) for width, found in means.items()]
    return table(["mean AUROC", *(title_of(name) for name in methods)], rows)


def update_table() -> str:
    """The update as printed beside other readings, set by set."""
    claim = next(one for one in record("audit-resnet20.json")["claims"] if one["claim"].startswith("Norm-scaling with"))
    ways = ("as_printed", "running_mean", "training_size", "frozen", "msp", "paper")
    heads = [
        "OoD set",
        "as printed",
        "running mean",
        "prior as large as the training set",
        "frozen",
        "plain MSP",
        "paper",
    ]
    rows = [
        [row["ood_set"], *("" if row.get(way) is None else f"{row[way]:.4f}" for way in ways)]
        for row in claim["details"]
    ]
    return table(heads, rows)


def share_table() -> str:
    """Mean AUROC by the share of OoD inputs in a shuffled, balanced stream of the ResNet-20."""
    claim = next(
        one for one in record("audit-resnet20.json")["claims"] if one["point"] == 2 and "n_id" in one["details"][0]
    )
    shares = list(dict.fromkeys(row["share"] for row in claim["details"]))

    def mean(way: str, share: float) -> float:
        return fmean(row[way] for row in claim["details"] if row["share"] == share)

    rows = [(way, *(mean(way, share) for share in shares)) for way in ("running", "frozen", "energy")]
    return table(["mean AUROC", *(f"{100 * share:g} %" for share in shares)], rows)


def stress_table() -> str:
    """The detectors of the paper and the default on the ResNet-20, over all kinds of streams."""
    rows = [
        [title_of(row["method"]), row["mean_auroc"], f"{row['worst']:+.3f}", f"{row['best']:+.3f}", row["verdict"]]
        for row in record("resnet20-stress.json")["summary"]
    ]
    return table(["detector", "mean AUROC", "worst against the best static", "best against it", "verdict"], rows)


def resnet20_table() -> str:
    """Running and frozen norm-scaling on the ResNet-20, by share, order and class balance."""
    cells = {(one["share"], one["order"], one["balance"]): one for one in record("resnet20-stress.json")["cells"]}
    shares = sorted({share for share, *_ in cells})
    rows = []
    for balance in dict.fromkeys(balance for *_, balance in cells):
        for method, order in (
            (FROZEN, "shuffled"),
            (RUNNING, "shuffled"),
            (RUNNING, "OoD first"),
            (RUNNING, "ID first"),
        ):
            title = f"{balance}: frozen" if method == FROZEN else f"running, {order}"
            found = [cells.get((share, order, balance), {}).get(method) for share in shares]
            rows.append([title, *(None if one is None else one[0] for one in found)])
    return table(["mean AUROC", *(f"{100 * share:g} %" for share in shares)], rows)


def alarms_table(unchanged: bool) -> str:
    """Shares that the default flags of streams without OoD rows, in percent: frozen -> streamed."""
    rows = [
        row
        for row in leaderboard("alarms")
        if (row["Stream"] in UNCHANGED) == unchanged and row["Detector"] != "Norm-Scaling"
    ]
    kinds = dict.fromkeys(row["Stream"].split()[0] if not unchanged else row["Stream"] for row in rows)
    made = []
    for network, detector in dict.fromkeys((row["Network"], row["Detector"]) for row in rows):
        own = [row for row in rows if (row["Network"], row["Detector"]) == (network, detector)]
        cells = []
        for kind in kinds:
            found = [
                row for row in own if row["Stream"] == kind or (not unchanged and row["Stream"].split()[0] == kind)
            ]
            cells.append(
                ", ".join(f"{100 * float(row['Frozen']):.0f} -> {100 * float(row['Streamed']):.0f}" for row in found)
            )
        made.append([f"{network}: {detector}", *cells])
    return table(["flagged in %, frozen -> streamed", *kinds], made)


@cache
def in_streams() -> dict[str, dict[str, float]]:
    """Mean AUROC over all OoD sets and the five kinds of streams, by method and by network."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in leaderboard("per_set"):
        if row["Stream"] in KINDS:
            found.setdefault(row["Method"], {}).setdefault(row["Network"], []).append(float(row["AUROC"]))
    return {method: {name: fmean(values) for name, values in own.items()} for method, own in found.items()}


def ranking(statistics: str) -> list[tuple[str, list[float]]]:
    """Methods that every network has, with the mean over the networks and each network's number, best first."""
    settings = {row["Method"]: row["Statistics"] for row in leaderboard("per_set")}
    networks = dict.fromkeys(row["Network"] for row in leaderboard("per_set"))
    chosen = {
        method: [own[name] for name in networks]
        for method, own in in_streams().items()
        if settings[method] == statistics and not method.endswith(FROZEN_SUFFIX) and len(own) == len(networks)
    }
    ranked = [(method, [fmean(numbers), *numbers]) for method, numbers in chosen.items()]
    return sorted(ranked, key=lambda one: -one[1][0])


def shown_and_typed(method: str) -> list[str]:
    """A method's title, and how to name it in a command."""
    typed = {DEFAULT: "stream_aware+ensemble", "unit": "unit+mahalanobis"}.get(method, method)
    return ["Default" if method == DEFAULT else title_of(method), f"`{typed}`"]


def networks_heads() -> list[str]:
    """Titles of the columns of a ranking."""
    return ["Mean", *dict.fromkeys(row["Network"] for row in leaderboard("per_set"))]


def streams_table() -> str:
    """Detectors as fitted and streamed, over the same streams: the mean over five kinds, and over the networks."""
    made = []
    for method, streamed in ranking(Setting.STREAM.value):
        own = in_streams()[method + FROZEN_SUFFIX]
        fitted = [own[name] for name in networks_heads()[1:]]
        pairs = zip([fmean(fitted), *fitted], streamed, strict=True)
        made.append([*shown_and_typed(method), *(f"{a:.3f} -> {b:.3f}" for a, b in pairs)])
    return table(["mean AUROC, as fitted -> streamed", "to type", *networks_heads()], made).replace("0.", ".")


def overview_table() -> str:
    """The first ten static and streamed detectors of the leaderboard, over the same streams."""
    made: list[list[Any]] = []
    for title, statistics in (("Static", Setting.FROZEN), ("Streamed", Setting.STREAM)):
        own = ranking(statistics.value)[:10]
        made += [
            [title if not i else "", *shown_and_typed(method), *numbers] for i, (method, numbers) in enumerate(own)
        ]
    return table(["", "detector", "to type", *networks_heads()], made)


def lead_table() -> str:
    """The default in every stream and, where another is ahead, that one and by how much."""
    rows = leaderboard("lead")
    cells = {(row["Network"], row["Stream"]): row for row in rows}

    def cell(network: str, stream: str) -> str:
        row = cells.get((network, stream))
        if row is None:
            return "too few rows"
        own, behind = f"{float(row['Default']):.3f}", float(row["Difference"])
        return own if row["The default is"] == "first" else f"{own} ({row['First']} {-behind:+.3f})"

    made = [
        [network, *(cell(network, stream) for stream in KINDS)]
        for network in dict.fromkeys(row["Network"] for row in rows)
    ]
    return table(["default (who is ahead)", *KINDS], made).replace("0.", ".")


def published_board() -> str:
    """Near and far AUROC of static detectors beside OpenOOD's published figures, on the CIFAR networks."""
    names = {"CIFAR-10 (cifar10-small)": "network_cifar_10_cifar10_small", "CIFAR-100": "network_cifar_100"}
    columns = {"near": "Near ↑", "published near": "Published near", "far": "Far ↑", "published far": "Published far"}
    found = {title: {row["Method"]: row for row in leaderboard(name)} for title, name in names.items()}
    methods = [name for name, row in next(iter(found.values())).items() if row.get("Published near") and row["Near ↑"]]
    rows = [
        [
            name,
            *(
                number(one[name].get(column, "")) if name in one else None
                for one in found.values()
                for column in columns.values()
            ),
        ]
        for name in methods
    ]
    pairs = [[(row[i], row[i + 1]) for row in rows if None not in row[i : i + 2]] for i in range(1, len(rows[0]), 2)]
    same = [text for pair in pairs for text in (spearman(*zip(*pair, strict=True)), "")]
    rows.append(["rank correlation (Spearman)", *same])
    return table(["detector", *(f"{title} {name}" for title in found for name in columns)], rows)


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """How alike two orders are: 1 the same, 0 unrelated; ties count as their mean rank."""
    return float(np.corrcoef(*(mean_ranks(np.asarray(one)) for one in (a, b)))[0, 1])


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value; equal ones share their mean rank."""
    below, upto = (np.searchsorted(np.sort(values), values, side) for side in ("left", "right"))
    return (below + upto) / 2


def sweep_table() -> str:
    """The default with logits alone at other parameters, on the ResNet-20."""
    rows = list(csv.DictReader((RESULTS / "resnet20-sweep" / "network_cifar_10.csv").read_text().splitlines()))
    columns = [f"{title} ↑" for title in (*KINDS, "All streams")]
    made = [
        [row["Method"], *(number(row[one]) for one in columns)] for row in sorted(rows, key=lambda row: row["Method"])
    ]
    return table(["mean AUROC", *(name.removesuffix(" ↑") for name in columns)], made)


BLOCKS: dict[str, Callable[[], str]] = {
    **{record: partial(compared_table, record) for record in COMPARED},
    "sets": sets_table,
    "averages": lambda: in_markdown(averages_table(reported())),
    "published": published_tables,
    "pictures": pictures_table,
    "claims": lambda: in_markdown(claims_table(reported())),
    "differences": sizes_table,
    "wide": wide_table,
    "update": update_table,
    "shares": share_table,
    "detectors": detector_table,
    "stresses": stress_table,
    "resnet20": resnet20_table,
    "streams": streams_table,
    "alarms": lambda: alarms_table(unchanged=True),
    "changed": lambda: alarms_table(unchanged=False),
    "sweep": sweep_table,
    "overview": overview_table,
    "lead": lead_table,
    "openood": published_board,
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
        try:
            page = f"{before}{begin}{BLOCKS[name]()}{end}{after}"
        except FileNotFoundError as error:
            print(f"{name} is left as it is: {error.filename} was not recorded", file=sys.stderr)
    return page


def write_reports(target: Path) -> None:
    """Write the report over the recorded runs, and of each of them."""
    os.chdir(ROOT)  # the pages name their folders
    additions = paper_additions()
    known = sorted(path.parent.relative_to(ROOT) for path in RESULTS.glob("*/results.jsonl"))
    report([folder.relative_to(ROOT) for folder in runs()], target / "joint", additions=additions)
    for folder in known:
        report(folder, target / folder.name, additions=additions)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--reports"]:
        write_reports(Path(sys.argv[2]).resolve())
    else:
        for path in PAGES:
            path.write_text(with_blocks(path.read_text()))
