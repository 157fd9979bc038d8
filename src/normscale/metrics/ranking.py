"""How well scores tell out-of-distribution (OoD) inputs from others: AUROC, AUPR, FPR at 95 % TPR."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import FloatArray, as_score_vector, exact_share, one_of
from normscale.metrics._ranking_sums import five_metrics
from normscale.metrics._tie_groups import merge, tie_groups
from normscale.metrics.intervals import Intervals, bootstrap_intervals, delong_interval
from normscale.metrics.record import Record


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

    @property
    def positive(self) -> str:
        """Which class counts as positive, in words."""
        return "OoD for *_out, in-distribution for *_in"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values ready for JSON; ``intervals`` is there only if they were asked for."""
        fields = super().to_dict()
        if fields["intervals"] is None:
            del fields["intervals"]
        return fields | {"positive": self.positive}

    def __str__(self) -> str:
        """Lay the five numbers out with the positive class on top of its column."""
        fpr = f"FPR{100 * self.tpr:g}"
        lines = [
            f"{self.n_id} in-distribution and {self.n_ood} OoD inputs, higher score = more OoD",
            f"AUROC  {self.auroc:.4f}",
            f"{'positive class':<16}{'OoD':>10}{'in-distribution':>18}",
            f"{'AUPR':<16}{self.aupr_out:>10.4f}{self.aupr_in:>18.4f}",
            f"{fpr:<16}{self.fpr95_out:>10.4f}{self.fpr95_in:>18.4f}",
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

    Parameters
    ----------
    id_scores : array of shape (n_id,)
        Scores of in-distribution inputs, higher = more OoD.
    ood_scores : array of shape (n_ood,)
        Scores of OoD inputs.
    tpr : float in (0, 1]
        The true positive rate at which ``fpr95_out`` and ``fpr95_in`` are read. It is taken as the decimal
        that was typed: 0.55 of 20 inputs are 11.
    intervals : {"delong", "bootstrap"} or None
        Attach confidence intervals at 95 %: of the AUROC (:func:`delong_interval`), or of all five metrics
        (:func:`bootstrap_intervals`, a thousand resamples).

    Returns
    -------
    RankingResult
        ``auroc`` is the share of (in-distribution, OoD) pairs in which the OoD input scores higher, a tie
        counting half. ``aupr_out`` is the average precision with OoD as the positive class,
        ``sum_t (recall_t - recall_before) * precision_t`` over the distinct scores t in falling order, an
        input being flagged iff its score is at least t; no trapezoids. ``fpr95_out`` is the share of
        in-distribution inputs flagged at the highest t that flags at least 95 % of OoD inputs. ``aupr_in``
        and ``fpr95_in`` are the same with in-distribution as the positive class and the scores negated.

    Raises
    ------
    InvalidInput
        If a side is empty or holds NaN or infinity.

    Notes
    -----
    Inputs with equal scores are always taken together; their order never matters. float32 scores are compared
    as float32 numbers, float64 as float64, a mixture as float64. The time is that of one sort.

    References
    ----------
    Davis and Goadrich, "The relationship between Precision-Recall and ROC curves", ICML 2006.
    Hendrycks and Gimpel, "A baseline for detecting misclassified and out-of-distribution examples",
    ICLR 2017.

    Examples
    --------
    Seven scores, worked by hand. In falling order: 0.7 OoD, 0.5 both (a tie), 0.4 and 0.3 in-distribution,
    0.2 OoD, 0.1 in-distribution.

    * AUROC: the OoD scores 0.7, 0.5 and 0.2 win 4, 3.5 and 1 of 4 comparisons each: 8.5 / 12.
    * AUPR, OoD positive: precision 1/1, 2/3 and 3/6 at 0.7, 0.5 and 0.2: their mean is 13/18.
    * AUPR, in-distribution positive: precision 1/1, 2/3, 3/4 and 4/6 at 0.1, 0.3, 0.4, 0.5: mean 37/48.
    * FPR95, OoD positive: catching all three needs t = 0.2, which flags 3 of 4 in-distribution inputs.
    * FPR95, in-distribution positive: accepting all four needs t = 0.5, which accepts 2 of 3 OoD inputs.

    >>> result = evaluate([0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7])
    >>> print(result)
    4 in-distribution and 3 OoD inputs, higher score = more OoD
    AUROC  0.7083
    positive class         OoD   in-distribution
    AUPR                0.7222            0.7708
    FPR95               0.7500            0.6667
    >>> abs(result.aupr_out - 13 / 18) < 1e-15, abs(result.aupr_in - 37 / 48) < 1e-15
    (True, True)
    """
    id_vector = as_score_vector(id_scores, "id_scores")
    ood_vector = as_score_vector(ood_scores, "ood_scores")
    share = exact_share(tpr, "tpr", allow_one=True)
    if intervals is not None:
        one_of(intervals, "intervals", ("delong", "bootstrap"))
    found = five_metrics(
        merge(id_vector, ood_vector), math.ceil(share * ood_vector.size), math.ceil(share * id_vector.size)
    )
    attached = None
    if intervals == "delong":
        attached = Intervals(method="delong", level=0.95, auroc=delong_interval(id_vector, ood_vector))
    elif intervals == "bootstrap":
        attached = bootstrap_intervals(id_vector, ood_vector, tpr=tpr)
    return RankingResult(
        **found._asdict(), n_id=id_vector.size, n_ood=ood_vector.size, tpr=float(tpr), intervals=attached
    )


def roc_curve(id_scores: ArrayLike, ood_scores: ArrayLike) -> RocCurve:
    """Trace the receiver operating characteristic, OoD positive: flag an input iff its score is at least t.

    Parameters
    ----------
    id_scores, ood_scores : arrays of shape (n_id,) and (n_ood,)
        Scores, higher = more OoD.

    Returns
    -------
    RocCurve
        One point per distinct score in falling order, after the point (0, 0) at threshold infinity.

    Examples
    --------
    >>> curve = roc_curve([0.1, 0.5], [0.5, 0.7])
    >>> curve.thresholds.tolist(), curve.fpr.tolist(), curve.tpr.tolist()
    ([inf, 0.7, 0.5, 0.1], [0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    groups = tie_groups(as_score_vector(id_scores, "id_scores"), as_score_vector(ood_scores, "ood_scores"))
    n_id, n_ood = groups.id_edges[-1], groups.ood_edges[-1]
    return RocCurve(
        thresholds=np.concatenate(([np.inf], groups.thresholds[::-1])),
        fpr=(n_id - groups.id_edges)[::-1] / n_id,
        tpr=(n_ood - groups.ood_edges)[::-1] / n_ood,
    )


def precision_recall_curve(
    id_scores: ArrayLike, ood_scores: ArrayLike, positive: Literal["out", "in"] = "out"
) -> PrecisionRecallCurve:
    """Trace precision against recall at every distinct score.

    Parameters
    ----------
    id_scores, ood_scores : arrays of shape (n_id,) and (n_ood,)
        Scores, higher = more OoD.
    positive : {"out", "in"}
        "out": OoD is positive, an input is flagged iff its score is at least t, thresholds fall.
        "in": in-distribution is positive, an input is accepted iff its score is at most t, thresholds rise.

    Returns
    -------
    PrecisionRecallCurve
        Recall rises to 1. There is no made-up point at recall 0.

    Examples
    --------
    >>> curve = precision_recall_curve([0.1, 0.5], [0.5, 0.7])
    >>> curve.thresholds.tolist(), curve.recall.tolist()
    ([0.7, 0.5, 0.1], [0.5, 1.0, 1.0])
    >>> curve.precision.round(3).tolist(), round(curve.average_precision, 3)
    ([1.0, 0.667, 0.5], 0.833)
    """
    one_of(positive, "positive", ("out", "in"))
    groups = tie_groups(as_score_vector(id_scores, "id_scores"), as_score_vector(ood_scores, "ood_scores"))
    thresholds, hits, others = groups.thresholds, groups.id_edges[1:], groups.ood_edges[1:]
    if positive == "out":
        thresholds = thresholds[::-1].copy()
        hits = (groups.ood_edges[-1] - groups.ood_edges[:-1])[::-1]
        others = (groups.id_edges[-1] - groups.id_edges[:-1])[::-1]
    return PrecisionRecallCurve(
        thresholds=thresholds, precision=hits / (hits + others), recall=hits / hits[-1], positive=positive
    )
