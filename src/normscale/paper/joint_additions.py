"""What the paper adds to a report over several runs: its numbers, its table of thresholds, and its claims, checked."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from normscale.experiments.methods import title_of
from normscale.experiments.run_folder import RunFolder
from normscale.paper.audit.findings import DIFFERS, UNCHECKED, Finding, listed
from normscale.paper.audit.printed import COMPARISON, OURS, RIVALS, TITLES, best
from normscale.paper.audit.tables import audit_tables
from normscale.paper.measured_claims import ALL_LAYERS, mean, measured_claims, names, published_mean, value
from normscale.paper.published import AVERAGE, IN_SETS, main_tables
from normscale.paper.report_additions import PER_CLASS, PLAIN, paper_reference
from normscale.report.joint_report import JointAdditions
from normscale.report.joint_tables import first_of_each_set, joint_table
from normscale.report.reference import Reference
from normscale.report.reported_run import ReportedRun
from normscale.report.table import Column, ReportTable, Row, Section
from normscale.report.tables import WITH_AUPR_IN, count

NOISE = ("gaussian", "uniform")
PAPER_WIDTH = 64
"""Of the paper's ResNet-18."""


def joint_additions() -> JointAdditions:
    """Everything the paper adds to a joint report."""
    titles = {name: TITLES[name] for name in IN_SETS}
    return JointAdditions(
        _reference, titles, IN_SETS, printed_mean, _tables, claims_table, joint_sentences, claims_in_short
    )


def _reference(run: RunFolder) -> Reference | None:
    return paper_reference(run.plan.in_set)


def printed_mean(metric: str, method: str) -> float | None:
    """What the paper's comparison prints as a method's mean over its four sets.

    Examples
    --------
    >>> printed_mean("fpr95_out", "norm_scaling")     # its four rows give 0.3468
    0.3578
    """
    rows = [row for row in main_tables() if row[:4] == (COMPARISON, AVERAGE, method, metric)]
    return rows[0].mean if rows else None


def _tables(runs: Sequence[ReportedRun]) -> list[ReportTable]:
    methods = [name for name in (PLAIN, PER_CLASS, OURS) if any(name in one.board.methods for one in runs)]
    title = "One threshold, one per class, or norm-scaling"
    return [joint_table("thresholds", title, runs, methods, WITH_AUPR_IN)]


def claims_table(runs: Sequence[ReportedRun]) -> ReportTable:
    """Every claim once: what the paper's own tables say of it, and what the runs do."""
    printed, measured = ({one.claim: one for one in found} for found in (audit_tables(), measured_claims(runs)))
    claims = sorted({**printed, **measured}, key=lambda one: (printed.get(one) or measured[one]).point)
    rows: list[Row] = [(claim, *_two(printed.get(claim)), *_two(measured.get(claim))) for claim in claims]
    columns = [
        Column("The paper's claim"),
        Column("Its own tables"),
        Column("by its tables"),
        Column("Networks trained here"),
        Column("by our networks"),
    ]
    notes = [
        "Verdicts on the tables are those of `normscale audit`, in its words. On our networks a gain holds if at least "
        "half of it is there, and a claim in words if it has no exception but those it names.",
        "Both AUPR and averages here are over the OoD sets that the paper has too, OoD positive for every method.",
    ]
    return ReportTable("claims", "What the paper claims, and what holds", columns, [Section("", rows)], notes)


def _two(found: Finding | None) -> tuple[str | None, str | None]:
    return (None, None) if found is None else (f"{found.recomputed} {found.reason}", found.verdict)


def joint_sentences(runs: Sequence[ReportedRun]) -> list[str]:
    """What was reproduced, what was not, and why; the first sentence sums it up."""
    sets = [one for one in first_of_each_set(runs) if one.beside.is_there]
    ours, theirs = (of(sets, "AUROC", OURS) if sets else None for of in (mean, published_mean))
    if ours is None or theirs is None:
        return ["No run is of a set that the paper has, so there is nothing to reproduce."]
    sentences = [_summary(sets, ours, theirs)]
    sentences += [text for one in runs if one.beside.is_there and (text := _of_one(one))]
    sentences += map(_of_claim, measured_claims(runs))
    return [*sentences, *_without_noise(sets), *_why_not_the_same(sets)]


def _of_claim(found: Finding) -> str:
    reason = f" {found.reason}" if found.verdict == DIFFERS else ""
    return f"“{found.claim.rstrip('.')}” {found.verdict} on our networks: {found.recomputed}{reason}"


def claims_in_short(runs: Sequence[ReportedRun]) -> tuple[str, list[str]]:
    """How many of the paper's claims differ and which, and the sentences of single claims that this stands for."""
    found = measured_claims(runs)
    if not found:
        return "", []
    told = [_of_claim(one) for one in found]
    n_checked = sum(one.verdict != UNCHECKED for one in found)
    if not n_checked:
        return "None of the paper's claims can be checked on these runs; the table of claims says why.", told
    others = ["“" + one.claim.rstrip(".") + "”" for one in found if one.verdict == DIFFERS]
    text = f"Of the {count(n_checked, 'claim')} of the paper that our networks can speak to, {len(others) or 'none'} "
    text += "differs" if len(others) == 1 else "differ"
    text += f": {listed(others)}" if others else ""
    return f"{text}. The table of claims has the numbers.", told


def _summary(sets: Sequence[ReportedRun], ours: float, theirs: float) -> str:
    text = (
        f"Over {names(sets)}, Norm-Scaling has a mean AUROC of {ours:.3f} here and {theirs:.3f} in the paper "
        "on the same OoD sets"
    )
    here = [(rival, found) for rival in (*RIVALS, ALL_LAYERS) if (found := mean(sets, "AUROC", rival)) is not None]
    there = [(rival, found) for rival in RIVALS if (found := published_mean(sets, "AUROC", rival)) is not None]
    if here and there:
        (rival, number), (best_there, printed) = best(here, "AUROC"), best(there, "AUROC")
        text += (
            f"; the best of the paper's rivals is {title_of(rival)} with {number:.3f} here, and {title_of(best_there)} "
            f"with {printed:.3f} there"
        )
    return f"{text}."


def _of_one(one: ReportedRun) -> str:
    """How the paper's method does on one set, who is best there, and how good the networks are."""
    ours, theirs = value(one, "AUROC", OURS), one.published("auroc", OURS)
    ranked = [method for method in one.board.block.methods if method not in one.board.per_class]
    if ours is None or theirs is None:
        return ""
    leader = max(ranked, key=lambda method: value(one, "AUROC", method) or 0.0)
    lead = value(one, "AUROC", leader)
    text = f"{one.title} ({count(len(one.board.block.seeds), 'network')}"
    printed = one.beside.reference.accuracy
    if one.accuracies and printed is not None:
        text += f", {100 * fmean(one.accuracies.values()):.1f} % right; paper {100 * printed.mean:.1f} %"
    text += f"): Norm-Scaling has an AUROC of {ours:.3f}, in the paper {theirs:.3f}; "
    return (
        f"{text}{'no method here is better' if leader == OURS else f'best here is {title_of(leader)} with {lead:.3f}'}."
    )


def _without_noise(sets: Sequence[ReportedRun]) -> list[str]:
    """What is left of the lead on pictures alone."""
    pictures = {one.title: [name for name in one.shared if name not in NOISE] for one in sets}
    if not all(0 < len(pictures[one.title]) < len(one.shared) for one in sets):
        return []

    def here(method: str) -> float | None:
        found = [one.board.average("auroc", method, pictures[one.title]) for one in sets]
        return fmean(average.mean for average in found if average is not None) if None not in found else None

    def there(method: str) -> float:
        found = [one.beside.value("auroc", method, name) for one in sets for name in pictures[one.title]]
        return fmean(printed.mean for printed in found if printed is not None)

    parts = []
    for of, rivals, where in ((here, (*RIVALS, ALL_LAYERS), "here"), (there, RIVALS, "in the paper")):
        ours, known = of(OURS), [(rival, number) for rival in rivals if (number := of(rival)) is not None]
        if ours is None or not known:
            return []
        rival, number = best(known, "AUROC")
        parts.append(f"Norm-Scaling has {ours:.3f} and the best rival, {title_of(rival)}, {number:.3f} {where}")
    return [f"On pictures alone, without noise, {'; '.join(parts)} (mean AUROC)."]


def _why_not_the_same(sets: Sequence[ReportedRun]) -> list[str]:
    """In what the runs differ from the paper's."""
    narrow = dict.fromkeys(one.run.plan.width for one in sets if one.run.plan.width != PAPER_WIDTH)
    absent = dict.fromkeys(
        TITLES[name] for one in sets for name in one.beside.reference.sizes if name not in one.board.ood_sets
    )
    epochs = dict.fromkeys(one.run.plan.epochs for one in sets if one.run.plan.epochs is not None)
    parts = []
    if narrow:
        parts.append(f"the networks are of width {listed(list(map(str, narrow)))} instead of {PAPER_WIDTH}")
    if epochs:
        parts.append(f"they were trained for {listed(list(map(str, epochs)))} epochs")
    if absent:
        parts.append(f"{listed(list(absent))} {'was' if len(absent) == 1 else 'were'} not measured")
    return [f"What differs from the paper: {'; '.join(parts)}."] if parts else []
