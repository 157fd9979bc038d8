"""The stress grid in a few numbers for each method: what it risks, how often, what it gains, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from normscale.bench.experiments.measurement import StreamKind
from normscale.bench.experiments.stress_result import StressResult
from normscale.detectors.base import Setting
from normscale.errors import InvalidInput

TOLERANCE = 0.005
"""Differences in AUROC up to here do not count as a loss or a gain."""
WORTH = 0.01
"""The AUROC gain above which running statistics are worth a risk: the best of many always gains a little."""
RECOMMENDED, SAFE, DEPENDS, NO_GAIN, STATIC = "use this", "safe", "depends on the stream", "no gain", "static"
RULE = (
    f"Verdict, against the best static method in the same stream: {NO_GAIN}, nowhere more than {WORTH:g} AUROC above "
    f"it; {SAFE}, nowhere more than {TOLERANCE:g} below it; {DEPENDS}, above it in some streams and below in others. "
    f"{RECOMMENDED.capitalize()}: the safe method with the highest mean or, if none is safe, the best static one."
)
EVEN = StreamKind(0.5, "shuffled", "balanced")
"""The stream in which half of the rows are OoD, well mixed, with balanced classes: what is published most."""


class MethodSummary(NamedTuple):
    """One method over all kinds of streams, each averaged over the OoD sets."""

    method: str
    worst: float
    """Its AUROC minus the best static method's, in the kind of stream where that is smallest."""
    worst_kind: StreamKind
    best: float
    """The same in the kind of stream where it is largest."""
    kinds_below: int
    """In how many kinds of streams it falls short of the best static method by more than 0.005."""
    n_kinds: int
    gain_kept: float
    """Its AUROC gain in the even stream, as a share of what another method gains there; NaN without one."""
    mean_auroc: float
    mean_fpr95_out: float
    verdict: str
    """By ``RULE``."""


class Gain(NamedTuple):
    """A gain that others are measured by: of one method over another."""

    method: str
    over: str


def summarise(
    result: StressResult, statics: Sequence[str] | None = None, *, gain: Gain | None = None
) -> list[MethodSummary]:
    """Summarise every method of a grid that has numbers in all of its streams, best mean AUROC first.

    Parameters
    ----------
    result : StressResult
    statics : names of methods, optional
        The best of these in a kind of stream is what the others are held against; those that were not measured are
        left out. None: all methods without running statistics.
    gain : Gain, optional
        Whose gain in the even stream counts as 1.

    Examples
    --------
    >>> from normscale.bench.experiments.measurement import Measurement
    >>> rows = [Measurement("noise", name, name, name, setting, {}, {"auroc": auroc, "fpr95_out": 0.2}, 50, 50, 0,
    ...                     stream=EVEN)
    ...         for name, setting, auroc in
    ...         (("plain", "frozen", 0.8), ("first", "stream", 0.9), ("mine", "stream", 0.875))]
    >>> found = summarise(StressResult(rows), gain=Gain("first", "plain"))
    >>> [(one.method, round(one.worst, 3), round(one.gain_kept, 2)) for one in found]
    [('first', 0.1, 1.0), ('mine', 0.075, 0.75), ('plain', 0.0, 0.0)]
    """
    result = result.without(result.incomplete())
    kinds = result.means()
    wanted = result.in_setting(Setting.FROZEN) if statics is None else statics
    known = [name for name in wanted if name in result.methods]
    if not kinds or not known:
        raise InvalidInput(
            f"a summary needs a stream with numbers and one of the methods {', '.join(wanted) or 'that do not run'}; "
            f"got {len(kinds)} kinds of streams of {', '.join(result.methods) or 'no method'}."
        )
    best = {kind: max(numbers[name].auroc for name in known) for kind, numbers in kinds.items()}
    static = result.in_setting(Setting.FROZEN)
    summaries = []
    for method in result.methods:
        differences = {kind: numbers[method].auroc - best[kind] for kind, numbers in kinds.items()}
        worst_kind = min(differences, key=lambda kind: differences[kind])
        summaries.append(
            MethodSummary(
                method=method,
                worst=differences[worst_kind],
                worst_kind=worst_kind,
                best=max(differences.values()),
                kinds_below=sum(difference < -TOLERANCE for difference in differences.values()),
                n_kinds=len(kinds),
                gain_kept=_gain_kept(result, method, gain),
                mean_auroc=fmean(numbers[method].auroc for numbers in kinds.values()),
                mean_fpr95_out=fmean(numbers[method].fpr95_out for numbers in kinds.values()),
                verdict=STATIC if method in static else _verdict(differences),
            )
        )
    return _with_recommendation(sorted(summaries, key=lambda one: -one.mean_auroc), result.settings.get("preferred"))


def _verdict(differences: Mapping[StreamKind, float]) -> str:
    """Of a method with running statistics, from its AUROC minus the best static method's."""
    if max(differences.values()) <= WORTH:
        return NO_GAIN
    return SAFE if min(differences.values()) >= -TOLERANCE else DEPENDS


def _with_recommendation(summaries: list[MethodSummary], preferred: str | None) -> list[MethodSummary]:
    """Name the method to use; of static ones the preferred, where it is as good as the best."""
    safe = [one for one in summaries if one.verdict == SAFE]
    static = [one for one in summaries if one.verdict == STATIC]
    chosen = (safe or static or summaries)[0]
    if not safe:
        as_good = [one for one in static if one.method == preferred and chosen.mean_auroc - one.mean_auroc <= TOLERANCE]
        chosen = (as_good or [chosen])[0]
    return [one._replace(verdict=RECOMMENDED) if one is chosen else one for one in summaries]


def _gain_kept(result: StressResult, method: str, gain: Gain | None) -> float:
    here = result.means().get(EVEN, {})
    if gain is None or gain.method not in here or gain.over not in here:
        return math.nan
    whole = here[gain.method].auroc - here[gain.over].auroc
    return (here[method].auroc - here[gain.over].auroc) / whole if whole > 0 else math.nan
