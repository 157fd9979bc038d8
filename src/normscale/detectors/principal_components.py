"""The leading principal components of features."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray, Rows
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES


class PrincipalComponents(NamedTuple):
    """Where rows lie along the directions in which training rows vary most."""

    centre: FloatArray
    """(d,) mean of the training rows."""
    directions: FloatArray
    """(d, k) orthonormal, the most important first."""

    @classmethod
    def of(cls, rows: Rows, k: int) -> Self:
        """The k leading components of rows (n, d), or d where there are fewer."""
        if not np.isfinite(rows).all():
            raise _validate.invalid_row_error(rows, FEATURES)
        centre = rows.mean(axis=0, dtype=np.float64)
        covariance = np.zeros((rows.shape[1],) * 2)
        for a in range(0, len(rows), 4096):
            part = rows[a : a + 4096] - centre
            covariance += part.T @ part
        _, vectors = np.linalg.eigh(covariance / len(rows))
        return cls(centre, np.ascontiguousarray(vectors[:, ::-1][:, :k]))

    def of_rows(self, rows: Rows) -> FloatArray:
        """The components (n, k) of rows (n, d)."""
        components: FloatArray = (rows - self.centre) @ self.directions
        if not np.isfinite(components).all():
            raise _validate.invalid_row_error(rows, FEATURES, can_skip=True)
        return components

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What a detector file stores."""
        return {"components.centre": self.centre, "components.directions": self.directions}

    @classmethod
    def from_tensors(cls, tensors: dict[str, NDArray[Any]]) -> Self:
        """Read them back."""
        self = cls(tensors["components.centre"], tensors["components.directions"])
        if self.directions.shape[:1] != self.centre.shape or not np.isfinite(self.directions).all():
            raise InvalidInput("components.directions must be finite, with a row for each feature.")
        return self
