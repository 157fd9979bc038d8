"""Running mean and variance of every class's logit: update, merge, take apart, prefix.

Every row of logits brings one number for each class, so one weight serves all classes. Kept are the weight
(how many rows; a prior may weigh a fraction of one), the mean and M2, the sum of squared deviations from it, in
float64. The variance is the population's, M2 / weight, as in the paper.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normscale import _kernels, _validate
from normscale._kernels import BlockState, reference
from normscale._validate import FloatArray
from normscale.errors import InvalidInput
from normscale.state import Numbers, copied, same_records


def declared_moments(columns: str = "columns") -> dict[str, Numbers]:
    """What the parts of a :class:`BlockState` in a record must be; ``columns`` names their number."""
    return {"weight": Numbers(least=0.0), "mean": Numbers(columns), "m2": Numbers(columns, least=0.0)}


class RunningMoments:
    """Weight, mean and M2 of each column of a stream of rows.

    Update by Welford's recurrence, merge by Chan, Golub & LeVeque (1983): both keep the digits that the textbook
    formula "mean of squares less square of mean" loses. A column that never varies has M2 of exactly 0.

    Examples
    --------
    >>> a = RunningMoments(2).update([[1.0, 10.0], [3.0, 10.0]])
    >>> b = RunningMoments(2).update([[5.0, 10.0]])
    >>> both = a.merge(b)
    >>> both.weight, both.mean.tolist(), both.variance.round(4).tolist()
    (3.0, [3.0, 10.0], [2.6667, 0.0])
    """

    __slots__ = ("state",)

    def __init__(self, n_columns: int) -> None:
        width = _validate.at_least(n_columns, "n_columns", 1)
        self.state = BlockState(0.0, np.zeros(width), np.zeros(width))

    @classmethod
    def from_state(cls, weight: float, mean: ArrayLike, m2: ArrayLike) -> RunningMoments:
        """Moments from their three numbers, checked."""
        means = _validate.as_finite_vector(mean, "mean")
        squares = _validate.as_finite_vector(m2, "m2")
        weight = _validate.real(weight, "weight")
        if means.shape != squares.shape:
            raise InvalidInput(f"mean and m2 must have the same shape; got {means.shape} and {squares.shape}.")
        if not 0 <= weight < np.inf:
            raise InvalidInput(f"weight must be finite and at least 0; got {weight!r}.")
        if (squares < 0).any():
            raise InvalidInput(f"m2 must be at least 0; got {squares.min():g} in column {int(squares.argmin())}.")
        return cls.wrap(BlockState(weight, means.copy(), squares.copy()))

    @classmethod
    def wrap(cls, state: BlockState) -> RunningMoments:
        """Moments around a state that a kernel made; nothing is checked."""
        self = cls.__new__(cls)
        self.state = state
        return self

    @property
    def weight(self) -> float:
        """Rows taken in, plus the prior's weight."""
        return self.state.weight

    @property
    def mean(self) -> FloatArray:
        """Mean of each column; shape (C,)."""
        return self.state.mean

    @property
    def m2(self) -> FloatArray:
        """Sum of squared deviations from the mean; shape (C,)."""
        return self.state.m2

    @property
    def variance(self) -> FloatArray:
        """Population variance of each column; shape (C,). Zero before any row."""
        return self.m2 / self.weight if self.weight else np.zeros_like(self.m2)

    @property
    def std(self) -> FloatArray:
        """Population standard deviation of each column; shape (C,)."""
        return np.sqrt(self.variance)

    def update(self, rows: ArrayLike, *, threads: int = 1, name: str = "rows") -> RunningMoments:
        """Take a block of rows (n, C) in, whole or not at all, and return self; ``name`` is what errors call them."""
        block = _validate.as_rows(rows, name, width=self.mean.size, min_width=1)
        state = _kernels.absorb(block, *self.state, threads=threads)
        if state is None:
            raise _validate.invalid_row_error(block, name)
        self.state = state
        return self

    def merge(self, other: RunningMoments) -> RunningMoments:
        """The moments of both sets of rows together, as a new object."""
        self._require_same_width(other)
        return self.wrap(_kernels.combine(self.state, other.state))

    def without(self, other: RunningMoments) -> RunningMoments:
        """Undo a merge: the moments of the rows that are in self but not in ``other``.

        Exact up to rounding of relative size weight / (weight - other.weight): fine for taking a prior out of a
        stream, useless for taking out nearly everything.
        """
        self._require_same_width(other)
        weight = self.weight - other.weight
        if weight < 0.0:
            raise InvalidInput(
                f"cannot take moments of weight {other.weight:g} out of moments of weight {self.weight:g}."
            )
        if weight == 0.0:
            return RunningMoments(self.mean.size)
        mean = self.mean + (self.mean - other.mean) * (other.weight / weight)
        delta = mean - other.mean
        m2 = self.m2 - other.m2 - delta * delta * (other.weight * (weight / self.weight))
        return self.wrap(BlockState(weight, mean, np.maximum(m2, 0.0)))

    def reweighted(self, weight: float) -> RunningMoments:
        """The same mean and variance, counting as ``weight`` rows: a prior for a new stream."""
        weight = _validate.positive(weight, "weight")
        return self.wrap(BlockState(weight, self.mean.copy(), self.variance * weight))

    def prefix(self, rows: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The weights (n,), means and variances (n, C) after every row of a block, without taking it in."""
        block = _validate.as_rows(rows, "rows", width=self.mean.size, min_width=1)
        block = np.ascontiguousarray(block, dtype=np.float64)
        weights = self.weight + np.arange(1.0, len(block) + 1.0)
        means, variances = np.empty((2, *block.shape))
        with np.errstate(all="ignore"):
            for place, before, _, moved, mean_square in reference.prefix(block, *self.state):
                means[place] = reference.in_rows(before + moved)
                variances[place] = reference.in_rows(np.maximum(mean_square - moved * moved, 0.0))
        if not (np.isfinite(variances[-1:]).all() and np.isfinite(means[-1:]).all()):
            raise _validate.invalid_row_error(block, "rows")
        return weights, means, variances

    def copy(self) -> RunningMoments:
        """An independent copy."""
        return self.wrap(copied(self.state))

    def __eq__(self, other: Any) -> bool:
        """Equal to the bit."""
        if not isinstance(other, RunningMoments):
            return NotImplemented
        return same_records(self.state, other.state)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Show the weight and the number of columns."""
        return f"RunningMoments(weight={self.weight:g}, n_columns={self.mean.size})"

    def _require_same_width(self, other: RunningMoments) -> None:
        if self.mean.size != other.mean.size:
            raise InvalidInput(
                f"moments of {self.mean.size} columns cannot be combined with moments of {other.mean.size}."
            )


def scale_factor(moments: RunningMoments, temperature: float = 1.0) -> FloatArray:
    """1 / (tau * sigma_j) of each column, by which norm-scaling multiplies; 0 where sigma_j is 0; shape (C,)."""
    std = moments.std
    factor = np.zeros_like(std)
    np.divide(1.0 / temperature, std, out=factor, where=std > 0.0)
    return factor
