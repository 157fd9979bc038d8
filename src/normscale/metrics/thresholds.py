"""Where to draw the line: thresholds that accept a given share of in-distribution inputs, and the one of a detector."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import BoolArray, FloatArray, as_class_indices, as_finite_vector, at_least, exact_share
from normscale.errors import FileFormatError, InvalidInput

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


class Threshold(NamedTuple):
    """Where a detector draws the line; an input is out-of-distribution iff its score is greater.

    ``keep`` is the share of in-distribution inputs it was set to accept and ``n`` how many it was set on; both are
    None for a number that a person chose.
    """

    value: float
    per_class: tuple[float, ...] | None = None
    keep: float | None = None
    n: int | None = None
    conformal: bool = False

    @classmethod
    def at(
        cls,
        scores: ArrayLike,
        predicted: ArrayLike | None = None,
        n_classes: int | None = None,
        *,
        keep: float = 0.95,
        conformal: bool = False,
    ) -> Threshold:
        """Set the threshold on in-distribution scores; with ``predicted``, one for each predicted class too."""
        vector = as_finite_vector(scores, "scores")
        per_class = None
        if predicted is not None and n_classes is not None:
            values = thresholds_per_class(vector, predicted, n_classes, keep, conformal=conformal)
            per_class = tuple(values.tolist())
        value = threshold_at(vector, keep, conformal=conformal)
        return cls(value, per_class, float(keep), int(vector.size), bool(conformal))

    def flags(self, scores: ArrayLike, predicted: ArrayLike | None = None) -> BoolArray:
        """Which scores are out-of-distribution; shape (n,). A NaN score (a skipped row) is flagged."""
        values = np.asarray(scores, dtype=np.float64)
        limit: Any = self.value
        if self.per_class is not None:
            if predicted is None:
                raise InvalidInput("predicted is needed: this detector has one threshold per predicted class.")
            classes = as_class_indices(predicted, "predicted", length=values.size, n_classes=len(self.per_class))
            limit = np.asarray(self.per_class)[classes]
        accepted: BoolArray = values <= limit
        return ~accepted

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> Threshold:
        """Read back what ``_asdict`` gave, as a detector file stores it."""
        try:
            per_class = header["per_class"] and tuple(float(value) for value in header["per_class"])
            return cls(float(header["value"]), per_class, header["keep"], header["n"], bool(header["conformal"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"the stored threshold is damaged ({error!r}); set it again.") from error
