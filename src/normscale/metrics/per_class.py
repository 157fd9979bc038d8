"""One threshold per predicted class: the ranking metrics within each class, averaged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import IntArray, as_both_sides, as_class_indices, exact_share
from normscale.errors import InvalidInput
from normscale.metrics._tie_groups import Scores
from normscale.metrics.metric import METRICS, Values, number_of
from normscale.metrics.ranking import RankingResult, evaluate_checked
from normscale.metrics.record import Record


@dataclass(frozen=True, kw_only=True, eq=False)
class PerClassResult(Record):
    """What :func:`evaluate_per_class` found: means over classes, and what each class gave.

    ``skipped`` maps a class to the reason why it has no metric; ``per_class`` maps every other class to its
    :class:`RankingResult`. ``n_id`` and ``n_ood`` count all inputs, those of skipped classes included.
    """

    auroc: float
    aupr_out: float
    aupr_in: float
    fpr95_out: float
    fpr95_in: float
    n_id: int
    n_ood: int
    n_groups: int
    n_skipped: int
    skipped: dict[int, str]
    per_class: dict[int, RankingResult]
    tpr: float = 0.95
    further: Values = field(default_factory=dict)
    """Means of metrics that others registered; each is an attribute, too."""

    @property
    def metrics(self) -> Values:
        """Every metric by name."""
        return self._means().metrics

    def __getattr__(self, name: str) -> float:
        return float(number_of(self.__dict__.get("further", {}), name, type(self).__name__))

    def _means(self) -> RankingResult:
        shared = {one.name: getattr(self, one.name) for one in fields(RankingResult) if one.name != "intervals"}
        return RankingResult(**shared)

    @property
    def positive(self) -> str:
        """Which class counts as positive, in words."""
        return "OoD for *_out, in-distribution for *_in"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values ready for JSON."""
        values = super().to_dict()
        further: dict[str, Any] = values.pop("further")
        return values | further | {"positive": self.positive}

    def __str__(self) -> str:
        """Lay the means out as :class:`RankingResult` does, with the number of classes on top."""
        return f"mean over {self.n_groups} predicted classes ({self.n_skipped} skipped)\n{self._means()}"


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

    Parameters
    ----------
    id_scores, ood_scores : arrays of shape (n_id,) and (n_ood,)
        Scores, higher = more OoD.
    id_predicted, ood_predicted : integer arrays of shape (n_id,) and (n_ood,)
        Predicted class of each input.
    tpr : float in (0, 1]
        True positive rate of ``fpr95_*``, as in :func:`evaluate`.

    Examples
    --------
    >>> result = evaluate_per_class([0.1, 0.6, 0.2, 0.3], [0, 1, 0, 2], [0.4, 0.7, 0.15], [0, 1, 0])
    >>> result.auroc, result.n_groups, result.skipped
    (0.875, 2, {2: 'no OoD input'})
    """
    id_vector, ood_vector = as_both_sides(id_scores, ood_scores)
    id_classes = as_class_indices(id_predicted, "id_predicted", length=id_vector.size)
    ood_classes = as_class_indices(ood_predicted, "ood_predicted", length=ood_vector.size)
    share = exact_share(tpr, "tpr", allow_one=True)
    id_groups, ood_groups = _split(id_vector, id_classes), _split(ood_vector, ood_classes)
    skipped: dict[int, str] = {}
    per_class: dict[int, RankingResult] = {}
    for label in sorted(id_groups.keys() | ood_groups.keys()):
        if label not in ood_groups:
            skipped[label] = "no OoD input"
        elif label not in id_groups:
            skipped[label] = "no in-distribution input"
        else:
            per_class[label] = evaluate_checked(id_groups[label], ood_groups[label], share, tpr)
    if not per_class:
        raise InvalidInput(
            f"id_predicted and ood_predicted have no class in common ({len(skipped)} are on one side only), "
            "so no group can be evaluated. Use evaluate for one threshold over all classes."
        )
    means = {
        name: math.fsum(getattr(result, name) for result in per_class.values()) / len(per_class) for name in METRICS
    }
    overall = RankingResult.of(means, n_id=id_vector.size, n_ood=ood_vector.size, tpr=float(tpr))
    shared = {one.name: getattr(overall, one.name) for one in fields(overall) if one.name != "intervals"}
    return PerClassResult(
        **shared,
        n_groups=len(per_class),
        n_skipped=len(skipped),
        skipped=skipped,
        per_class=per_class,
    )


def _split(scores: Scores, classes: IntArray) -> dict[int, Scores]:
    """Scores of each class that occurs, from one stable sort."""
    fits = classes.max() < 1 << 16
    order = np.argsort(classes.astype(np.uint16) if fits else classes, kind="stable")  # 16 bits: radix sort
    ordered = classes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    parts = np.split(scores[order], starts[1:])
    return {int(label): part for label, part in zip(ordered[starts], parts, strict=True)}
