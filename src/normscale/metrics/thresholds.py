"""Where to draw the line: thresholds that accept a given share of in-distribution inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import FloatArray, as_class_indices, as_finite_vector, at_least, exact_share
from normscale.errors import InvalidInput

if TYPE_CHECKING:
    from fractions import Fraction


def threshold_at(id_scores: ArrayLike, keep: float = 0.95, *, conformal: bool = False) -> float:
    """Find the threshold that keeps a share of in-distribution inputs; accept iff score <= threshold.

    It is the k-th smallest score, ``k = ceil(keep * n)``: the smallest number such that at least ``keep`` of
    ``id_scores`` do not exceed it.

    Parameters
    ----------
    id_scores : array of shape (n,)
        Scores of in-distribution inputs that the detector was not fitted on, higher = more OoD.
    keep : float in (0, 1]
        Share to accept, taken as the decimal that was typed: 0.55 of 20 are 11.
    conformal : bool
        Use ``k = ceil(keep * (n + 1))``. Then a NEW input, exchangeable with ``id_scores``, is accepted with a
        probability of at least ``keep``, whatever the distribution (Vovk, Gammerman and Shafer, 2005). It needs
        at least ``keep / (1 - keep)`` scores.

    Examples
    --------
    >>> import numpy as np
    >>> threshold_at(np.arange(1, 21), keep=0.95), threshold_at(np.arange(1, 21), keep=0.95, conformal=True)
    (19.0, 20.0)
    """
    scores = as_finite_vector(id_scores, "id_scores")
    share = exact_share(keep, "keep", allow_one=not conformal)
    if scores.size < _smallest_n(share, conformal):
        raise InvalidInput(
            f"id_scores must hold at least {_smallest_n(share, conformal)} scores for a conformal threshold "
            f"with keep={keep}; got {scores.size}. Pass more scores or a smaller keep."
        )
    return _threshold(scores, share, conformal)


def thresholds_per_class(
    id_scores: ArrayLike,
    id_predicted: ArrayLike,
    n_classes: int,
    keep: float = 0.95,
    *,
    conformal: bool = False,
    min_count: int = 1,
) -> FloatArray:
    """Find one threshold per predicted class; accept iff score <= threshold of the class predicted.

    Parameters
    ----------
    id_scores, id_predicted : arrays of shape (n,)
        Scores of in-distribution inputs, higher = more OoD, and their predicted classes.
    n_classes : int
    keep, conformal
        As in :func:`threshold_at`, within each class.
    min_count : int
        A class with fewer scores, or with too few for ``conformal``, gets the threshold of all scores together.

    Examples
    --------
    >>> thresholds_per_class([0.1, 0.2, 0.8, 0.9], [0, 0, 2, 2], n_classes=3).tolist()
    [0.2, 0.9, 0.9]
    """
    scores = as_finite_vector(id_scores, "id_scores")
    n_classes = at_least(n_classes, "n_classes", 1)
    min_count = at_least(min_count, "min_count", 1)
    classes = as_class_indices(id_predicted, "id_predicted", length=scores.size, n_classes=n_classes)
    share = exact_share(keep, "keep", allow_one=not conformal)
    thresholds = np.full(n_classes, threshold_at(scores, keep, conformal=conformal))
    counts = np.bincount(classes, minlength=n_classes)
    ordered = scores[np.argsort(classes, kind="stable")]
    enough = max(min_count, _smallest_n(share, conformal))
    for label, part in enumerate(np.split(ordered, np.cumsum(counts)[:-1])):
        if part.size >= enough:
            thresholds[label] = _threshold(part, share, conformal)
    return thresholds


def _threshold(scores: FloatArray, share: Fraction, conformal: bool) -> float:
    place = math.ceil(share * (scores.size + conformal)) - 1
    return float(np.partition(scores, place)[place])


def _smallest_n(share: Fraction, conformal: bool) -> int:
    """Fewest scores that have a threshold: ceil(share * (n + 1)) <= n iff n >= share / (1 - share)."""
    return math.ceil(share / (1 - share)) if conformal else 1
