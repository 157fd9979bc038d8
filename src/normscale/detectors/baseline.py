"""What the training rows looked like: the baseline that a live stream is compared with."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from normscale import _kernels, _validate
from normscale._validate import FloatArray, IntArray, Rows
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments


class TrainingBaseline:
    """How many training rows were predicted as each class, the moments of their logits and of what else is read.

    Examples
    --------
    >>> baseline = TrainingBaseline(2)
    >>> baseline.take_in(np.array([[2.0, 0.0], [3.0, 1.0], [0.0, 4.0]]))
    >>> baseline.predicted.tolist(), baseline.moments.mean.round(3).tolist()
    ([2, 1], [1.667, 1.667])
    """

    __slots__ = ("moments", "others", "predicted")

    def __init__(self, n_classes: int) -> None:
        """Start with no rows."""
        self.predicted: IntArray = np.zeros(n_classes, np.int64)
        """(C,) how many rows were predicted as each class."""
        self.moments = RunningMoments(n_classes)
        """Of the logits."""
        self.others: dict[str, RunningMoments] = {}
        """Of the other arrays that the detector reads, by name."""

    def take_in(self, logits: Rows) -> None:
        """Count rows in, all of them or, where one is not finite, none."""
        state = _kernels.absorb(logits, *self.moments.state)
        if state is None:
            raise _validate.invalid_row_error(logits, "logits")
        self.moments.state = state
        self.predicted += np.bincount(_kernels.predicted(logits), minlength=self.predicted.size)

    def take_in_other(self, name: str, rows: Rows) -> None:
        """Count the rows of another array in."""
        self.others.setdefault(name, RunningMoments(rows.shape[1])).update(rows, name=name)

    def merge(self, other: TrainingBaseline) -> TrainingBaseline:
        """The baseline of both sets of rows, of equal width; neither is changed."""
        merged = TrainingBaseline(self.predicted.size)
        merged.predicted = self.predicted + other.predicted
        merged.moments = self.moments.merge(other.moments)
        merged.others = {name: moments.merge(other.others[name]) for name, moments in self.others.items()}
        return merged

    @property
    def share(self) -> FloatArray:
        """(C,) the share of rows predicted as each class."""
        share: FloatArray = self.predicted / self.predicted.sum()
        return share

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What a detector file stores."""
        tensors: dict[str, NDArray[Any]] = {"baseline.predicted": self.predicted}
        for prefix, moments in {"baseline": self.moments, **self._prefixed()}.items():
            tensors |= {f"{prefix}.mean": moments.mean, f"{prefix}.m2": moments.m2}
        return tensors

    def _prefixed(self) -> dict[str, RunningMoments]:
        return {f"baseline.of.{name}": moments for name, moments in self.others.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, NDArray[Any]]) -> Self | None:
        """Read it back; None from a file that has none."""
        if "baseline.predicted" not in tensors:
            return None
        predicted = _validate.as_finite_vector(tensors["baseline.predicted"], "baseline.predicted").astype(np.int64)
        if (predicted < 0).any() or not predicted.any():
            raise InvalidInput("baseline.predicted must hold counts of rows, not all 0.")
        self = cls(predicted.size)
        self.predicted = predicted
        self.moments = RunningMoments.from_state(
            float(predicted.sum()), tensors["baseline.mean"], tensors["baseline.m2"]
        )
        if self.moments.mean.size != predicted.size:
            raise InvalidInput("baseline.mean must have one entry for each class.")
        for key in tensors:
            if key.startswith("baseline.of.") and key.endswith(".mean"):
                name = key.removeprefix("baseline.of.").removesuffix(".mean")
                squares = tensors[f"baseline.of.{name}.m2"]
                self.others[name] = RunningMoments.from_state(float(predicted.sum()), tensors[key], squares)
        return self
