"""The claims that benchmarks can check: what the paper's text says, and what networks trained here show.

The claims stand in the audit's words, so that its verdict on the paper's own tables can stand beside ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from normscale.experiments.methods import title_of
from normscale.paper.audit.findings import UNCHECKED, Finding, listed, verdict_of
from normscale.paper.audit.gains import (
    EXCEPTION_CLAIM,
    ORDER_CLAIM,
    claim_over_msp,
    claim_over_rivals,
    percent,
)
from normscale.paper.audit.printed import COLUMNS, OURS, RIVALS, TITLES, best, better, relative_change
from normscale.paper.audit.shares import CLAIM as SHARE_CLAIM
from normscale.paper.audit.shares import KEPT
from normscale.paper.published import GAINS_OVER_MSP, GAINS_OVER_RIVALS
from normscale.report.joint_tables import first_of_each_set
from normscale.report.reported_run import ReportedRun

METRICS = dict(zip(COLUMNS, ("auroc", "aupr_out", "fpr95_out"), strict=True))
"""Every method's AUPR counts OoD as positive here."""
HALF = 0.5
"""Share of a claimed gain that must be there for the claim to hold on other networks."""
PLAIN, PER_CLASS, FROZEN = "msp", "multi_threshold", "norm_scaling_frozen"
ALL_LAYERS = "mahalanobis_layers"
"""Mahalanobis as its authors use it, a rival of the paper too; the paper does not say which layers it read."""


def measured_claims(runs: Sequence[ReportedRun]) -> list[Finding]:
    """Check the paper's claims on runs; the first run of each of the paper's in-distribution sets counts."""
    sets = [one for one in first_of_each_set(runs) if one.in_set in TITLES and one.beside.is_there]
    if not sets:
        return []
    return [
        _whatever_the_stream(sets),
        *(_over_rivals(sets, column) for column in COLUMNS),
        _over_msp(sets),
        _exceptions(sets),
        _order(sets),
    ]


def value(one: ReportedRun, column: str, method: str) -> float | None:
    """A method's average on one in-distribution set."""
    average = one.average(METRICS[column], method)
    return None if average is None else average.mean


def mean(sets: Sequence[ReportedRun], column: str, method: str) -> float | None:
    """Over the in-distribution sets; None if the method lacks one."""
    found = [value(one, column, method) for one in sets]
    known = [one for one in found if one is not None]
    return fmean(known) if len(known) == len(found) else None


def published_mean(sets: Sequence[ReportedRun], column: str, method: str) -> float | None:
    """The paper's, over the same in-distribution and OoD sets."""
    found = [one.published(METRICS[column], method) for one in sets]
    known = [one for one in found if one is not None]
    return fmean(known) if len(known) == len(found) else None


def names(sets: Sequence[ReportedRun]) -> str:
    """The in-distribution sets in a sentence."""
    return listed([one.title for one in sets])


def _lacking(point: int, claim: str) -> Finding:
    return Finding(point, claim, "Not every run has the methods.", UNCHECKED, "The runs were asked for others.")


def _over_rivals(sets: Sequence[ReportedRun], column: str) -> Finding:
    """The gain over the best of the paper's rivals, means over the in-distribution sets."""
    claim, claimed = claim_over_rivals(column), list(GAINS_OVER_RIVALS.values())[COLUMNS.index(column)]
    ours = mean(sets, column, OURS)
    averages = [(rival, mean(sets, column, rival)) for rival in (*RIVALS, ALL_LAYERS)]
    rivals = [(rival, found) for rival, found in averages if found is not None]
    if ours is None or not rivals:
        return _lacking(6, claim)
    rival, theirs = best(rivals, column)
    gain = relative_change(ours, theirs)
    title = title_of(rival)
    text = f"{percent(gain)} on {names(sets)}: {ours:.4f} against the best average, {theirs:.4f} ({title})"
    there = [(one, found) for one in RIVALS if (found := published_mean(sets, column, one)) is not None]
    printed = published_mean(sets, column, OURS)
    reason = "At least half of the claimed gain is there." if _enough(gain, claimed) else _why(column, gain, claimed)
    if printed is not None and there:
        name, number = best(there, column)
        text += f"; the paper over the same sets: {percent(relative_change(printed, number))}, {printed:.4f} against "
        text += f"{number:.4f} ({TITLES[name]})"
        of_rival = published_mean(sets, column, "mahalanobis" if rival == ALL_LAYERS else rival)
        if of_rival is not None:
            reason += f" {title} has {theirs:.4f} here and {of_rival:.4f} in the paper"
            reason += f", {TITLES[OURS]} {ours:.4f} and {printed:.4f}."
    if dict(averages)[ALL_LAYERS] is None:
        reason += f" {title_of(ALL_LAYERS)}, is not in every run and does not count."
    return Finding(6, claim, f"{text}.", verdict_of(_enough(gain, claimed)), reason)


def _enough(gain: float, claimed: float) -> bool:
    return gain / claimed >= HALF


def _why(column: str, gain: float, claimed: float) -> str:
    if gain == 0 or (gain > 0) != (claimed > 0):
        return f"The best rival has the {'better' if gain else 'same'} {column}."
    return "Less than half of the claimed gain is there."


def _over_msp(sets: Sequence[ReportedRun]) -> Finding:
    """The gains over plain MSP: means of the sets' ratios, as the paper has them."""
    claim, gains = claim_over_msp(), []
    for column in COLUMNS:
        pairs = [(value(one, column, OURS), value(one, column, PLAIN)) for one in sets]
        ratios = [relative_change(a, b) for a, b in pairs if a is not None and b is not None]
        if len(ratios) < len(sets):
            return _lacking(6, claim)
        gains.append(fmean(ratios))
    short = [
        column
        for column, gain, claimed in zip(COLUMNS, gains, GAINS_OVER_MSP.values(), strict=True)
        if not _enough(gain, claimed)
    ]
    reason = f"Less than half of it is there by {listed(short)}." if short else "At least half of each is there."
    plain, printed = mean(sets, "AUROC", PLAIN), published_mean(sets, "AUROC", PLAIN)
    if plain is not None and printed is not None:
        reason += f" Plain MSP has an AUROC of {plain:.4f} here and {printed:.4f} in the paper."
    shown = " / ".join(percent(gain, 1) for gain in gains)
    return Finding(6, claim, f"Mean of the ratios on {names(sets)}: {shown}.", verdict_of(not short), reason)


def _exceptions(sets: Sequence[ReportedRun]) -> Finding:
    """Where norm-scaling does worse than plain MSP."""
    worse = []
    for column in COLUMNS:
        for one in sets:
            ours, plain = value(one, column, OURS), value(one, column, PLAIN)
            if ours is None or plain is None:
                return _lacking(6, EXCEPTION_CLAIM)
            if better(plain, ours, column):
                worse.append((one.in_set, column, f"{column} on {one.title} ({plain:.4f} to {ours:.4f})"))
    holds = {cell[:2] for cell in worse} <= {("svhn", "AUROC")}
    return Finding(
        6,
        EXCEPTION_CLAIM,
        f"Worse in {listed([text for *_, text in worse]) or 'no cell'}.",
        verdict_of(holds),
        f"{len(worse)} of {len(COLUMNS) * len(sets)} cells are worse.",
    )


def _order(sets: Sequence[ReportedRun]) -> Finding:
    """Where, outside SVHN, multi-threshold does not lie between plain MSP and norm-scaling."""
    others = [one for one in sets if one.in_set != "svhn"]
    wrong = []
    for column in COLUMNS:
        for one in others:
            plain, many, ours = (value(one, column, method) for method in (PLAIN, PER_CLASS, OURS))
            if plain is None or many is None or ours is None:
                return _lacking(6, ORDER_CLAIM)
            if not (better(many, plain, column) and better(ours, many, column)):
                wrong.append(f"{column} on {one.title} ({plain:.4f}, {many:.4f}, {ours:.4f})")
    if not others:
        return Finding(6, ORDER_CLAIM, "SVHN alone was measured.", UNCHECKED, "No other set is there.")
    return Finding(
        6,
        ORDER_CLAIM,
        f"Not so in {listed(wrong)}." if wrong else "So in every cell.",
        verdict_of(not wrong),
        f"{len(wrong)} of {len(COLUMNS) * len(others)} cells have another order."
        if wrong
        else "The order is the same everywhere.",
    )


def _whatever_the_stream(sets: Sequence[ReportedRun]) -> Finding:
    """What is left of the gain over MSP when the statistics stay those of training."""
    gains = []
    for one in sets:
        plain, frozen, ours = (value(one, "AUROC", method) for method in (PLAIN, FROZEN, OURS))
        if plain is None or frozen is None or ours is None:
            return _lacking(2, SHARE_CLAIM)
        gains.append((one.title, ours - plain, frozen - plain))
    running, frozen_gain = fmean(gain for _, gain, _ in gains), fmean(gain for *_, gain in gains)
    each = [f"{title} {a:+.3f} and {b:+.3f}" for title, a, b in gains]
    return Finding(
        2,
        SHARE_CLAIM,
        f"AUROC over plain MSP with running and with frozen statistics: {', '.join(each)}.",
        verdict_of(running <= 0 or frozen_gain >= KEPT * running),
        f"On average it gains {running:+.3f} with statistics that run over the mixed stream and {frozen_gain:+.3f} "
        "with those of training: running statistics learn from the OoD inputs in the stream.",
    )
