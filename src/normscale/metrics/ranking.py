"""How well scores tell out-of-distribution (OoD) inputs from others: AUROC, AUPR, FPR at 95 % TPR."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import FloatArray, as_both_sides, exact_share, one_of
from normscale.metrics._tie_groups import Scores, merge, tie_groups
from normscale.metrics.intervals import Intervals, bootstrap_intervals, delong_interval
from normscale.metrics.metric import METRICS, Groups, SideSizes, Values, number_of, register_metric, values_of
from normscale.metrics.record import Record

if TYPE_CHECKING:
    from fractions import Fraction

_CORE = ("auroc", "aupr_out", "aupr_in", "fpr95_out", "fpr95_in")
_EXACT = 2.0**53
"""Whole numbers below are exact in float64."""


def _twice_pairs(groups: Groups) -> Any:
    """Twice the number of pairs in which the OoD input scores higher, a tie counting half: a whole number."""
    pairs = groups.id_edges[..., :-1] + groups.id_edges[..., 1:]
    pairs *= groups.ood_here
    total = pairs.sum(axis=-1)
    if total.ndim:
        return total
    if total < _EXACT:
        return int(total)
    twice_id = (groups.id_edges[:-1] + groups.id_edges[1:]).astype(np.int64).tolist()  # a tie of a hundred million
    return sum(a * b for a, b in zip(twice_id, groups.ood_here.astype(np.int64).tolist(), strict=True))


def _precision_out(groups: Groups) -> Any:
    """Sum over OoD inputs of the share of OoD among all that score at least as high."""
    above = groups.sizes.n_id + groups.sizes.n_ood - groups.all_edges[..., :-1]
    np.maximum(above, 1, out=above)  # 0 only in empty groups at the end, whose weight is 0
    np.divide(groups.sizes.n_ood - groups.ood_edges[..., :-1], above, out=above)
    above *= groups.ood_here
    return above.sum(axis=-1)


def _precision_in(groups: Groups) -> Any:
    """Sum over in-distribution inputs of the share of in-distribution among all that score at most as high."""
    upto = np.maximum(groups.all_edges[..., 1:], 1)  # likewise at the start
    np.divide(groups.id_edges[..., 1:], upto, out=upto)
    upto *= groups.id_here
    return upto.sum(axis=-1)


def _flagged_in_distribution(groups: Groups) -> Any:
    """In-distribution inputs at or above the threshold that catches enough OoD inputs, if it is among these groups."""
    uncaught = groups.sizes.n_ood - groups.sizes.caught_out
    edges = groups.ood_edges
    if edges.ndim == 1:
        if not edges[0] <= uncaught < edges[-1]:
            return 0
        place = np.searchsorted(edges[:-1], uncaught, side="right") - 1
        return groups.sizes.n_id - int(groups.id_edges[place])
    places = np.count_nonzero(edges[:, :-1] <= uncaught, axis=1) - 1
    return groups.sizes.n_id - groups.id_edges[np.arange(len(edges)), places]


def _accepted_ood(groups: Groups) -> Any:
    """OoD inputs at or below the threshold that accepts enough in-distribution inputs, if it is among these groups."""
    caught, edges = groups.sizes.caught_in, groups.id_edges
    if edges.ndim == 1:
        if not edges[0] < caught <= edges[-1]:
            return 0
        return int(groups.ood_edges[np.searchsorted(edges, caught, side="left")])
    places = np.count_nonzero(edges[:, 1:] < caught, axis=1) + 1
    return groups.ood_edges[np.arange(len(edges)), places]


def _share_of_pairs(total: Any, sizes: SideSizes) -> Any:
    return total / (2 * sizes.n_id * sizes.n_ood)


def _share_of_ood(total: Any, sizes: SideSizes) -> Any:
    return total / sizes.n_ood


def _share_of_id(total: Any, sizes: SideSizes) -> Any:
    return total / sizes.n_id


@register_metric("auroc", "AUROC", higher_is_better=True, part=_twice_pairs, finish=_share_of_pairs)
def auroc(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the share of (in-distribution, OoD) pairs in which the OoD input scores higher; a tie counts half.

    Examples
    --------
    >>> auroc([0.1, 0.5], [0.5, 0.7])
    0.875
    """
    return evaluate(id_scores, ood_scores).auroc


@register_metric("aupr_out", "AUPR, OoD positive", higher_is_better=True, part=_precision_out, finish=_share_of_ood)
def aupr_out(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the average precision at finding OoD inputs."""
    return evaluate(id_scores, ood_scores).aupr_out


@register_metric("aupr_in", "AUPR, ID positive", higher_is_better=True, part=_precision_in, finish=_share_of_id)
def aupr_in(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the average precision at finding in-distribution inputs, by negated scores."""
    return evaluate(id_scores, ood_scores).aupr_in


@register_metric(
    "fpr95_out", "FPR95, OoD positive", higher_is_better=False, part=_flagged_in_distribution, finish=_share_of_id
)
def fpr95_out(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the share of in-distribution inputs flagged when 95 % of OoD inputs are caught."""
    return evaluate(id_scores, ood_scores).fpr95_out


@register_metric("fpr95_in", "FPR95, ID positive", higher_is_better=False, part=_accepted_ood, finish=_share_of_ood)
def fpr95_in(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the share of OoD inputs accepted when 95 % of in-distribution inputs are accepted."""
    return evaluate(id_scores, ood_scores).fpr95_in


def fpr_at_tpr(
    id_scores: ArrayLike, ood_scores: ArrayLike, tpr: float = 0.95, *, positive: Literal["out", "in"] = "out"
) -> float:
    """Return the false positive rate at the threshold that catches a share of the positive class.

    Parameters
    ----------
    id_scores, ood_scores : arrays of shape (n_id,) and (n_ood,)
        Scores, higher = more OoD.
    tpr : float in (0, 1]
        Share of the positive class to catch.
    positive : {"out", "in"}
        Which class is positive: OoD, or in-distribution.

    Examples
    --------
    >>> fpr_at_tpr([0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7], 0.6)
    0.25
    """
    one_of(positive, "positive", ("out", "in"))
    found = evaluate(id_scores, ood_scores, tpr=tpr)
    return found.fpr95_out if positive == "out" else found.fpr95_in


@dataclass(frozen=True, kw_only=True, eq=False)
class RankingResult(Record):
    """What :func:`evaluate` found. ``*_out``: OoD is the positive class; ``*_in``: in-distribution is."""

    auroc: float
    aupr_out: float
    aupr_in: float
    fpr95_out: float
    fpr95_in: float
    n_id: int
    n_ood: int
    tpr: float = 0.95
    intervals: Intervals | None = None
    further: Values = field(default_factory=dict)
    """Metrics that others registered; each is an attribute, too."""

    @classmethod
    def of(cls, values: Values, **others: Any) -> RankingResult:
        """Make a result of the values of all metrics."""
        further = {name: value for name, value in values.items() if name not in _CORE}
        fields: dict[str, Any] = {name: values[name] for name in _CORE}
        return cls(**fields, **others, further=further)

    @property
    def metrics(self) -> Values:
        """Every metric by name."""
        return {**{name: getattr(self, name) for name in _CORE}, **self.further}

    def __getattr__(self, name: str) -> float:
        return float(number_of(self.__dict__.get("further", {}), name, type(self).__name__))

    @property
    def positive(self) -> str:
        """Which class counts as positive, in words."""
        return "OoD for *_out, in-distribution for *_in"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values ready for JSON; ``intervals`` is there only if they were asked for."""
        fields = super().to_dict()
        if fields["intervals"] is None:
            del fields["intervals"]
        further: dict[str, Any] = fields.pop("further")
        return fields | further | {"positive": self.positive}

    def __str__(self) -> str:
        """Lay the five numbers out with the positive class on top of its column."""
        fpr = f"FPR{100 * self.tpr:g}"
        lines = [
            f"{self.n_id} in-distribution and {self.n_ood} OoD inputs, higher score = more OoD",
            f"AUROC  {self.auroc:.4f}",
            f"{'positive class':<16}{'OoD':>10}{'in-distribution':>18}",
            f"{'AUPR':<16}{self.aupr_out:>10.4f}{self.aupr_in:>18.4f}",
            f"{fpr:<16}{self.fpr95_out:>10.4f}{self.fpr95_in:>18.4f}",
            *(f"{METRICS[name].title:<16}{value:>10.4f}" for name, value in self.further.items()),
        ]
        return "\n".join(lines if self.intervals is None else [*lines, str(self.intervals)])


@dataclass(frozen=True, kw_only=True, eq=False)
class RocCurve(Record):
    """Points of the ROC curve with OoD positive, from (0, 0) to (1, 1); three arrays of shape (g + 1,)."""

    thresholds: FloatArray
    fpr: FloatArray
    tpr: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class PrecisionRecallCurve(Record):
    """One point per distinct score, recall rising; three arrays of shape (g,)."""

    thresholds: FloatArray
    precision: FloatArray
    recall: FloatArray
    positive: str

    @property
    def average_precision(self) -> float:
        """Sum of precision times the step in recall: the AUPR of :func:`evaluate`."""
        return float(np.sum(np.diff(self.recall, prepend=0.0) * self.precision))


def evaluate(
    id_scores: ArrayLike,
    ood_scores: ArrayLike,
    *,
    tpr: float = 0.95,
    intervals: Literal["delong", "bootstrap"] | None = None,
) -> RankingResult:
    """Measure how well scores tell OoD inputs (high) from in-distribution inputs (low).

    ``auroc`` is the share of (in-distribution, OoD) pairs in which the OoD input scores higher, a tie counting half.
    ``aupr_out`` is the average precision with OoD as the positive class: the sum over distinct scores t of the step in
    recall times the precision, an input being flagged where its score is at least t (no trapezoids). ``fpr95_out`` is
    the share of in-distribution inputs flagged at the highest t that flags at least 95 % of OoD inputs. ``*_in`` are
    the same with in-distribution as the positive class and negated scores. Equal scores are always taken together.

    Parameters
    ----------
    id_scores, ood_scores : arrays of shape (n_id,) and (n_ood,)
        Finite scores, higher = more OoD. float32 scores are compared as float32 numbers, a mixture as float64.
    tpr : float in (0, 1]
        The true positive rate of ``fpr95_*``, taken as the decimal that was typed: 0.55 of 20 inputs are 11.
    intervals : {"delong", "bootstrap"} or None
        Attach confidence intervals at 95 %: of the AUROC (:func:`delong_interval`), or of all metrics
        (:func:`bootstrap_intervals`, a thousand resamples).

    References
    ----------
    Davis and Goadrich, "The relationship between Precision-Recall and ROC curves", ICML 2006.

    Examples
    --------
    The OoD scores 0.7, 0.5 and 0.2 win 4, 3.5 and 1 of 4 comparisons each, so the AUROC is 8.5 / 12. Their precision is
    1/1, 2/3 and 3/6, so the AUPR with OoD positive is 13/18.

    >>> print(evaluate([0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7]))
    4 in-distribution and 3 OoD inputs, higher score = more OoD
    AUROC  0.7083
    positive class         OoD   in-distribution
    AUPR                0.7222            0.7708
    FPR95               0.7500            0.6667
    """
    id_vector, ood_vector = as_both_sides(id_scores, ood_scores)
    share = exact_share(tpr, "tpr", allow_one=True)
    if intervals is not None:
        one_of(intervals, "intervals", ("delong", "bootstrap"))
    found = _values(id_vector, ood_vector, share)
    attached = None
    if intervals == "delong":
        attached = Intervals(method="delong", level=0.95, auroc=delong_interval(id_vector, ood_vector))
    elif intervals == "bootstrap":
        attached = bootstrap_intervals(id_vector, ood_vector, tpr=tpr)
    return RankingResult.of(found, n_id=id_vector.size, n_ood=ood_vector.size, tpr=float(tpr), intervals=attached)


def _values(id_scores: Scores, ood_scores: Scores, share: Fraction) -> Values:
    """Every metric of two checked vectors."""
    n_id, n_ood = id_scores.size, ood_scores.size
    sizes = SideSizes(n_id, n_ood, math.ceil(share * n_ood), math.ceil(share * n_id))
    return values_of(merge(id_scores, ood_scores), id_scores, ood_scores, sizes)


def evaluate_checked(id_scores: Scores, ood_scores: Scores, share: Fraction, tpr: float) -> RankingResult:
    """Evaluate two checked vectors."""
    found = _values(id_scores, ood_scores, share)
    return RankingResult.of(found, n_id=id_scores.size, n_ood=ood_scores.size, tpr=float(tpr))


def roc_curve(id_scores: ArrayLike, ood_scores: ArrayLike) -> RocCurve:
    """Trace the receiver operating characteristic, OoD positive: flag an input iff its score is at least t.

    One point per distinct score in falling order, after the point (0, 0) at threshold infinity.

    Examples
    --------
    >>> curve = roc_curve([0.1, 0.5], [0.5, 0.7])
    >>> curve.thresholds.tolist(), curve.fpr.tolist(), curve.tpr.tolist()
    ([inf, 0.7, 0.5, 0.1], [0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    groups = tie_groups(*as_both_sides(id_scores, ood_scores))
    n_id, n_ood = groups.id_edges[-1], groups.ood_edges[-1]
    return RocCurve(
        thresholds=np.concatenate(([np.inf], groups.thresholds[::-1])),
        fpr=(n_id - groups.id_edges)[::-1] / n_id,
        tpr=(n_ood - groups.ood_edges)[::-1] / n_ood,
    )


def precision_recall_curve(
    id_scores: ArrayLike, ood_scores: ArrayLike, positive: Literal["out", "in"] = "out"
) -> PrecisionRecallCurve:
    """Trace precision against recall at every distinct score; recall rises to 1, without a made-up point at 0.

    Parameters
    ----------
    id_scores, ood_scores : arrays of shape (n_id,) and (n_ood,)
        Scores, higher = more OoD.
    positive : {"out", "in"}
        "out": OoD is positive, an input is flagged iff its score is at least t, thresholds fall.
        "in": in-distribution is positive, an input is accepted iff its score is at most t, thresholds rise.

    Examples
    --------
    >>> curve = precision_recall_curve([0.1, 0.5], [0.5, 0.7])
    >>> curve.thresholds.tolist(), curve.recall.tolist(), curve.precision.round(3).tolist()
    ([0.7, 0.5, 0.1], [0.5, 1.0, 1.0], [1.0, 0.667, 0.5])
    """
    one_of(positive, "positive", ("out", "in"))
    groups = tie_groups(*as_both_sides(id_scores, ood_scores))
    thresholds, hits, others = groups.thresholds, groups.id_edges[1:], groups.ood_edges[1:]
    if positive == "out":
        thresholds = thresholds[::-1].copy()
        hits = (groups.ood_edges[-1] - groups.ood_edges[:-1])[::-1]
        others = (groups.id_edges[-1] - groups.id_edges[:-1])[::-1]
    return PrecisionRecallCurve(
        thresholds=thresholds, precision=hits / (hits + others), recall=hits / hits[-1], positive=positive
    )
