"""The nearest training features: KNN, NNGuide, and the bank that is searched.

The search is exact at the speed of float32: one float32 matrix product finds the few candidates that could be among the
k best, given how far such a product can be off; these are compared in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.base import About, Detector, join
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks, float_blocks, lengths, unit_rows
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.scores import energy_score
from normscale.state import Numbers

Value = Callable[[FloatArray, FloatArray], FloatArray]
"""Of queries and vectors, row by row."""
_PRODUCTS = 1 << 20
"""Products held at once: 4 MB in float32."""
_LEAST_QUERIES = 64
"""Queries whose products are held at once also where the bank is so large that these are more."""
_PAIRS = 1024
"""Candidates compared in float64 at once."""
_MOST_CANDIDATES = 1 / 64
"""Share of a bank above which candidates are so many that float64 products choose among them."""


class FeatureBank:
    """Vectors ``weights * rows / |rows|`` to search among, of rows (m, d); a row of zeros stays one."""

    def __init__(self, rows: Rows, weights: FloatArray) -> None:
        if rows.ndim != 2 or not rows.shape[0] or weights.shape != rows.shape[:1] or not np.isfinite(weights).all():
            raise InvalidInput(f"a bank needs rows and a finite number for each; got {rows.shape} and {weights.shape}.")
        self.rows, self.weights = rows, weights
        self._vectors: NDArray[np.float32] = np.empty(rows.shape, dtype=np.float32)
        self._lengths = np.empty(rows.shape[0])
        for where, block in float_blocks(rows, "bank", fitting=True):
            self._lengths[where] = lengths(block)
            self._vectors[where] = unit_rows(block) * weights[where][:, None]
        empty = self._lengths == 0.0
        self._lengths[empty] = 1.0
        # The nearest vector has the largest product less half of its squared length, which is 1/2, or 0 for zeros.
        self._lead = np.where(empty, 0.5, 0.0)
        self._terms = (rows.shape[1] + 8) * float(np.abs(weights).max())

    def __len__(self) -> int:
        """Return the number of vectors."""
        return int(self.rows.shape[0])

    def distances(self, queries: FloatArray, k: int) -> FloatArray:
        """Euclidean distance of unit vectors (n, d) to the k-th nearest of the bank, whose weights are 1; (n,).

        Distances come from differences of vectors, so that nearly equal vectors lose no digits; a vector of the bank is
        at distance 0 from itself.
        """

        def squared_distances(queries: FloatArray, vectors: FloatArray) -> FloatArray:
            apart = queries - vectors
            return np.asarray(np.einsum("ij,ij->i", apart, apart))

        return np.sqrt(self._smallest(queries, k, self._lead, squared_distances)[:, -1])

    def largest_products(self, queries: FloatArray, k: int) -> FloatArray:
        """The k largest inner products of each query (n, d) with the bank, the largest first; (n, k)."""

        def minus_products(queries: FloatArray, vectors: FloatArray) -> FloatArray:
            return -np.asarray(np.einsum("ij,ij->i", queries, vectors))

        return -self._smallest(queries, k, np.zeros(len(self)), minus_products)

    def _smallest(self, queries: FloatArray, k: int, lead: FloatArray, value: Value) -> FloatArray:
        """The k smallest values of each query with vectors of the bank, in order; (n, k).

        They are those of the k largest products, each with its lead.
        """
        out = np.empty((queries.shape[0], k))
        for where, keys in self._products(queries, lead):
            block = queries[where]
            found = _candidates(keys, k, self._error(np.float32))
            if found is None:
                for i, exact in self._exact_products(block, lead):
                    last = np.partition(exact, len(self) - k)[len(self) - k]
                    columns = np.flatnonzero(exact >= last - 2.0 * self._error(np.float64))
                    values = self._values(block, np.full(columns.size, i), columns, value)
                    out[where.start + i] = np.sort(values)[:k]
                continue
            rows, columns = found
            values = self._values(block, rows, columns, value)
            order = np.lexsort((values, rows))
            starts = np.searchsorted(rows, np.arange(block.shape[0]))
            out[where] = values[order][starts[:, None] + np.arange(k)]
        return out

    def _values(self, queries: FloatArray, rows: IntArray, columns: IntArray, value: Value) -> FloatArray:
        """Values of pairs of a query and a vector, in float64."""
        values = np.empty(rows.size)
        for a in range(0, rows.size, _PAIRS):
            pairs = slice(a, a + _PAIRS)
            values[pairs] = value(queries[rows[pairs]], self._vector(columns[pairs]))
        return values

    def _error(self, dtype: type[np.floating[Any]]) -> float:
        """How far a product of a unit vector with the bank can be off when it is computed in this precision."""
        return float(self._terms * np.finfo(dtype).eps)

    def _vector(self, columns: IntArray | slice) -> FloatArray:
        vectors: FloatArray = self.rows[columns] / self._lengths[columns, None]  # bit by bit what unit_rows gives
        vectors *= self.weights[columns, None]
        return vectors

    def _products(self, queries: FloatArray, lead: FloatArray) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Blocks of queries with their float32 products; the larger, the nearer."""
        size = min(queries.shape[0], max(_LEAST_QUERIES, _PRODUCTS // len(self)))
        room: NDArray[np.float32] = np.empty((size, len(self)), dtype=np.float32)
        for a in range(0, queries.shape[0], max(1, size)):
            where = slice(a, min(a + size, queries.shape[0]))
            keys = np.matmul(queries[where].astype(np.float32), self._vectors.T, out=room[: where.stop - a])
            if lead.any():
                keys += lead.astype(np.float32)
            yield where, keys

    def _exact_products(self, queries: FloatArray, lead: FloatArray) -> Iterator[tuple[int, FloatArray]]:
        """Every query's place and its float64 products (m,)."""
        step = max(1, _PRODUCTS // (8 * queries.shape[1]))
        size = max(1, _PRODUCTS // (2 * len(self)))
        for a in range(0, queries.shape[0], size):
            block = queries[a : a + size]
            keys = np.tile(lead, (block.shape[0], 1))
            for b in range(0, len(self), step):
                keys[:, b : b + step] += block @ self._vector(slice(b, b + step)).T
            yield from enumerate(keys, a)


def _candidates(keys: NDArray[np.float32], k: int, error: float) -> tuple[IntArray, IntArray] | None:
    """Rows and columns, sorted by row, of the entries that may be among the k largest of their row.

    Each may be off by up to ``error``. None where there are too many to look at one by one.
    """
    n, m = keys.shape
    groups = m // (8 * k)
    if groups >= 4:  # the k-th largest of the groups' maxima is at most the k-th largest of all, and hardly less
        width = m // groups
        tops = keys[:, : groups * width].reshape(n, groups, width).max(axis=1)
        bound = np.partition(tops, width - k, axis=1)[:, width - k]
    else:
        bound = np.partition(keys, m - k, axis=1)[:, m - k]
    flat = np.flatnonzero(keys >= (bound - 2.0 * error)[:, None])
    if flat.size > n * (k + max(4 * k, m * _MOST_CANDIDATES)):
        return None
    return flat // m, flat % m


_MOST_NEIGHBOURS = 50
"""The k of automatic choice where there are many training rows."""


@register
class KNN(Detector):
    """Distance of the features to the k-th nearest training features, all of length one.

        score = |f/|f| - (the k-th nearest f_i/|f_i| of the training rows)|

    The search is exact. A row of zeros has no direction; it stays the zero vector, at distance 1 from every other.

    Examples
    --------
    >>> KNN(k=1).fit(np.array([[2.0, 0.0], [0.0, 5.0]])).score(np.array([[7.0, 0.0], [-1.0, 0.0]])).round(4).tolist()
    [0.0, 1.4142]
    """

    name = "knn"
    about = About(
        "KNN",
        'Sun et al. 2022: "Out-of-Distribution Detection with Deep Nearest Neighbors"',
        cost="a matrix product with the bank, and a partial sort",
        parameters={
            "k": "which neighbour counts; a bank of fewer rows uses its last. By default a tenth of the rows of a "
            "class, at most 50: beyond that neighbours are of other classes. The paper takes 50 for CIFAR-10, 200 for "
            "CIFAR-100 and 1000 for ImageNet"
        },
    )
    reads: tuple[str, ...] = (FEATURES,)

    class Fitted(NamedTuple):
        bank: Annotated[Rows, Numbers("rows", FEATURES)]

    fitted_: Any
    bank_: FeatureBank
    k_: int
    """The neighbour that counts."""

    def __init__(self, k: int | None = None) -> None:
        self.k = None if k is None else _validate.at_least(k, "k", 1)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        train = join(chunks)
        if not np.isfinite(train.features).all():
            raise _validate.invalid_row_error(train.features, FEATURES)
        rows = train.features.astype(np.result_type(train.features.dtype, np.float16).newbyteorder("="))
        self._learn(self._bank(rows, train))

    def _bank(self, rows: Rows, train: ModelOutputs) -> Any:
        """What is kept of training rows with these features."""
        return self.Fitted(rows)

    @by_blocks
    def _score(self, features: FloatArray) -> FloatArray:
        return self.bank_.distances(unit_rows(features), self.k_)

    def _derive(self) -> None:
        bank, *weights = self.fitted_
        self.bank_ = FeatureBank(bank, weights[0] if weights else np.ones(len(bank)))
        present = 1 if self._baseline is None else int(np.count_nonzero(self._baseline.predicted))
        usual = min(max(len(bank) // (10 * present), 1), _MOST_NEIGHBOURS)
        self.k_ = min(usual if self.k is None else self.k, len(bank))


@register
class NNGuide(KNN):
    """Nearest-neighbour guidance: minus energy times the mean of the k largest similarities to the training rows.

        score = -E(z) * mean over the k largest of E(z_i) f' f_i / (|f| |f_i|),    E(z) = log sum exp(z)

    The search is exact. A row of zeros has no direction; every similarity to it is 0.
    """

    name = "nnguide"
    about = About(
        "NNGuide",
        'Park, Jung & Teoh 2023: "Nearest Neighbor Guidance for Out-of-Distribution Detection"',
        parameters={"k": "how many of the largest similarities count; 10 is what pytorch-ood takes"},
    )
    reads = (LOGITS, FEATURES)

    class Fitted(NamedTuple):
        bank: Annotated[Rows, Numbers("rows", FEATURES)]
        energies: Annotated[FloatArray, Numbers("rows")]

    def __init__(self, k: int | None = 10) -> None:
        super().__init__(k)

    def _bank(self, rows: Rows, train: ModelOutputs) -> Fitted:
        return self.Fitted(rows, -energy_score(train.logits))

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        guidance = self.bank_.largest_products(unit_rows(features), self.k_).mean(axis=1)
        return energy_score(logits) * guidance
