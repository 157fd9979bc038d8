"""From scores to yes or no: the threshold that a detector carries."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normscale import _validate
from normscale._validate import BoolArray
from normscale.errors import FileFormatError, InvalidInput
from normscale.metrics.thresholds import threshold_at, thresholds_per_class


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
        vector = _validate.as_finite_vector(scores, "scores")
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
            classes = _validate.as_class_indices(
                predicted, "predicted", length=values.size, n_classes=len(self.per_class)
            )
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
