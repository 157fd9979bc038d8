"""The tables of a report over one run or several: averages best first, every OoD set, verdicts, settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, pstdev

from normscale.bench.experiments.methods import known_method, parameter_text, title_of
from normscale.bench.experiments.stress_result import RULE, StressResult, summarise
from normscale.bench.report.paired import ALL_SETS
from normscale.bench.report.published import PublishedValue
from normscale.bench.report.runs import ReportedRun, n_unfinished, not_measured
from normscale.bench.report.table import Column, Mean, ReportTable, Row, Value, table_of
from normscale.detectors.base import Setting
from normscale.metrics import METRICS
from normscale.outputs import ATTACKED, PERTURBED_LOGITS

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
NOT_ON_OOD = (
    "No parameter was chosen here by how a method does on OoD inputs; defaults are those of the methods' authors."
)
AUROC = "auroc"
OVER_SEEDS, OVER_SETS = "± over seeds", "± over OoD sets"
_SPREAD_NOTES = {
    OVER_SEEDS: "how much another training changes the average (population standard deviation of the seeds' means)",
    OVER_SETS: "how much the OoD sets differ (population standard deviation of the sets' means)",
}
_NO_NUMBERS = PublishedValue(None, None)  # type: ignore[arg-type]

MethodColumn = tuple[Column, Callable[[str], Value]]
"""A column, and what stands in it for a method."""


def metric_title(metric: str) -> str:
    """A metric over a column, with the direction that is better."""
    return f"{METRICS[metric].title} {'↑' if METRICS[metric].higher_is_better else '↓'}"


def measured_metrics(one: ReportedRun) -> list[str]:
    """The registered metrics that every cell of a run has."""
    return [name for name in METRICS if all(name in cell.metrics for cell in one.board.cells.values())]


def first_of_each_set(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """One run for every in-distribution set."""
    return list({one.run.plan.in_set: one for one in reversed(runs)}.values())[::-1]


def setting_of(runs: Sequence[ReportedRun], method: str) -> str:
    """How a method was measured; of one without cells, how it would be."""
    known = next((one.board.settings[method] for one in runs if method in one.board.settings), None)
    method_found = known_method(method)
    return known or (Setting.FROZEN.value if method_found is None else method_found.setting.value)


def _by_setting(
    runs: Sequence[ReportedRun], columns: Sequence[MethodColumn], rank: Callable[[str], Sequence[Value]]
) -> dict[str, list[Row]]:
    """Rows for every setting, highest rank first; what has none comes last."""
    methods = dict.fromkeys(method for one in runs for method in (*one.board.methods, *one.run.plan.methods))
    return by_setting(
        methods, lambda method: setting_of(runs, method), lambda method: [value(method) for _, value in columns], rank
    )


def by_setting(
    methods: Iterable[str],
    setting: Callable[[str], str],
    row: Callable[[str], Iterable[Value]],
    rank: Callable[[str], Sequence[Value]],
) -> dict[str, list[Row]]:
    """Rows of methods under the heading of their setting, highest rank first; what has none comes last."""
    order = sorted(methods, key=lambda method: [(value is None, -float(value or 0.0)) for value in rank(method)])
    sections = {
        heading: [tuple(row(method)) for method in order if setting(method) == name]
        for name, heading in SETTINGS.items()
    }
    return {heading: rows for heading, rows in sections.items() if rows}


def averages_table(runs: Sequence[ReportedRun]) -> ReportTable:
    """AUROC over all OoD sets of every run, and their mean over the in-distribution sets; static and streamed apart."""
    firsts = first_of_each_set(runs)

    def mean(method: str) -> float | None:
        numbers = [one.board.average(AUROC, method).mean for one in firsts]
        known = [number for number in numbers if number is not None]
        return fmean(known) if len(known) == len(firsts) > 1 else None

    columns: list[MethodColumn] = [(Column("Method"), title_of), (Column("Mean", "ranked"), mean)]
    columns += [(Column(one.title, "ranked"), _mean(one, AUROC)) for one in runs]
    notes = ["Mean AUROC over all OoD sets of a run; best first.", APART]
    notes += [f"{OVER_SEEDS}: {_SPREAD_NOTES[OVER_SEEDS]}."] if any(len(one.board.seeds) > 1 for one in runs) else []
    if any(one.board.trained for one in runs):
        notes.append(f"Networks: {', '.join(f'{one.title} {len(one.board.seeds)}' for one in runs)}.")
    if 1 < len(firsts) < len(runs):
        notes.append(f"Mean: without {', '.join(one.title for one in runs if one not in firsts)}.")
    sections = _by_setting(runs, columns, lambda method: [value(method) for _, value in columns[1:]])
    title = "All methods on all in-distribution sets"
    return table_of("averages", title, [column for column, _ in columns], sections, notes, "statistics")


def _mean(one: ReportedRun, metric: str) -> Callable[[str], Value]:
    """An average over the OoD sets, shown with how much another training changes it."""
    return lambda method: Mean.of(*one.board.average(metric, method)[:2])


def comparison_table(one: ReportedRun, name: str) -> ReportTable:
    """Every method of a run, averaged over the OoD sets, best first."""
    board, block = one.board, one.board.block
    left_out = ("aupr_in", "fpr95_in") if len(board.ood_sets) > 1 else ()
    metrics = [metric for metric in measured_metrics(one) if metric not in (AUROC, *left_out)]
    ends = {} if one.resampled is None else one.resampled.intervals
    columns: list[MethodColumn] = [
        (Column("Method"), title_of),
        (Column(metric_title(AUROC), "ranked"), lambda method: board.average(AUROC, method).mean),
        (Column("from", "value"), lambda method: ends.get(method, (None, None))[0]),
        (Column("to", "value"), lambda method: ends.get(method, (None, None))[1]),
        (Column(OVER_SEEDS, "spread"), lambda method: board.average(AUROC, method).over_seeds),
        (Column(OVER_SETS, "spread"), lambda method: board.average(AUROC, method).over_sets),
        *((Column(metric_title(metric), "ranked"), _mean(one, metric)) for metric in metrics),
    ]
    sections = _by_setting([one], columns, lambda method: [board.average(AUROC, method).mean])
    made = table_of(
        name, "All methods, averaged over the OoD sets", [c for c, _ in columns], sections, (), "statistics"
    )
    titles = {column.title for column in made.columns}
    seeds = f" and {count(len(block.seeds), 'seed')}" if board.trained else ""
    notes = [f"Averages over {count(len(block.ood_sets), 'OoD set')} ({', '.join(block.ood_sets)}){seeds}."]
    notes += ["From, to: the 95 % interval of the AUROC from resampled rows."] if "from" in titles else []
    notes += [f"{title}: {text}." for title, text in _SPREAD_NOTES.items() if title in titles]
    notes.append(APART)
    if lacking := [title_of(method) for method in board.methods if method not in block.methods]:
        notes.append(f"Without an average, because cells are missing: {', '.join(lacking)}.")
    notes += [PER_CLASS_NOTE] if Setting.PER_CLASS.value in board.settings.values() else []
    return made._replace(notes=notes)


def reads_of(method: str) -> str:
    """The arrays that a method's detector reads; empty for a method that no detector has."""
    found = known_method(method)
    return "" if found is None else ", ".join(found.detector.reads)


def per_set_table(one: ReportedRun, file: str) -> ReportTable:
    """A row for every method, a column for every OoD set with its share of the stream; a section for every metric."""
    board = one.board
    sections: dict[str, list[Row]] = {}
    for metric in measured_metrics(one):
        sign = 1.0 if METRICS[metric].higher_is_better else -1.0

        def rank(method: str, metric: str = metric, sign: float = sign) -> list[Value]:
            average = board.average(metric, method).mean
            return [None if average is None else sign * average]

        def on(ood_set: str, metric: str = metric) -> Callable[[str], Value]:
            return lambda method: Mean.of(*board.mean(metric, method, ood_set)[:2])

        columns: list[MethodColumn] = [(Column("Method"), title_of)]
        columns += [
            (Column(f"{name} ({100 * board.share(name):.0f} % OoD)", "ranked"), on(name)) for name in board.ood_sets
        ]
        made = _by_setting([one], columns, rank)
        sections |= {f"{metric_title(metric)}, {heading.lower()}": rows for heading, rows in made.items()}
    notes = ["In brackets: the share of OoD rows in the stream of the test set and this OoD set."]
    notes += ["Means over seeds, ± their population standard deviation."] if len(board.seeds) > 1 else []
    return table_of(file, "Every OoD set", [column for column, _ in columns], sections, notes)


def expanded_table(one: ReportedRun, name: str) -> ReportTable | None:
    """Every method on every OoD set and over those that the reference has too, with spread and reference.

    None if :func:`per_set_table` says it all.
    """
    board, reference = one.board, one.reference
    if len(board.seeds) < 2 and not reference.name:
        return None
    theirs, over = reference.name.capitalize(), f"mean of {len(one.shared)}"
    columns = [
        Column("Method"), Column("OoD set"), Column("Share of OoD", "percent"),
        Column("Ours" if theirs else "Mean", "value"), Column(OVER_SEEDS, "spread"), Column(theirs, "value"),
        Column(f"{theirs} {OVER_SEEDS}", "spread"), Column(f"Ours − {reference.name}", "difference"),
    ]  # fmt: skip
    averages: dict[str, list[Row]] = {}
    every: dict[str, list[Row]] = {}
    for metric in measured_metrics(one):
        rows: list[Row] = []
        for method in board.methods:
            mean, printed = one.average(metric, method), one.published(metric, method)
            if mean.mean is not None and (printed is not None or not theirs):
                rows.append((title_of(method), over, None, *_beside(mean.mean, mean.within_sets, printed)))
        sign = -1.0 if METRICS[metric].higher_is_better else 1.0
        averages[f"{metric_title(metric)}, averages"] = sorted(rows, key=lambda row: sign * float(row[3] or 0.0))
        every[f"{metric_title(metric)}, every OoD set"] = [
            (title_of(method), ood_set, board.share(ood_set),
             *_beside(mean.mean, mean.over_seeds, reference.values.get((ood_set, method, metric))))
            for ood_set in board.ood_sets
            for method in board.methods
            if (mean := board.mean(metric, method, ood_set)).mean is not None
        ]  # fmt: skip
    notes = [f"Averages are over {', '.join(one.shared)}."]
    if len(board.seeds) > 1:
        notes.append(f"{OVER_SEEDS}: population standard deviation. Of an average: the mean of the sets' deviations.")
    notes += [note for method, note in reference.notes.items() if method in board.methods]
    sections = {title: rows for title, rows in (averages | every).items() if rows}
    title = f"Beside the {reference.name}" if theirs else "Every method on every OoD set"
    return table_of(name, title, columns, sections, notes)


def _beside(mean: float, spread: float | None, printed: PublishedValue | None) -> Row:
    """A number and its spread, the published ones, and the difference of the two numbers as they are shown."""
    theirs = printed or _NO_NUMBERS
    return (mean, spread, *theirs, None if printed is None else round(mean, 4) - round(printed.mean, 4))


def better_than_table(one: ReportedRun, name: str) -> ReportTable | None:
    """The paired comparisons with a verdict for each; None if there are none."""
    resampled, subject = one.resampled, one.board.subject
    if resampled is None or not resampled.comparisons or subject is None:
        return None
    subject, several = title_of(subject), any(comparison.n_networks > 1 for comparison in resampled.comparisons)
    sections: dict[str, list[Row]] = {}
    for pair in resampled.comparisons:
        won = f"{pair.networks_won} of {pair.n_networks}" if several else None
        difference = round(pair.auroc, 4) - round(pair.rival_auroc, 4)
        row = (title_of(pair.rival), pair.auroc, pair.rival_auroc, difference, pair.low, pair.high, pair.wins, won)
        sections.setdefault(pair.ood_set, []).append((*row, pair.verdict))
    columns = [
        Column("Against"), Column(subject, "value"), Column("Rival", "value"), Column("Difference", "difference"),
        Column("from", "difference"), Column("to", "difference"), Column("Resamples won", "percent"),
        Column("Networks won"), Column(f"{subject} is"),
    ]  # fmt: skip
    notes = [
        f"AUROC. From, to: the {100 * resampled.level:g} % interval of the difference from {resampled.resamples:,} "
        "resamples of the test rows, the same rows for both methods and all networks (paired bootstrap).",
        "Better, worse: the interval leaves 0 out" + (" and every network agrees." if several else "."),
        "Only rows are resampled: another training, or another order of the stream, is not part of the interval.",
        "Many comparisons are made at once: about one in twenty leaves 0 out by chance.",
    ]
    return table_of(name, f"Is {subject} better?", columns, sections, notes, "OoD set")


def n_summed_up(table: ReportTable) -> int:
    """How many sections are open: that of all OoD sets, or all."""
    return 1 if table.sections[0].title == ALL_SETS else len(table.sections)


def accuracy_table(runs: Sequence[ReportedRun]) -> ReportTable | None:
    """Share of right answers of the networks of every run; None if none is known."""
    theirs = next((one.reference.name for one in runs if one.reference.accuracy is not None), "")
    rows: list[Row] = []
    for one in runs:
        if values := list(one.accuracies.values()):
            spread = (pstdev(values), min(values), max(values)) if len(values) > 1 else (None, None, None)
            mean, _, *both = _beside(fmean(values), None, one.reference.accuracy)
            rows.append((one.title, len(values), mean, *spread, *both))
    columns = [
        Column("In-distribution set"), Column("Networks", "count"), Column("Accuracy", "percent"),
        Column(OVER_SEEDS, "percent"), Column("lowest", "percent"), Column("highest", "percent"),
        Column(theirs.capitalize(), "percent"), Column(f"{theirs.capitalize()} {OVER_SEEDS}", "percent"),
        Column(f"Ours − {theirs}", "points"),
    ]  # fmt: skip
    return table_of("accuracy", "Accuracy on the test sets", columns, {"": rows}) if rows else None


def ood_set_table(one: ReportedRun, name: str) -> ReportTable:
    """Size of each OoD set, its share of the stream, both in the reference, and why one is missing."""
    missing, board, theirs, planned = one.run.missing(), one.board, one.reference, one.run.plan.ood
    rows: list[Row] = []
    for ood_set in dict.fromkeys((*planned, *theirs.sizes)):
        done = sum(key[1] == ood_set for key in board.cells)
        to_come = n_unfinished(one, [ood_set]) if ood_set in planned else 0
        without = ", ".join(map(title_of, not_measured(one, ood_set)))
        if to_come or not done:
            remark = ("not finished" if done else "not begun") if to_come else "not measured here"
        else:
            remark = f"without {without}" if without else ""
        sizes: Row = (board.n_ood(ood_set), board.share(ood_set)) if done else (None, None)
        both = (theirs.sizes.get(ood_set), theirs.share(ood_set))
        rows.append((ood_set, *sizes, *both, f"{done} of {done + to_come}", missing.get(ood_set) or remark))
    columns = [
        Column("OoD set"), Column("Rows", "count"), Column("Share of OoD", "percent"),
        Column(f"Rows in the {theirs.name}", "count"), Column(f"Share in the {theirs.name}", "percent"),
        Column("Cells finished"), Column("Remark"),
    ]  # fmt: skip
    there = f", in the {theirs.name} {theirs.n_id:,}" if theirs.n_id else ""
    notes = [f"The in-distribution test set has {board.n_id():,} rows{there}."]
    return table_of(name, "OoD sets", columns, {"": rows}, notes)


def method_table(runs: Sequence[ReportedRun]) -> ReportTable:
    """How each method was measured, what it was fitted on, and with which parameters."""
    cells = [cell for one in runs for cell in one.board.cells.values()]
    rows: list[Row] = []
    for method in dict.fromkeys(method for one in runs for method in one.board.methods):
        values: dict[str, dict[str, None]] = {}
        for name, value in (item for cell in cells if cell.method == method for item in cell.parameters.items()):
            values.setdefault(name, {})[parameter_text(value)] = None
        parameters = ", ".join(f"{name} {' or '.join(texts)}" for name, texts in values.items()) or "none"
        rows.append(
            (title_of(method), SETTINGS[setting_of(runs, method)], reads_of(method), fitted_on(method), parameters)
        )
    columns = [Column("Method"), Column("Measured"), Column("Reads"), Column("Fitted on"), Column("Parameters")]
    return table_of("methods", "Methods", columns, {"": rows}, [NOT_ON_OOD])


def fitted_on(method: str) -> str:
    """What a method learns from before and while it scores; empty for a method that no detector has."""
    found = known_method(method)
    if found is None:
        return ""
    detector, words = found.detector, []
    if detector._needs_fit:
        part = "validation" if detector.about.fitted_on == "validation" else "training"
        attacked = any(name.startswith(ATTACKED) for name in detector._arrays_in_fit)
        words.append(f"{'labelled ' if detector._needs_labels else ''}{part} outputs")
        words[-1] += " and attacks on the training inputs" if attacked else ""
    if PERTURBED_LOGITS in detector.reads:
        words.append("the step epsilon on in-distribution validation pictures")
    if found.setting == Setting.STREAM:
        words.append("then the rows of the test stream as they come, without labels")
    return ", ".join(words) or "nothing"


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
        seeds = ", ".join(map(str, board.seeds)) if board.trained else None
        recipe = f"{network_of(one)}, recipe {plan.recipe}" if plan.network else None
        commit = str(one.run.made_by.get("commit") or "")[:10]
        rows.append((one.title, plan.name, recipe, seeds, board.n_id(), sets, commit))
    return table_of("runs", "Runs", columns, {"": rows})


def network_of(one: ReportedRun) -> str:
    """A run's kind of network, its width and its epochs."""
    plan = one.run.plan
    epochs = f", {count(plan.epochs, 'epoch')}" if plan.epochs else ""
    return f"{plan.network}, width {plan.width}{epochs}" if plan.width else plan.network


def stress_table(result: StressResult) -> ReportTable:
    """What each method risks and gains over all kinds of streams, with a verdict by a stated rule."""
    columns = [
        Column("Method"), Column("Mean AUROC ↑", "value"), Column("Mean FPR95 ↓", "value"),
        Column("Worst against the best static", "difference"), Column("Best against it", "difference"),
        Column("Streams below"), Column("False alarms", "percent"), Column("Changed inputs", "points"),
        Column("Verdict"),
    ]  # fmt: skip
    rows: list[Row] = [
        (result.titles[one.method], one.mean_auroc, one.mean_fpr95_out, one.worst, one.best,
         f"{one.kinds_below} of {one.n_kinds}", one.false_alarms, one.change, one.verdict)
        for one in summarise(result)
    ]  # fmt: skip
    notes = [RULE]
    if result.alarms:
        notes.append(
            "False alarms: the largest share flagged of a stream without OoD rows; nominal is 5 %. Changed inputs: by "
            "how many points more is flagged streamed than frozen when the inputs have changed, at most."
        )
    if skipped := result.skipped():
        notes.append(f"{sum(skipped.values())} streams could not be made for want of rows: {next(iter(skipped))}.")
    if incomplete := result.incomplete():
        notes.append(f"Left out, for want of numbers: {', '.join(result.titles[name] for name in incomplete)}.")
    return table_of("stress", "Other streams", columns, {"": rows}, notes)


def count(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def slug(title: str) -> str:
    """A title as part of a file's name."""
    return re.sub("[^a-z0-9]+", "_", title.lower()).strip("_")
