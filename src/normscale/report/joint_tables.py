"""The tables of several runs together: every method on every in-distribution set, ours beside the published numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

from normscale.experiments.methods import title_of
from normscale.report.better_than import (
    ALL_SETS,
    LEVEL,
    bootstrap_note,
    comparison_columns,
    comparison_notes,
    comparison_row,
)
from normscale.report.fitted_on import fitted_on_note
from normscale.report.reported_run import ReportedRun
from normscale.report.scoreboard import SHOWN
from normscale.report.table import Column, ReportTable, Row, Section, best_of
from normscale.report.tables import METRIC_TITLES, count, is_higher_better, per_class_notes, reference_notes, size_notes

Printed = Callable[[str, str], float | None]
"""From a metric and a method to what the reference prints as its mean over all of its in-distribution sets."""


def nothing_printed(metric: str, method: str) -> float | None:
    """For a reference that prints no such mean."""
    return None


def methods_of(runs: Sequence[ReportedRun]) -> list[str]:
    """The methods of all runs, in the order in which they come."""
    return list(dict.fromkeys(method for one in runs for method in one.board.methods))


def subjects_of(runs: Sequence[ReportedRun]) -> list[str]:
    """Titles of the methods that the runs are about, each once."""
    return list(dict.fromkeys(title_of(one.board.subject) for one in runs if one.board.subject is not None))


def joint_table(
    name: str,
    title: str,
    runs: Sequence[ReportedRun],
    methods: Sequence[str],
    metrics: Sequence[str] = SHOWN,
    printed: Printed = nothing_printed,
) -> ReportTable:
    """A row for every method: its average on each in-distribution set and their mean, each beside the reference's.

    An average is over the OoD sets that the reference has too (all, if there is none), so that both columns of a
    pair are over the same sets. The mean is over the in-distribution sets, each with the first of its runs.
    """
    theirs = next((one.beside.reference.name for one in runs if one.beside.is_there), "")
    firsts = first_of_each_set(runs)
    columns = [Column("Method")]
    for one in runs:
        columns += _pair(one.title, theirs if one.beside.is_there else "")
    columns += _pair("Mean", theirs) if len(firsts) > 1 else []
    prints = [(metric, method) for metric in metrics for method in methods if printed(metric, method) is not None]
    if prints:
        columns.append(Column(f"Mean as the {theirs} prints it", "value"))
    not_ranked = {method for one in runs for method in one.board.per_class}
    sections = []
    for metric in metrics:
        rows: list[Row] = []
        for method in methods:
            row: list[float | None] = []
            for one in runs:
                row += _values(one, metric, method)
            if len(firsts) > 1:
                both = [_values(one, metric, method) for one in firsts]
                row += [_mean([pair[place] if place < len(pair) else None for pair in both]) for place in (0, 1)][
                    : 2 if theirs else 1
                ]
            rows.append((title_of(method), *row, *([printed(metric, method)] if prints else [])))
        best: frozenset[tuple[int, int]] = frozenset()
        for place, column in enumerate(columns):
            if place and (column.title.endswith(", ours") or not theirs):
                ranked = {(i, place): rows[i][place] for i, one in enumerate(methods) if one not in not_ranked}
                best |= best_of(ranked, highest=is_higher_better(metric))
        sections.append(Section(METRIC_TITLES[metric], rows, best))
    notes = _average_notes(runs, methods, theirs)
    if 1 < len(firsts) < len(runs):
        others = ", ".join(one.title for one in runs if one not in firsts)
        notes.insert(len(runs), f"Mean: of the first run on each in-distribution set; without {others}.")
    return ReportTable(name, title, columns, sections, notes)


def _pair(title: str, theirs: str) -> list[Column]:
    if not theirs:
        return [Column(title, "value")]
    return [Column(f"{title}, ours", "value"), Column(f"{title}, {theirs}", "value")]


def _values(one: ReportedRun, metric: str, method: str) -> list[float | None]:
    average = one.average(metric, method)
    ours = None if average is None else average.mean
    return [ours, one.published(metric, method)] if one.beside.is_there else [ours]


def _mean(values: Sequence[float | None]) -> float | None:
    """None if one is missing: a mean over fewer sets would be of something else."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def first_of_each_set(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """One run for every in-distribution set."""
    return list({one.in_set: one for one in reversed(runs)}.values())[::-1]


def _average_notes(runs: Sequence[ReportedRun], methods: Sequence[str], theirs: str) -> list[str]:
    notes = []
    for one in runs:
        seeds = count(len(one.board.block.seeds), "network")
        notes.append(f"{one.title}: {seeds}; means over {', '.join(one.shared)}.")
    if theirs:
        notes.append(
            f"The {theirs}'s averages are taken over the same OoD sets; what it prints is over all of its own."
        )
    notes += network_notes(runs)
    notes.append(fitted_on_note([one.board for one in runs], methods))
    for one in runs:
        notes += [f"{one.title}: {note}" for note in size_notes(one.board, one.beside)]
    further = [per_class_notes(one.board, methods) + reference_notes(one.beside, methods) for one in runs]
    return notes + list(dict.fromkeys(note for group in further for note in group))


def network_notes(runs: Sequence[ReportedRun]) -> list[str]:
    """Said if the runs have different numbers of networks, or one alone."""
    numbers = {one.title: len(one.board.block.seeds) for one in runs}
    if len(set(numbers.values())) < 2:
        return (
            ["One network each: nothing says how much another training would change."] if 1 in numbers.values() else []
        )
    shown = ", ".join(f"{title} {number}" for title, number in numbers.items())
    return [f"The runs have different numbers of networks: {shown}. A single one says nothing about another training."]


def joint_per_set_table(runs: Sequence[ReportedRun]) -> ReportTable:
    """For every in-distribution set and metric: a row for every OoD set, and below it the reference's."""
    methods = methods_of(runs)
    columns = [Column("OoD set"), Column("Whose"), *(Column(title_of(method), "value") for method in methods)]
    sections = [_set_by_set(one, methods, metric) for metric in SHOWN for one in runs]
    notes = ["Means over networks; bold is the best of our methods on each set."]
    for one in runs:
        absent = [name for name in one.beside.reference.sizes if name not in one.board.ood_sets]
        if absent:
            why = one.run.missing()
            told = [f"{name} ({why[name].splitlines()[0]})" if name in why else name for name in absent]
            notes.append(f"{one.title}: not measured here: {', '.join(told)}.")
    notes += _average_notes(runs, methods, "")[len(runs) :]
    return ReportTable("per_set", "Every OoD set", columns, sections, notes, section_column="networks")


def _set_by_set(one: ReportedRun, methods: Sequence[str], metric: str) -> Section:
    theirs = one.beside.reference.name
    own = [name for name in one.board.ood_sets if name not in one.beside.ood_sets]
    absent = [name for name in one.beside.reference.sizes if name not in one.board.ood_sets]
    rows: list[Row] = []
    best: frozenset[tuple[int, int]] = frozenset()

    def add(name: str, whose: str, values: Sequence[float | None], *, ranked: bool = False) -> None:
        nonlocal best
        if ranked:
            numbers = enumerate(zip(methods, values, strict=True), 2)
            places = {(len(rows), j): value for j, (method, value) in numbers if method not in one.board.per_class}
            best |= best_of(places, highest=is_higher_better(metric))
        rows.append((name, whose, *values))

    for name in (*one.beside.ood_sets, *own, *absent):
        if name not in absent:
            means = [one.board.mean(metric, method, name) for method in methods]
            add(name, "ours", [None if mean is None else mean.mean for mean in means], ranked=True)
        if name not in own:
            values = [one.beside.value(metric, method, name) for method in methods]
            add(name, theirs, [None if value is None else value.mean for value in values])
    averages = [one.average(metric, method) for method in methods]
    sets = count(len(one.shared), "set")
    add(f"mean of {sets}", "ours", [None if mean is None else mean.mean for mean in averages], ranked=True)
    if one.beside.is_there:
        add(f"mean of {sets}", theirs, [one.published(metric, method) for method in methods])
    return Section(f"{one.title}: {METRIC_TITLES[metric]}", rows, best)


def joint_better_than_table(runs: Sequence[ReportedRun]) -> ReportTable | None:
    """The paired bootstrap of every run: over all of its OoD sets first, then set by set.

    Where the runs have different subjects, the sections name them.
    """
    compared = [one for one in runs if one.comparisons]
    if not compared:
        return None
    subject, *others = subjects_of(compared)
    title, titles = f"Is {subject} better?", {one.title: one.title for one in compared}
    if others:
        subject, title = "Subject", "Is the subject of each run better?"
        titles = {one.title: f"{one.title}, {title_of(one.board.subject or '')}" for one in compared}
    overall = [
        Section(f"{titles[one.title]}: {ALL_SETS[0].lower()}{ALL_SETS[1:]}", rows)
        for one in compared
        if (rows := [comparison_row(found) for found in one.comparisons if found.ood_set == ALL_SETS])
    ]
    single = [
        Section(
            f"{titles[one.title]}: {name}",
            [comparison_row(found) for found in one.comparisons if found.ood_set == name],
        )
        for one in compared
        for name in one.board.ood_sets
    ]
    per_class = dict.fromkeys(
        method for one in compared for method in methods_of(compared) if method in one.board.per_class
    )
    notes = [bootstrap_note(resamples, LEVEL) for resamples in sorted({one.resamples for one in compared})]
    notes += [f"{one.title} is not here: {one.why_no_comparisons}." for one in runs if one.why_no_comparisons]
    notes += comparison_notes(list(per_class))
    columns = comparison_columns(subject)
    return ReportTable("better_than", title, columns, [*overall, *single], notes, section_column="networks and OoD set")


def n_over_all_sets(runs: Sequence[ReportedRun]) -> int:
    """How many sections of :func:`joint_better_than_table` are over all OoD sets of a run; they come first."""
    return sum(any(found.ood_set == ALL_SETS for found in one.comparisons) for one in runs)


def joint_accuracy_table(runs: Sequence[ReportedRun]) -> ReportTable | None:
    """Share of right answers of the networks of every run, beside the reference's."""
    known = [one for one in runs if one.accuracies]
    if not known:
        return None
    theirs = next((one.beside.reference for one in known if one.beside.reference.accuracy is not None), None)
    columns = [
        Column("Trained on"), Column("Networks", "count"), Column("Width", "count"), Column("Epochs", "count"),
        Column("Ours" if theirs else "Accuracy", "percent"), Column("± over seeds", "percent"),
    ]  # fmt: skip
    if theirs:
        columns += [
            Column(theirs.title, "percent"),
            Column(f"{theirs.title} ± over seeds", "percent"),
            Column(f"Ours − {theirs.name}", "points", (4, 6)),
        ]
    rows: list[Row] = []
    for one in known:
        values, plan, printed = list(one.accuracies.values()), one.run.plan, one.beside.reference.accuracy
        mean, spread = fmean(values), pstdev(values) if len(values) > 1 else None
        both = (None,) * 3 if printed is None else (printed.mean, printed.std, mean - printed.mean)
        width = plan.width if plan.network else None  # outputs of somebody's own have none
        rows.append((one.title, len(values), width, plan.epochs, mean, spread, *(both if theirs else ())))
    return ReportTable("accuracy", "Accuracy on the test sets", columns, [Section("", rows)])


def run_table(runs: Sequence[ReportedRun]) -> ReportTable:
    """What each run is made of."""
    columns = [
        Column("Trained on"), Column("Preset"), Column("Network"), Column("Seeds"), Column("Test rows", "count"),
        Column("OoD sets (rows)"), Column("Commit"),
    ]  # fmt: skip
    rows: list[Row] = []
    for one in runs:
        plan, board = one.run.plan, one.board
        sets = ", ".join(f"{name} ({board.n_ood(name):,})" for name in board.ood_sets)
        network = f"{plan.network}, width {plan.width}, recipe {plan.recipe}" if plan.network else ""
        seeds = ", ".join(map(str, board.seeds))
        commit = str(one.run.made_by.get("commit") or "")[:10]
        rows.append((one.title, plan.name, network, seeds, board.n_id(), sets, commit))
    return ReportTable("runs", "Runs", columns, [Section("", rows)])
