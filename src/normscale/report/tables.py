"""The tables of a run: averages, every OoD set, accuracies; ours beside published ones, where there are some."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from normscale.experiments.methods import title_of
from normscale.experiments.run_folder import RunFolder
from normscale.report.fitted_on import fitted_on_note
from normscale.report.gaps import n_to_come, not_measured
from normscale.report.reference import BesideReference, Reference
from normscale.report.scoreboard import SHOWN, Scoreboard
from normscale.report.table import Column, ReportTable, Row, Section, best_of

METRIC_TITLES = {
    "auroc": "AUROC ↑",
    "aupr_out": "AUPR, OoD positive ↑",
    "aupr_in": "AUPR, in-distribution positive ↑",
    "fpr95_out": "FPR95, OoD positive ↓",
}
WITH_AUPR_IN = ("auroc", "aupr_out", "aupr_in", "fpr95_out")

OVER_SEEDS, OVER_SETS = "± over seeds", "± over OoD sets"
_SPREADS = {
    OVER_SEEDS: "how much another training changes the average (population standard deviation of the seeds' means over "
    "the OoD sets)",
    OVER_SETS: "how much the OoD sets differ (population standard deviation of the sets' means over the seeds)",
}


def comparison_table(board: Scoreboard, beside: BesideReference) -> ReportTable:
    """Every method, averaged over the OoD sets."""
    return average_table("comparison", "All methods, averaged over the OoD sets", board, beside, board.methods)


def average_table(
    name: str,
    title: str,
    board: Scoreboard,
    beside: BesideReference,
    methods: Sequence[str],
    metrics: Sequence[str] = SHOWN,
) -> ReportTable:
    """Some methods, averaged over the OoD sets, beside the reference."""
    block = board.block
    sides = {(metric, method): beside.average(metric, method) for metric in metrics for method in methods}
    compared, theirs = any(sides.values()), beside.reference
    other_sets = any(side is not None and side.ood_sets != block.ood_sets for side in sides.values())
    columns = [
        Column("Method"),
        Column("Ours" if compared else "Mean", "value"),
        *(Column(title, "spread") for title in _spreads_of(board)),
        *([Column("Ours, same sets", "value")] if other_sets else []),
    ]
    n_own = len(columns) - other_sets
    if compared:
        between = (len(columns) - 1 if other_sets else 1, len(columns))
        columns += [Column(theirs.title, "value"), Column(f"Ours − {theirs.name}", "difference", between)]
    sections = []
    for metric in metrics:
        rows: list[Row] = []
        for method in methods:
            average = board.average(metric, method)
            if average is None:
                continue
            side = sides[metric, method]
            both = (None, None, None) if side is None else (side.ours, side.theirs, side.difference)
            spreads = [spread for spread in average[1:] if spread is not None]
            rows.append(
                (title_of(method), average.mean, *spreads, *both[0 if other_sets else 1 :][: len(columns) - n_own])
            )
        ranked = {(i, 1): row[1] for i, row in enumerate(rows) if row[0] not in _not_ranked(board)}
        sections.append(Section(METRIC_TITLES[metric], rows, best_of(ranked, highest=is_higher_better(metric))))
    sets, seeds = ", ".join(block.ood_sets), ", ".join(map(str, block.seeds))
    n_sets, n_seeds = count(len(block.ood_sets), "OoD set"), count(len(block.seeds), "seed")
    and_seeds = f" and {n_seeds} ({seeds})" if board.trained else ""
    notes = [f"Averages over {n_sets} ({sets}){and_seeds}.", *_spread_notes(board)]
    if left_out := [title_of(one) for one in methods if one not in block.methods]:
        why = "too few of their cells are finished" if board.trained else "not every OoD set gives them a number"
        notes.append(f"Left out, because {why}: {', '.join(left_out)}.")
    if compared:
        shared = max((side.ood_sets for side in sides.values() if side is not None), key=len)
        notes.append(
            f"The {theirs.name}'s average is recomputed over the OoD sets that both have: {', '.join(shared)}."
        )
        notes += size_notes(board, beside)
    notes += per_class_notes(board, methods)
    notes.append(fitted_on_note([board], methods))
    if compared:
        notes += reference_notes(beside, methods)
    return ReportTable(name, title, columns, sections, notes)


def _spreads_of(board: Scoreboard) -> list[str]:
    """The spreads that an average has: over one seed, or one set, there is none."""
    several = {OVER_SEEDS: len(board.block.seeds) > 1, OVER_SETS: len(board.block.ood_sets) > 1}
    return [title for title, there in several.items() if there]


def _spread_notes(board: Scoreboard) -> list[str]:
    titles = _spreads_of(board)
    text = " ".join(f"{title}: {_SPREADS[title]}." for title in titles)
    if len(board.block.seeds) == 1:
        text = text.replace("means over the seeds", "numbers")
    return [f"{text} They are never mixed." if len(titles) > 1 else text] if titles else []


def per_set_table(board: Scoreboard, metrics: Sequence[str] = SHOWN) -> ReportTable:
    """A row for every method, a column for every OoD set."""
    columns = [Column("Method"), *(Column(name, "value") for name in board.ood_sets)]
    ranked = [i for i, method in enumerate(board.methods) if method not in board.per_class]
    sections = []
    for metric in metrics:
        rows: list[Row] = []
        for method in board.methods:
            means = [board.mean(metric, method, name) for name in board.ood_sets]
            rows.append((title_of(method), *(None if mean is None else mean.mean for mean in means)))
        best: set[tuple[int, int]] = set()
        for j in range(1, len(columns)):
            best |= best_of({(i, j): rows[i][j] for i in ranked}, highest=is_higher_better(metric))
        sections.append(Section(METRIC_TITLES[metric], rows, frozenset(best)))
    means_over = "Means over seeds; bold" if len(board.seeds) > 1 else "Bold"
    notes = [f"{means_over} is the best method on each set.", *seed_notes(board)]
    notes += per_class_notes(board, board.methods)
    return ReportTable("per_set", "Every OoD set at a glance", columns, sections, notes)


def expanded_table(board: Scoreboard, beside: BesideReference) -> ReportTable | None:
    """Every method on every OoD set with spread and reference; None if :func:`per_set_table` says it all."""
    several = len(board.seeds) > 1
    if not several and not beside.is_there:
        return None
    theirs, ours = beside.reference, "Ours" if beside.is_there else "Mean"
    columns = [Column("OoD set"), Column("Method"), Column(ours, "value")]
    columns += [Column(OVER_SEEDS, "spread")] if several else []
    n_own = len(columns)
    if beside.is_there:
        columns += [
            Column(theirs.title, "value"),
            Column(f"{theirs.title} {OVER_SEEDS}", "spread"),
            Column(f"Ours − {theirs.name}", "difference", (2, n_own)),
        ]
    sections = []
    for metric in WITH_AUPR_IN:
        rows: list[Row] = []
        best: set[tuple[int, int]] = set()
        for name in board.ood_sets:
            first = len(rows)
            for method in board.methods:
                mean = board.mean(metric, method, name)
                if mean is None:
                    continue
                printed = beside.value(metric, method, name)
                both = (None,) * 3 if printed is None else (printed.mean, printed.std, mean.mean - printed.mean)
                own = (mean.mean, mean.over_seeds) if several else (mean.mean,)
                rows.append((name, title_of(method), *own, *both[: len(columns) - n_own]))
            ranked = {(i, 2): rows[i][2] for i in range(first, len(rows)) if rows[i][1] not in _not_ranked(board)}
            best |= best_of(ranked, highest=is_higher_better(metric))
        sections.append(Section(METRIC_TITLES[metric], rows, frozenset(best)))
    means_over = "Means over seeds with their population standard deviation; bold" if several else "Bold"
    notes = [f"{means_over} is the best method on each set.", *seed_notes(board)]
    if beside.is_there:
        notes += size_notes(board, beside)
        notes += reference_notes(beside, board.methods)
    return ReportTable("expanded", "Every method on every OoD set", columns, sections, notes)


def accuracy_table(
    accuracies: dict[int, float], in_set: str, reference: Reference | None = None, *, trained: bool = True
) -> ReportTable | None:
    """Share of right answers of every network; None if none is known.

    Without ``trained`` they are outputs of a classifier of which no seed is known, in a table called ``in_set``.
    """
    if not accuracies:
        return None
    theirs = reference or Reference()
    printed = theirs.accuracy
    values = list(accuracies.values())
    several = len(values) > 1
    columns = [Column("Network" if trained else "Outputs"), Column("Accuracy", "percent")]
    columns += [Column(OVER_SEEDS, "percent")] if several else []
    n_own = len(columns)
    if printed is not None:
        columns += [
            Column(theirs.title, "percent"),
            Column(f"{theirs.title} {OVER_SEEDS}", "percent"),
            Column(f"Ours − {theirs.name}", "points", (1, n_own)),
        ]
    mean = fmean(values)
    both = () if printed is None else (printed.mean, printed.std, mean - printed.mean)
    rows: list[Row] = []
    if several:
        rows += [(f"seed {seed}", value, None, *(None for _ in both)) for seed, value in accuracies.items()]
        rows.append((f"mean of {count(len(values), 'network')}", mean, pstdev(values), *both))
    else:
        rows.append((f"seed {next(iter(accuracies))}" if trained else in_set, mean, *both))
    title = f"Accuracy on the test set of {in_set}" if trained else f"Accuracy on {in_set}"
    return ReportTable("accuracy", title, columns, [Section("", rows)])


def ood_set_table(run: RunFolder, board: Scoreboard, beside: BesideReference) -> ReportTable:
    """What each OoD set was made of, and why one is missing."""
    missing = run.missing()
    columns = [Column("OoD set"), Column("Rows", "count")]
    columns += [Column(f"Rows in the {beside.reference.name}", "count")] if beside.is_there else []
    columns += [Column("Cells finished"), Column("Remark")]
    rows: list[Row] = []
    for name in run.plan.ood:
        done = sum(key[1] == name for key in board.cells)
        n_rows = board.n_ood(name) if done else None
        sizes = (n_rows, beside.size(name)) if beside.is_there else (n_rows,)
        if to_come := n_to_come(run, board, [name]):
            remark = "not finished" if done else "not begun"
        else:
            without = ", ".join(map(title_of, not_measured(run, board, name)))
            remark = f"without {without}" if without else ""
        rows.append((name, *sizes, f"{done} of {done + to_come}", missing.get(name) or remark))
    notes = [f"The in-distribution test set has {board.n_id():,} rows."]
    return ReportTable("ood_sets", "OoD sets", columns, [Section("", rows)], notes)


def accuracies_of(run: RunFolder) -> dict[int, float]:
    """Test accuracy by seed: as training found it or, without a record of that, of the outputs on the test set."""
    found = {}
    for seed in run.plan.seeds:
        value = run.training(seed).get("test_accuracy")
        if value is None and run.has_outputs(seed, "test", ["logits"]):
            outputs = run.outputs(seed, "test")
            value = outputs.accuracy if outputs.labels is not None and (outputs.labels >= 0).any() else None
        if value is not None:
            found[seed] = float(value)
    return found


def is_higher_better(metric: str) -> bool:
    """Whether more of a metric is better.

    Examples
    --------
    >>> is_higher_better("auroc"), is_higher_better("fpr95_out")
    (True, False)
    """
    return not metric.startswith("fpr")


def _not_ranked(board: Scoreboard) -> set[str]:
    """Titles of the methods that are no single ranking."""
    return {title_of(method) for method in board.per_class}


def per_class_notes(board: Scoreboard, methods: Sequence[str]) -> list[str]:
    """What must be said about means over one ranking per class."""
    return [
        f"{title_of(method)} is the mean over predicted classes of one ranking each; it forgives scores that mean "
        "different things for different classes, and is not comparable with one ranking of all inputs: it is never "
        "bold."
        for method in methods
        if method in board.per_class
    ]


def reference_notes(beside: BesideReference, methods: Sequence[str]) -> list[str]:
    """What the reference's numbers of these methods need to be said."""
    return [note for method, note in beside.reference.notes.items() if method in methods]


def size_notes(board: Scoreboard, beside: BesideReference) -> list[str]:
    """Which OoD sets are smaller or larger than in the reference."""
    pairs = {name: (board.n_ood(name), beside.size(name)) for name in beside.ood_sets}
    theirs = beside.reference.name
    other = [
        f"{name} {here:,} ({theirs} {there:,})" for name, (here, there) in pairs.items() if there not in (None, here)
    ]
    return [f"Rows differ from the {theirs}'s, which moves AUPR most: {', '.join(other)}."] if other else []


def seed_notes(board: Scoreboard) -> list[str]:
    """Which numbers are of fewer seeds than the others."""
    if len(board.seeds) == 1:
        return []
    fewer = [
        f"{title_of(method)} on {name} ({len(seeds)} of {len(board.seeds)})"
        for name in board.ood_sets
        for method in board.methods
        if 0 < len(seeds := board.seeds_of(method, name)) < len(board.seeds)
    ]
    if not fewer:
        return []
    more = f" and {len(fewer) - 5} more" if len(fewer) > 5 else ""
    return [f"Not every seed is finished: {', '.join(fewer[:5])}{more}."]


def count(number: int, noun: str) -> str:
    """A number and its noun.

    Examples
    --------
    >>> count(1, "seed"), count(3, "OoD set")
    ('1 seed', '3 OoD sets')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
