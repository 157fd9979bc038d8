"""The tables of a report over one run or several: averages best first, every OoD set, verdicts, settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev

from normscale.bench.experiments.methods import find_method, title_of
from normscale.bench.experiments.stress_result import RULE, StressResult, summarise
from normscale.bench.report.fitted_on import NOT_ON_OOD, fitted_on, parameters_of
from normscale.bench.report.paired import ALL_SETS, Comparison
from normscale.bench.report.published import ALL, FAR, NEAR, OodGroupReference
from normscale.bench.report.runs import ReportedRun, n_unfinished, not_measured
from normscale.bench.report.table import Column, ReportTable, Row, Section, Value, best_of
from normscale.detectors.base import Setting
from normscale.errors import InvalidInput, UnknownDetector
from normscale.metrics import METRICS

SETTINGS = {
    Setting.FROZEN.value: "Static",
    Setting.STREAM.value: "Streamed",
    Setting.PER_CLASS.value: "Ranked per predicted class",
}
"""How a method is measured, as a heading."""
APART = (
    "Static: every input is scored by itself, as `fit` and `score` do. Streamed: statistics also learn, without "
    "labels, from the rows before, here a shuffled mixture of the test set and one OoD set. The two are not measured "
    "alike."
)
PER_CLASS_NOTE = (
    "Ranked per predicted class: the mean of one ranking for each class. It forgives scores that mean different things "
    "for different classes, and cannot be compared with one ranking of all inputs."
)
AUROC = "auroc"
_LEFT_TO_DETAILS = ("aupr_in", "fpr95_in")
"""Metrics that only the tables of every OoD set have."""
OVER_SEEDS, OVER_SETS = "± over seeds", "± over OoD sets"
_SPREADS = {
    OVER_SEEDS: "how much another training changes the average (population standard deviation of the seeds' means)",
    OVER_SETS: "how much the OoD sets differ (population standard deviation of the sets' means)",
}


def metric_title(metric: str) -> str:
    """A metric over a column, with the direction that is better.

    Examples
    --------
    >>> metric_title("auroc"), metric_title("fpr95_out")
    ('AUROC ↑', 'FPR95, OoD positive ↓')
    """
    known = METRICS[metric]
    return f"{known.title} {'↑' if known.higher_is_better else '↓'}"


def measured_metrics(one: ReportedRun) -> list[str]:
    """The registered metrics that every cell of a run has."""
    cells = one.board.cells.values()
    return [name for name in METRICS if all(name in cell.metrics for cell in cells)]


def methods_of(runs: Sequence[ReportedRun]) -> list[str]:
    """The methods of all runs, in the order in which they come."""
    return list(dict.fromkeys(method for one in runs for method in (*one.board.methods, *one.planned)))


def setting_of(runs: Sequence[ReportedRun], method: str) -> str:
    """How a method was measured; of one without cells, how it would be."""
    for one in runs:
        for cell in one.board.cells.values():
            if cell.method == method:
                return str(cell.setting)
    try:
        return find_method(method).setting.value
    except (UnknownDetector, InvalidInput):
        return Setting.FROZEN.value


def first_of_each_set(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """One run for every in-distribution set."""
    return list({one.in_set: one for one in reversed(runs)}.values())[::-1]


def averages_table(runs: Sequence[ReportedRun]) -> ReportTable:
    """AUROC over all OoD sets of every run, and their mean over the in-distribution sets; static and streamed apart."""
    firsts = first_of_each_set(runs)
    columns = [Column("Method"), *([Column("Mean", "value")] if len(firsts) > 1 else [])]
    columns += [Column(one.title, "value") for one in runs]

    def row(method: str) -> Row:
        numbers = {one.title: _average(one, AUROC, method) for one in runs}
        known = [value for one in firsts if (value := numbers[one.title]) is not None]
        mean = fmean(known) if len(known) == len(firsts) else None
        return (title_of(method), *([mean] if len(firsts) > 1 else []), *numbers.values())

    notes = ["Mean AUROC over all OoD sets of a run; best first.", APART]
    if 1 < len(firsts) < len(runs):
        notes.append(f"Mean: without {', '.join(one.title for one in runs if one not in firsts)}.")
    sections = _by_setting(runs, row, dict.fromkeys(range(1, len(columns)), True))
    return ReportTable("averages", "All methods on all in-distribution sets", columns, sections, notes, "statistics")


def _average(one: ReportedRun, metric: str, method: str) -> float | None:
    found = one.board.average(metric, method)
    return None if found is None else found.mean


def _by_setting(
    runs: Sequence[ReportedRun],
    row: Callable[[str], Row],
    ranked: Mapping[int, bool],
    rank: Callable[[str], Sequence[Value]] | None = None,
) -> list[Section]:
    """A section for every setting, best first by ``rank``, or by the numbers of the row; what has none comes last."""
    sections = []
    for setting, heading in SETTINGS.items():
        made = {method: row(method) for method in methods_of(runs) if setting_of(runs, method) == setting}
        if made:
            order = sorted(made, key=lambda one: descending(made[one][1:] if rank is None else rank(one)))
            rows = [made[method] for method in order]
            best: set[tuple[int, int]] = set()
            for place, highest in ranked.items():
                best |= best_of({(i, place): one[place] for i, one in enumerate(rows)}, highest=highest)
            sections.append(Section(heading, rows, frozenset(best)))
    return sections


def descending(values: Sequence[Value]) -> tuple[tuple[bool, float], ...]:
    """A key that sorts the highest first and what is missing last."""
    return tuple((not isinstance(one, (int, float)), -one if isinstance(one, (int, float)) else 0.0) for one in values)


def comparison_table(
    one: ReportedRun, name: str, groups: OodGroupReference | None = None, *, details: bool = False
) -> ReportTable:
    """Every method of a run, averaged over the OoD sets, best first; with ``groups`` also over near and far sets."""
    board, block = one.board, one.board.block
    left_out = _LEFT_TO_DETAILS if len(board.ood_sets) > 1 else ()
    metrics = [metric for metric in measured_metrics(one) if metric not in (AUROC, *left_out)]
    spreads = {OVER_SEEDS: len(block.seeds) > 1, OVER_SETS: len(block.ood_sets) > 1}
    shown = [title for title, there in spreads.items() if there]
    known = {} if groups is None else {g: groups.members(one.in_set, g, block.ood_sets) for g in (NEAR, FAR)}
    near_far = [group for group, sets in known.items() if sets]
    published = {} if groups is None else groups.published
    has_published = any((one.in_set, method) in published for method in board.methods)
    columns = [
        Column("Method"),
        Column(metric_title(AUROC), "value"),
        *(Column(title, "spread") for title in shown),
        *(Column(f"{group.capitalize()} AUROC ↑", "value") for group in near_far),
        *(Column(metric_title(metric), "value") for metric in metrics),
        *([Column("Published near", "value"), Column("Published far", "value")] if has_published else []),
        *([Column("Reads"), Column("Remark")] if details else []),
    ]

    def row(method: str) -> Row:
        average = board.average(AUROC, method)
        spread = {} if average is None else {OVER_SEEDS: average.over_seeds, OVER_SETS: average.over_sets}
        means = [board.average(AUROC, method, known[group]) for group in near_far]
        theirs = published.get((one.in_set, method))
        return (
            title_of(method),
            None if average is None else average.mean,
            *(spread.get(title) for title in shown),
            *(None if mean is None else mean.mean for mean in means),
            *(_average(one, metric, method) for metric in metrics),
            *(((None, None) if theirs is None else (theirs.near, theirs.far)) if has_published else ()),
            *((_reads(method), _remark(one, method, groups)) if details else ()),
        )

    higher = {1: True}
    for place, column in enumerate(columns):
        if column.kind == "value":
            higher[place] = not column.title.endswith("↓")
    notes = [_what_is_averaged(one), *(f"{title}: {_SPREADS[title]}." for title in shown), APART]
    if lacking := [title_of(name) for name in board.methods if name not in block.methods]:
        notes.append(f"Without an average, because cells are missing: {', '.join(lacking)}.")
    if groups is not None:
        notes += _group_notes(one, groups, has_published=has_published)
    notes += [PER_CLASS_NOTE] if board.per_class else []
    return ReportTable(name, "All methods, averaged over the OoD sets", columns, _by_setting([one], row, higher), notes,
                       "statistics")  # fmt: skip


def _what_is_averaged(one: ReportedRun) -> str:
    block = one.board.block
    sets = f"{count(len(block.ood_sets), 'OoD set')} ({', '.join(block.ood_sets)})"
    return f"Averages over {sets}" + (f" and {count(len(block.seeds), 'seed')}." if one.board.trained else ".")


def _group_notes(one: ReportedRun, groups: OodGroupReference, *, has_published: bool) -> list[str]:
    block, defined = one.board.block.ood_sets, groups.groups_of(one.in_set)
    notes = []
    for group in (NEAR, FAR):
        there, absent = groups.members(one.in_set, group, block), groups.absent(one.in_set, group, block)
        text = f"{group.capitalize()}: {', '.join(there) or 'none'}"
        notes.append(f"{text}; not measured: {', '.join(absent)}." if absent else f"{text}.")
    notes[-1] += f" Groups by {defined.defined_by}."
    if has_published:
        notes.append(f"Published: {groups.source}. Other networks and sets: compare the order, not the numbers.")
    return notes if groups.members(one.in_set, ALL, block) else []


def _reads(method: str) -> str:
    try:
        return ", ".join(find_method(method).detector.reads)
    except (UnknownDetector, InvalidInput):
        return ""


def _remark(one: ReportedRun, method: str, groups: OodGroupReference | None) -> str:
    if method not in one.board.block.methods:
        return f"not measured: {one.run.every_failure().get(method, 'not on every OoD set and network.')}"
    return "" if groups is None else groups.remarks.get(method, "")


def per_set_table(one: ReportedRun, name: str) -> ReportTable:
    """A row for every method, a column for every OoD set with its share of the stream; a section for every metric."""
    board = one.board
    columns = [Column("Method")]
    columns += [Column(f"{ood_set} ({100 * one.share(ood_set):.0f} % OoD)", "value") for ood_set in board.ood_sets]
    sections: list[Section] = []
    for metric in measured_metrics(one):
        higher = METRICS[metric].higher_is_better

        def row(method: str, metric: str = metric) -> Row:
            means = [board.mean(metric, method, ood_set) for ood_set in board.ood_sets]
            return (title_of(method), *(None if mean is None else mean.mean for mean in means))

        def rank(method: str, metric: str = metric, sign: float = 1.0 if higher else -1.0) -> list[Value]:
            average = _average(one, metric, method)
            return [None if average is None else sign * average]

        sections += [
            section._replace(title=f"{metric_title(metric)}, {section.title.lower()}")
            for section in _by_setting([one], row, dict.fromkeys(range(1, len(columns)), higher), rank)
        ]
    notes = ["In brackets: the share of OoD rows in the stream of the test set and this OoD set."]
    notes += ["Means over seeds."] if len(board.seeds) > 1 else []
    return ReportTable(name, "Every OoD set", columns, sections, notes)


def published_table(one: ReportedRun, name: str) -> ReportTable | None:
    """Ours beside the reference's, averaged over the OoD sets that both have; None without a reference."""
    theirs = one.beside.reference
    if not one.beside.is_there:
        return None
    columns = [
        Column("Method"), Column("Ours", "value"), Column(theirs.title, "value"),
        Column(f"Ours − {theirs.name}", "difference", (1, 2)),
    ]  # fmt: skip
    sections = []
    for metric in measured_metrics(one):
        rows: list[Row] = []
        for method in one.board.methods:
            side = one.beside.average(metric, method)
            if side is not None:
                rows.append((title_of(method), side.ours, side.theirs, side.difference))
        if rows:
            rows.sort(key=lambda row, sign=1 if METRICS[metric].higher_is_better else -1: descending(  # type: ignore[misc]
                [sign * float(row[1] or 0.0)]))  # fmt: skip
            sections.append(Section(metric_title(metric), rows))
    notes = [f"Both averages are over the OoD sets that both have: {', '.join(one.shared)}.", *size_notes(one)]
    notes += [note for method, note in theirs.notes.items() if method in one.board.methods]
    return ReportTable(name, f"Beside the {theirs.name}", columns, sections, notes)


def size_notes(one: ReportedRun) -> list[str]:
    """Which OoD sets are smaller or larger than in the reference, and so another share of their streams."""
    theirs, other = one.beside.reference, []
    for name in one.beside.ood_sets:
        here, there = one.board.n_ood(name), one.beside.size(name)
        if there not in (None, here) and there is not None:
            share = "" if theirs.n_id is None else f", {100 * there / (there + theirs.n_id):.0f} % of the stream"
            other.append(f"{name} {here:,}, {100 * one.share(name):.0f} % ({theirs.name} {there:,}{share})")
    return [f"Other sizes than the {theirs.name}'s, so other shares of OoD: {'; '.join(other)}."] if other else []


def expanded_table(one: ReportedRun, name: str) -> ReportTable | None:
    """Every method on every OoD set with spread and reference; None if :func:`per_set_table` says it all."""
    board, beside = one.board, one.beside
    several = len(board.seeds) > 1
    if not several and not beside.is_there:
        return None
    theirs, ours = beside.reference, "Ours" if beside.is_there else "Mean"
    columns = [Column("OoD set"), Column("Share of OoD", "percent"), Column("Method"), Column(ours, "value")]
    columns += [Column(OVER_SEEDS, "spread")] if several else []
    n_own = len(columns)
    if beside.is_there:
        columns += [
            Column(theirs.title, "value"),
            Column(f"{theirs.title} {OVER_SEEDS}", "spread"),
            Column(f"Ours − {theirs.name}", "difference", (3, n_own)),
        ]
    sections = []
    for metric in measured_metrics(one):
        rows: list[Row] = []
        for ood_set in board.ood_sets:
            for method in board.methods:
                mean = board.mean(metric, method, ood_set)
                if mean is None:
                    continue
                printed = beside.value(metric, method, ood_set)
                both = (None,) * 3 if printed is None else (printed.mean, printed.std, mean.mean - printed.mean)
                own = (mean.mean, mean.over_seeds) if several else (mean.mean,)
                rows.append((ood_set, one.share(ood_set), title_of(method), *own, *both[: len(columns) - n_own]))
        sections.append(Section(metric_title(metric), rows))
    return ReportTable(name, "Every method on every OoD set", columns, sections)


def better_than_table(one: ReportedRun, name: str) -> ReportTable | None:
    """The paired comparisons with a verdict for each; None if there are none."""
    found = one.resampled
    if found is None or not found.comparisons or one.subject is None:
        return None
    subject, networks = title_of(one.subject), any(comparison.n_networks > 1 for comparison in found.comparisons)
    sections: dict[str, list[Row]] = {}
    for comparison in found.comparisons:
        sections.setdefault(comparison.ood_set, []).append(_comparison_row(comparison, networks=networks))
    columns = [
        Column("Against"), Column(subject, "value"), Column("Rival", "value"),
        Column("Difference", "difference", (1, 2)), Column("from", "difference"), Column("to", "difference"),
        Column("Resamples won", "percent"),
        *([Column("Networks won")] if networks else []), Column(f"{subject} is"),
    ]  # fmt: skip
    notes = [
        f"AUROC. From, to: the {100 * found.level:g} % interval of the difference from {found.resamples:,} resamples "
        "of the test rows, the same rows for both methods and all networks (paired bootstrap).",
        "Better, worse: the interval leaves 0 out" + (" and every network agrees." if networks else "."),
        "Only rows are resampled: another training, or another order of the stream, is not part of the interval.",
        "Many comparisons are made at once: about one in twenty leaves 0 out by chance.",
    ]
    made = [Section(title, rows) for title, rows in sections.items()]
    return ReportTable(name, f"Is {subject} better?", columns, made, notes, section_column="OoD set")


def _comparison_row(one: Comparison, *, networks: bool) -> Row:
    numbers = (one.auroc, one.rival_auroc, one.difference, one.low, one.high, one.wins)
    won = (f"{one.networks_won} of {one.n_networks}",) if networks else ()
    return (title_of(one.rival), *numbers, *won, one.verdict)


def n_summed_up(table: ReportTable) -> int:
    """How many sections stand open: that of all OoD sets, or the first."""
    return 1 if table.sections[0].title == ALL_SETS else len(table.sections)


def accuracy_table(runs: Sequence[ReportedRun]) -> ReportTable | None:
    """Share of right answers of the networks of every run; None if none is known."""
    known = [one for one in runs if one.accuracies]
    if not known:
        return None
    theirs = next((one.beside.reference for one in known if one.beside.reference.accuracy is not None), None)
    several = any(len(one.accuracies) > 1 for one in known)
    columns = [Column("In-distribution set"), Column("Networks", "count"), Column("Accuracy", "percent")]
    columns += [Column(OVER_SEEDS, "percent"), Column("lowest", "percent"), Column("highest", "percent")] * several
    n_own = len(columns)
    if theirs is not None:
        columns += [Column(theirs.title, "percent"), Column(f"{theirs.title} {OVER_SEEDS}", "percent"),
                    Column(f"Ours − {theirs.name}", "points", (2, n_own))]  # fmt: skip
    rows: list[Row] = []
    for one in known:
        values, printed = list(one.accuracies.values()), one.beside.reference.accuracy
        mean = fmean(values)
        spread = (pstdev(values), min(values), max(values)) if len(values) > 1 else (None, None, None)
        both = (None,) * 3 if printed is None else (printed.mean, printed.std, mean - printed.mean)
        rows.append((one.title, len(values), mean, *(spread if several else ()), *(both if theirs else ())))
    return ReportTable("accuracy", "Accuracy on the test sets", columns, [Section("", rows)])


def ood_set_table(one: ReportedRun, name: str) -> ReportTable:
    """What each OoD set was made of, its share of the stream, and why one is missing."""
    missing, board, theirs = one.run.missing(), one.board, one.beside.reference
    columns = [Column("OoD set"), Column("Rows", "count"), Column("Share of OoD", "percent")]
    if one.beside.is_there:
        columns += [Column(f"Rows in the {theirs.name}", "count"), Column(f"Share in the {theirs.name}", "percent")]
    columns += [Column("Cells finished"), Column("Remark")]
    rows: list[Row] = []
    names = dict.fromkeys((*one.run.plan.ood, *(theirs.sizes if one.beside.is_there else ())))
    for ood_set in names:
        done = sum(key[1] == ood_set for key in board.cells)
        sizes: list[Value] = [board.n_ood(ood_set), one.share(ood_set)] if done else [None, None]
        if one.beside.is_there:
            there = one.beside.size(ood_set)
            sizes += [there, None if there is None or theirs.n_id is None else there / (there + theirs.n_id)]
        to_come = n_unfinished(one, [ood_set]) if ood_set in one.run.plan.ood else 0
        if to_come:
            remark = "not finished" if done else "not begun"
        elif not done:
            remark = "not measured here"
        else:
            without = ", ".join(map(title_of, not_measured(one, ood_set)))
            remark = f"without {without}" if without else ""
        rows.append((ood_set, *sizes, f"{done} of {done + to_come}", missing.get(ood_set) or remark))
    notes = [f"The in-distribution test set has {board.n_id():,} rows."]
    return ReportTable(name, "OoD sets", columns, [Section("", rows)], notes)


def method_table(runs: Sequence[ReportedRun]) -> ReportTable:
    """How each method was measured, what it was fitted and tuned on, and with which parameters."""
    boards = [one.board for one in runs]
    rows: list[Row] = [
        (title_of(method), SETTINGS[setting_of(runs, method)], _reads(method), fitted_on(method),
         parameters_of(boards, method))
        for method in dict.fromkeys(method for board in boards for method in board.methods)
    ]  # fmt: skip
    columns = [Column("Method"), Column("Measured"), Column("Reads"), Column("Fitted on"), Column("Parameters")]
    return ReportTable("methods", "Methods", columns, [Section("", rows)], [NOT_ON_OOD])


def run_table(runs: Sequence[ReportedRun]) -> ReportTable:
    """What each run is made of."""
    columns = [
        Column("In-distribution set"), Column("Run"), Column("Network"), Column("Seeds"), Column("Test rows", "count"),
        Column("OoD sets (rows)"), Column("Commit"),
    ]  # fmt: skip
    rows: list[Row] = []
    for one in runs:
        plan, board = one.run.plan, one.board
        sets = ", ".join(f"{name} ({board.n_ood(name):,})" for name in board.ood_sets)
        epochs = f", {count(plan.epochs, 'epoch')}" if plan.epochs else ""
        network = f"{plan.network}, width {plan.width}, recipe {plan.recipe}{epochs}" if plan.network else ""
        commit = str(one.run.made_by.get("commit") or "")[:10]
        rows.append((one.title, plan.name, network, ", ".join(map(str, board.seeds)), board.n_id(), sets, commit))
    return ReportTable("runs", "Runs", columns, [Section("", rows)])


def stress_table(result: StressResult) -> ReportTable:
    """What each method risks and gains over all kinds of streams, with a verdict by a stated rule."""
    columns = [
        Column("Method"), Column("Mean AUROC ↑", "value"), Column("Mean FPR95 ↓", "value"),
        Column("Worst against the best static", "difference"), Column("Best against it", "difference"),
        Column("Streams below"), Column("Verdict"),
    ]  # fmt: skip
    summaries = summarise(result)
    rows: list[Row] = [
        (result.titles[one.method], one.mean_auroc, one.mean_fpr95_out, one.worst, one.best,
         f"{one.kinds_below} of {one.n_kinds}", one.verdict)
        for one in summaries
    ]  # fmt: skip
    notes = [RULE]
    if skipped := result.skipped():
        notes.append(f"{sum(skipped.values())} streams could not be made for want of rows: {next(iter(skipped))}.")
    if incomplete := result.incomplete():
        notes.append(f"Left out, for want of numbers: {', '.join(result.titles[name] for name in incomplete)}.")
    return ReportTable("stress", "Other streams", columns, [Section("", rows)], notes)


def count(number: int, noun: str) -> str:
    """A number and its noun.

    Examples
    --------
    >>> count(1, "seed"), count(3, "OoD set")
    ('1 seed', '3 OoD sets')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def slug(title: str) -> str:
    """A title as part of a file's name.

    Examples
    --------
    >>> slug("CIFAR-10 (wide)")
    'cifar_10_wide'
    """
    return re.sub("[^a-z0-9]+", "_", title.lower()).strip("_")
