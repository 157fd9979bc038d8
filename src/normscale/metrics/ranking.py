"""How well scores tell out-of-distribution (OoD) inputs from others: AUROC, AUPR, FPR at 95 % TPR, and their curves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import FloatArray, IntArray, as_both_sides, as_class_indices, exact_share, one_of
from normscale.errors import InvalidInput
from normscale.metrics.intervals import Intervals, bootstrap_intervals, delong_interval
from normscale.metrics.metric import METRICS, Counts, Scores, count_scores, metric_values, register_metric
from normscale.metrics.record import MetricRecord, Record

POSITIVE = "OoD for *_out, in-distribution for *_in"
_CORE = ("auroc", "aupr_out", "aupr_in", "fpr95_out", "fpr95_in")


@register_metric("auroc", "AUROC", higher_is_better=True, of_counts=True)
def _auroc(counts: Counts) -> Any:
    twice_pairs = counts.id_edges[..., :-1] + counts.id_edges[..., 1:]
    twice_pairs *= counts.ood_here
    return twice_pairs.sum(axis=-1) / (2 * counts.n_id * counts.n_ood)


@register_metric("aupr_out", "AUPR, OoD positive", higher_is_better=True, of_counts=True)
def _aupr_out(counts: Counts) -> Any:
    ood_above = counts.n_ood - counts.ood_edges[..., :-1]
    above = ood_above + (counts.n_id - counts.id_edges[..., :-1])
    np.divide(ood_above, np.maximum(above, 1, out=above), out=above)  # 0 only where no input is, at the end
    above *= counts.ood_here
    return above.sum(axis=-1) / counts.n_ood


@register_metric("aupr_in", "AUPR, ID positive", higher_is_better=True, of_counts=True)
def _aupr_in(counts: Counts) -> Any:
    upto = counts.id_edges[..., 1:] + counts.ood_edges[..., 1:]
    np.divide(counts.id_edges[..., 1:], np.maximum(upto, 1, out=upto), out=upto)
    upto *= counts.id_here
    return upto.sum(axis=-1) / counts.n_id


@register_metric("fpr95_out", "FPR95, OoD positive", higher_is_better=False, of_counts=True)
def _fpr95_out(counts: Counts) -> Any:
    place = np.count_nonzero(counts.ood_edges[..., :-1] <= counts.n_ood - counts.caught_out, axis=-1) - 1
    below = np.take_along_axis(counts.id_edges, np.expand_dims(place, -1), axis=-1)[..., 0]
    return (counts.n_id - below) / counts.n_id


@register_metric("fpr95_in", "FPR95, ID positive", higher_is_better=False, of_counts=True)
def _fpr95_in(counts: Counts) -> Any:
    place = np.count_nonzero(counts.id_edges[..., 1:] < counts.caught_in, axis=-1) + 1
    return np.take_along_axis(counts.ood_edges, np.expand_dims(place, -1), axis=-1)[..., 0] / counts.n_ood


def auroc(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the share of (in-distribution, OoD) pairs in which the OoD input scores higher; a tie counts half.

    Examples
    --------
    >>> auroc([0.1, 0.5], [0.5, 0.7])
    0.875
    """
    return evaluate(id_scores, ood_scores).auroc


def fpr_at_tpr(
    id_scores: ArrayLike, ood_scores: ArrayLike, tpr: float = 0.95, *, positive: Literal["out", "in"] = "out"
) -> float:
    """Return the false positive rate at the threshold that catches a share ``tpr`` of the positive class.

    Examples
    --------
    >>> fpr_at_tpr([0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7], 0.6)
    0.25
    """
    one_of(positive, "positive", ("out", "in"))
    return evaluate(id_scores, ood_scores, tpr=tpr).metrics[f"fpr95_{positive}"]


@dataclass(frozen=True, kw_only=True, eq=False)
class RankingResult(MetricRecord[float]):
    """What :func:`evaluate` found: ``auroc``, ``aupr_out``, ``aupr_in``, ``fpr95_out``, ``fpr95_in``, and others.

    ``*_out``: OoD is the positive class; ``*_in``: in-distribution is. Each metric of ``metrics`` is an attribute.
    """

    n_id: int
    n_ood: int
    tpr: float = 0.95
    intervals: Intervals | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values ready for JSON."""
        return super().to_dict() | {"positive": POSITIVE}

    def __str__(self) -> str:
        """Lay the numbers out with the positive class on top of its column."""
        fpr = f"FPR{100 * self.tpr:g}"
        others = {name: value for name, value in self.metrics.items() if name not in _CORE}
        lines = [
            f"{self.n_id} in-distribution and {self.n_ood} OoD inputs, higher score = more OoD",
            f"AUROC  {self.auroc:.4f}",
            f"{'positive class':<16}{'OoD':>10}{'in-distribution':>18}",
            f"{'AUPR':<16}{self.aupr_out:>10.4f}{self.aupr_in:>18.4f}",
            f"{fpr:<16}{self.fpr95_out:>10.4f}{self.fpr95_in:>18.4f}",
            *(f"{METRICS[name].title:<16}{value:>10.4f}" for name, value in others.items()),
        ]
        return "\n".join(lines if self.intervals is None else [*lines, str(self.intervals)])


@dataclass(frozen=True, kw_only=True, eq=False)
class PerClassResult(RankingResult):
    """What :func:`evaluate_per_class` found: means over classes, and what each class gave.

    ``n_id`` and ``n_ood`` count all inputs, those of skipped classes included.
    """

    n_groups: int
    n_skipped: int
    skipped: dict[int, str]
    """Why a class has no metric."""
    per_class: dict[int, RankingResult]
    """Of every other class."""

    def __str__(self) -> str:
        """Lay the means out as :class:`RankingResult` does, with the number of classes on top."""
        return f"mean over {self.n_groups} predicted classes ({self.n_skipped} skipped)\n{super().__str__()}"


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
    inside, outside = as_both_sides(id_scores, ood_scores)
    share = exact_share(tpr, "tpr", allow_one=True)
    attached = None
    if intervals is not None and one_of(intervals, "intervals", ("delong", "bootstrap")) == "delong":
        attached = Intervals(metrics={"auroc": delong_interval(inside, outside)}, method="delong", level=0.95)
    elif intervals is not None:
        attached = bootstrap_intervals(inside, outside, tpr=tpr)
    found = metric_values(inside, outside, share)
    return RankingResult(metrics=found, n_id=inside.size, n_ood=outside.size, tpr=float(tpr), intervals=attached)


def evaluate_per_class(
    id_scores: ArrayLike,
    id_predicted: ArrayLike,
    ood_scores: ArrayLike,
    ood_predicted: ArrayLike,
    *,
    tpr: float = 0.95,
) -> PerClassResult:
    """Evaluate within each predicted class and average with equal weight: the multi-threshold protocol.

    Inputs are grouped by the class the classifier predicts for them, OoD inputs too. Each group has its own ranking,
    hence its own threshold. A group that lacks one side has no metric; it is skipped and named.

    Examples
    --------
    >>> result = evaluate_per_class([0.1, 0.6, 0.2, 0.3], [0, 1, 0, 2], [0.4, 0.7, 0.15], [0, 1, 0])
    >>> result.auroc, result.n_groups, result.skipped
    (0.875, 2, {2: 'no OoD input'})
    """
    inside, outside = as_both_sides(id_scores, ood_scores)
    id_groups = _split(inside, as_class_indices(id_predicted, "id_predicted", length=inside.size))
    ood_groups = _split(outside, as_class_indices(ood_predicted, "ood_predicted", length=outside.size))
    share = exact_share(tpr, "tpr", allow_one=True)
    skipped: dict[int, str] = {}
    per_class: dict[int, RankingResult] = {}
    for label in sorted(id_groups.keys() | ood_groups.keys()):
        if label not in ood_groups or label not in id_groups:
            skipped[label] = "no OoD input" if label in id_groups else "no in-distribution input"
            continue
        own, other = id_groups[label], ood_groups[label]
        found = metric_values(own, other, share)
        per_class[label] = RankingResult(metrics=found, n_id=own.size, n_ood=other.size, tpr=float(tpr))
    if not per_class:
        raise InvalidInput(
            f"id_predicted and ood_predicted have no class in common ({len(skipped)} are on one side only), "
            "so no group can be evaluated. Use evaluate for one threshold over all classes."
        )
    return PerClassResult(
        metrics={name: math.fsum(r.metrics[name] for r in per_class.values()) / len(per_class) for name in METRICS},
        n_id=inside.size,
        n_ood=outside.size,
        tpr=float(tpr),
        n_groups=len(per_class),
        n_skipped=len(skipped),
        skipped=skipped,
        per_class=per_class,
    )


def _split(scores: Scores, classes: IntArray) -> dict[int, Scores]:
    """Scores of each class that occurs."""
    order = np.argsort(classes, kind="stable")
    labels, starts = np.unique(classes[order], return_index=True)
    return dict(zip(labels.tolist(), np.split(scores[order], starts[1:]), strict=True))


def roc_curve(id_scores: ArrayLike, ood_scores: ArrayLike) -> RocCurve:
    """Trace the receiver operating characteristic, OoD positive: flag an input iff its score is at least t.

    One point per distinct score in falling order, after the point (0, 0) at threshold infinity.

    Examples
    --------
    >>> curve = roc_curve([0.1, 0.5], [0.5, 0.7])
    >>> curve.thresholds.tolist(), curve.fpr.tolist(), curve.tpr.tolist()
    ([inf, 0.7, 0.5, 0.1], [0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    thresholds, *edges = count_scores(*as_both_sides(id_scores, ood_scores))
    fpr, tpr = ((counts[-1] - counts)[::-1] / counts[-1] for counts in edges)
    return RocCurve(thresholds=np.append(np.inf, thresholds[::-1]), fpr=fpr, tpr=tpr)


def precision_recall_curve(
    id_scores: ArrayLike, ood_scores: ArrayLike, positive: Literal["out", "in"] = "out"
) -> PrecisionRecallCurve:
    """Trace precision against recall at every distinct score; recall rises to 1, without a made-up point at 0.

    Parameters
    ----------
    id_scores, ood_scores : arrays of shape (n_id,) and (n_ood,)
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
    thresholds, *edges = count_scores(*as_both_sides(id_scores, ood_scores))
    hits, others = (counts[1:] for counts in edges)
    if positive == "out":
        thresholds = thresholds[::-1].copy()
        others, hits = ((counts[-1] - counts[:-1])[::-1] for counts in edges)
    return PrecisionRecallCurve(
        thresholds=thresholds, precision=hits / (hits + others), recall=hits / hits[-1], positive=positive
    )
