"""The leading principal components of features."""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, Rows
from normscale.outputs import FEATURES
from normscale.state import Numbers


class PrincipalComponents(NamedTuple):
    """Where rows lie along the directions in which training rows vary most."""

    centre: Annotated[FloatArray, Numbers(FEATURES)]
    """(d,) mean of the training rows."""
    directions: Annotated[FloatArray, Numbers(FEATURES, "components_kept")]
    """(d, k) orthonormal, the most important first."""

    @classmethod
    def of(cls, rows: Rows, k: int) -> Self:
        """The k leading components of rows (n, d), or d where there are fewer."""
        if not np.isfinite(rows).all():
            raise _validate.invalid_row_error(rows, FEATURES)
        centre = rows.mean(axis=0, dtype=np.float64)
        covariance = np.zeros((rows.shape[1],) * 2)
        with np.errstate(over="ignore", invalid="ignore"):
            for a in range(0, len(rows), 4096):
                part = rows[a : a + 4096] - centre
                covariance += part.T @ part
        if not np.isfinite(covariance).all():
            raise _validate.invalid_row_error(rows, FEATURES)
        _, vectors = np.linalg.eigh(covariance / len(rows))
        return cls(centre, np.ascontiguousarray(vectors[:, ::-1][:, :k]))

    def of_rows(self, rows: Rows) -> FloatArray:
        """The components (n, k) of rows (n, d)."""
        components: FloatArray = (rows - self.centre) @ self.directions
        if not np.isfinite(components).all():
            raise _validate.invalid_row_error(rows, FEATURES, can_skip=True)
        return components
