"""The leaderboard: every detector of one or more networks ranked, as fitted and in streams, on a page and in tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from normscale.bench.experiments.measurement import StreamKind
from normscale.bench.experiments.methods import DEFAULT, FROZEN_SUFFIX, title_of
from normscale.bench.experiments.stress import KINDS
from normscale.bench.experiments.stress_result import StressResult
from normscale.bench.report.published import OodGroupReference, OodGroups
from normscale.bench.report.runs import distinct_titles
from normscale.bench.report.table import Column, ReportTable, Row, Value, table_of
from normscale.bench.report.tables import by_setting, reads_of, slug
from normscale.bench.report.writing import write_page
from normscale.detectors.base import Setting

STATIC = Setting.FROZEN.value
NEAR, FAR = GROUPS = ("near", "far")
CLOSE = 0.005
"""The default counts as level with the first if it is at most so much below it."""
STREAMED_NOTE = (
    "As fitted: every input is scored by itself, on all rows of both sets. Streams: statistics that run also learn, "
    "without labels, from the rows before. 50 %, 10 %, 2 %: the share of OoD rows in a shuffled stream with balanced "
    "classes. Bursts: 10 % OoD, in bursts of 200 rows. One class 80 %: 10 % OoD, and four fifths of the other rows "
    "are of one class."
)


class RankedNetwork(NamedTuple):
    """The numbers of one network."""

    title: str
    result: StressResult
    groups: OodGroups

    @property
    def methods(self) -> list[str]:
        """The methods, without the as-fitted forms of those that run; those that could not be measured last."""
        names = [name for name in self.result.methods if not name.endswith(FROZEN_SUFFIX)]
        return [*names, *self.result.settings["left_out"]]

    def mean(self, method: str, kind: StreamKind | None, sets: Sequence[str] | None = None, of: str = "auroc") -> Value:
        """The mean of a metric over OoD sets; None where one is missing."""
        ood_sets = self.result.ood_sets if sets is None else sets
        values = {
            row.ood_set: row.metrics[of]
            for row in self.result.rows
            if row.method == method and row.stream == kind and not row.skipped and row.ood_set in ood_sets
        }
        return fmean(values.values()) if values and len(values) == len(ood_sets) else None

    def fitted(self, method: str) -> str:
        """The method as fitted: it itself, or its form whose statistics do not run."""
        frozen = method + FROZEN_SUFFIX
        return frozen if frozen in self.result.methods else method

    def in_streams(self, method: str, sets: Sequence[str] | None = None) -> Value:
        """Mean AUROC over all kinds of streams."""
        means = [self.mean(method, kind, sets) for kind in KINDS.values()]
        known = [value for value in means if isinstance(value, float)]
        return fmean(known) if len(known) == len(means) else None

    def setting(self, method: str) -> str:
        """How a method was measured."""
        return next((row.setting for row in self.result.rows if row.method == method), STATIC)

    def title_of(self, method: str) -> str:
        """The method's name for people."""
        return "Default" if method == DEFAULT else title_of(method)


def leaderboard(
    results: Sequence[StressResult], folder: Path, reference: OodGroupReference, command: Sequence[str] = ()
) -> Path:
    """Write the page and the tables of networks' results, and return the path of the page."""
    titles = distinct_titles(
        [reference.set_titles.get(one.settings["in_set"], one.settings["in_set"]) for one in results],
        [one.settings["network"] for one in results],
    )
    known = [reference.groups.get(one.settings["in_set"], OodGroups()) for one in results]
    ranked = [RankedNetwork(*both) for both in zip(titles, results, known, strict=True)]
    made = [_overview(ranked), _lead_table(ranked)] if len(ranked) > 1 else [_lead_table(ranked)]
    made += [network_table(one, reference) for one in ranked]
    made += [_alarms_table(ranked), _per_set_table(ranked)]
    return write_page(
        folder / "leaderboard.html",
        f"Leaderboard of OoD detectors: {', '.join(titles)}",
        made,
        command,
        leaderboard=True,
        n_networks=len(ranked),
        n_sets=len({name for one in results for name in one.ood_sets}),
        n_methods=len({method for one in ranked for method in one.methods}),
        subjects={"Default"},
    )


def _sections(
    ranked: Sequence[RankedNetwork], row: Callable[[str], Row], rank: Callable[[str], Value]
) -> dict[str, list[Row]]:
    """Rows of all methods by setting, the highest rank first; one that could not be measured counts as static."""
    methods = dict.fromkeys(method for one in ranked for method in one.methods)
    settings = {row.method: row.setting for one in ranked for row in one.result.rows}
    return by_setting(methods, lambda name: settings.get(name, STATIC), row, lambda name: [rank(name)])


def network_table(one: RankedNetwork, reference: OodGroupReference) -> ReportTable:
    """Every detector of one network: as fitted on near, far and all OoD sets, in streams, and as published."""
    in_set, sets = one.result.settings["in_set"], one.result.ood_sets
    near, far = (reference.members(in_set, group, sets) for group in GROUPS)
    left_out = one.result.settings["left_out"]

    def row(method: str) -> Row:
        fitted, published = one.fitted(method), one.groups.auroc.get(method, (None, None))
        why = f"not measured: {left_out[method]}" if method in left_out else reference.remarks.get(method, "")
        detector = next((row.detector for row in one.result.rows if row.method == method), method)
        return (
            one.title_of(method),
            one.mean(fitted, None), one.mean(fitted, None, near) if near else None,
            one.mean(fitted, None, far) if far else None, one.mean(fitted, None, of="fpr95_out"),
            *(one.mean(method, kind) for kind in KINDS.values()), one.in_streams(method),
            one.in_streams(method, near) if near else None, one.in_streams(method, far) if far else None,
            *published, reads_of(detector), why or (detector if method == DEFAULT else ""),
        )  # fmt: skip

    columns = [
        Column("Method"), Column("As fitted ↑", "ranked"), Column("Near ↑", "ranked"), Column("Far ↑", "ranked"),
        Column("FPR95 ↓", "ranked"), *(Column(f"{title} ↑", "ranked") for title in KINDS),
        Column("All streams ↑", "ranked"), Column("Near, streams ↑", "ranked"), Column("Far, streams ↑", "ranked"),
        Column("Published near", "value"), Column("Published far", "value"), Column("Reads"), Column("Remark"),
    ]  # fmt: skip
    notes = [STREAMED_NOTE]
    for group, there in ((NEAR, near), (FAR, far)):
        absent = reference.absent(in_set, group, sets)
        if there or absent:
            notes.append(f"{group.capitalize()}: {', '.join(there) or 'none'}")
            notes[-1] += f"; not measured: {', '.join(absent)}." if absent else "."
    notes[-1] += f" Groups by {one.groups.defined_by}." if near or far else ""
    sizes = one.result.settings
    rows = ", ".join(f"{name} {n:,}" for name, n in sizes["ood_sets"].items())
    notes.append(f"Rows: training {sizes['n_train']:,}, test {sizes['n_id']:,}, {rows}.")
    if one.groups.auroc:
        notes.append(f"Published: {reference.source}. Other networks and sets: compare the order, not the numbers.")
    made = _sections([one], row, one.in_streams)
    return table_of(f"network_{slug(one.title)}", one.title, columns, made, notes, "statistics")


def _overview(ranked: Sequence[RankedNetwork]) -> ReportTable:
    """Every detector over all networks: static ones as fitted, streamed ones in streams."""

    def value(one: RankedNetwork, method: str) -> Value:
        static = one.setting(method) != Setting.STREAM.value
        return one.mean(method, None) if static else one.in_streams(method)

    def mean(method: str) -> Value:
        known = [number for one in ranked if isinstance(number := value(one, method), float)]
        return fmean(known) if len(known) == len(ranked) else None

    def row(method: str) -> Row:
        return (ranked[0].title_of(method), mean(method), *(value(one, method) for one in ranked))

    columns = [Column("Method"), Column("Mean ↑", "ranked"), *(Column(f"{one.title} ↑", "ranked") for one in ranked)]
    notes = ["Mean AUROC over the OoD sets of a network. Static: as fitted. Streamed: mean over five kinds of streams."]
    notes += ["Mean: over the networks; nothing where a network lacks what the detector reads."]
    made = _sections(ranked, row, mean)
    return table_of("overview", "All networks", columns, made, notes, "statistics")


def _lead_table(ranked: Sequence[RankedNetwork]) -> ReportTable:
    """In every network and stream: the first, the default, and by how much it is behind."""
    rows: list[Row] = []
    for one in ranked:
        for title, kind in KINDS.items():
            numbers = {name: number for name in one.methods if isinstance(number := one.mean(name, kind), float)
                       and one.setting(name) != Setting.PER_CLASS.value}  # fmt: skip
            if DEFAULT in numbers:
                first = max(numbers, key=lambda name: numbers[name])
                behind = numbers[DEFAULT] - numbers[first]
                verdict = "first" if first == DEFAULT else "level" if behind >= -CLOSE else "behind"
                row = (one.title, title, numbers[DEFAULT], one.title_of(first), numbers[first], behind, verdict)
                rows.append(row)
    columns = [
        Column("Network"), Column("Stream"), Column("Default", "value"), Column("First"), Column("Its AUROC", "value"),
        Column("Difference", "difference"), Column("The default is"),
    ]  # fmt: skip
    notes = [f"Level: at most {CLOSE:g} below the first. Rankings per predicted class do not take part."]
    return table_of("lead", "Is the default first?", columns, {"": rows}, notes)


def _alarms_table(ranked: Sequence[RankedNetwork]) -> ReportTable:
    """How much of streams without OoD rows is flagged, frozen and streamed."""
    rows: list[Row] = [
        (one.title, one.title_of(row.method), row.stream, row.frozen, row.streamed, row.streamed - row.frozen,
         row.accuracy)
        for one in ranked for row in one.result.alarms
    ]  # fmt: skip
    columns = [
        Column("Network"), Column("Detector"), Column("Stream"), Column("Frozen", "percent"),
        Column("Streamed", "percent"), Column("Difference", "points"), Column("Accuracy", "percent"),
    ]  # fmt: skip
    notes = ["Share of in-distribution rows flagged with a threshold for 5 %; the first 300 rows do not count."]
    return table_of("alarms", "False alarms", columns, {"": rows}, notes)


def _per_set_table(ranked: Sequence[RankedNetwork]) -> ReportTable:
    """Every number: a row for each network, method, OoD set and stream."""
    titles: dict[StreamKind | None, str] = {None: "all rows"}
    titles |= {kind: title for title, kind in KINDS.items()}
    rows: list[Row] = [
        (one.title, row.method, row.setting, row.ood_set, titles.get(row.stream), round(row.auroc, 4),
         round(row.fpr95_out, 4))
        for one in ranked for row in one.result.rows if not row.skipped and row.stream in titles
    ]  # fmt: skip
    columns = [*map(Column, ("Network", "Method", "Statistics", "OoD set", "Stream"))]
    columns += [Column("AUROC", "value"), Column("FPR95", "value")]
    return table_of("per_set", "Every OoD set", columns, {"": rows})
