"""Training features to search among: the sample that is kept, and the exact search for the nearest.

The search is exact at the speed of float32: one float32 matrix product finds the few candidates that could be among
the k best, given how far such a product can be off; these are compared in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.row_blocks import float_blocks, lengths, unit_rows
from normscale.errors import InvalidInput

_PRODUCTS = 1 << 21
"""Products held at once: 8 MB in float32."""
_LEAST_QUERIES = 64
"""Queries whose products are held at once also where the bank is so large that these are more."""
_PAIRS = 1024
"""Candidates compared in float64 at once."""
_NEAR = 0.01
"""Squared distances below this are computed from differences of vectors alone."""
_MOST_CANDIDATES = 1 / 64
"""Share of a bank above which candidates are so many that all of it is compared in float64."""


class BankSample:
    """Rows of training chunks, all of them or a sample of fixed size that no split into chunks changes.

    Each row draws a number from a generator of fixed seed; those with the smallest are kept, in their order.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        """``size``: rows to keep; 0 keeps all."""
        self._size = size
        self._rng = np.random.default_rng(seed)
        self._parts: list[tuple[Rows, FloatArray, FloatArray]] = []
        self._held = 0

    def add(self, rows: Rows, weights: FloatArray) -> None:
        """Take rows (b, d) in, with a number for each."""
        native = rows.dtype.newbyteorder("=") if rows.dtype.kind == "f" else np.dtype(np.float64)
        draws: FloatArray = np.asarray(self._rng.random(rows.shape[0]) if self._size else np.zeros(rows.shape[0]))
        self._parts.append((rows.astype(native), weights, draws))
        self._held += rows.shape[0]
        if self._size and self._held > 2 * self._size:
            self._prune()

    def _prune(self) -> None:
        rows, weights, draws = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        if self._size and rows.shape[0] > self._size:
            kept = np.sort(np.argpartition(draws, self._size)[: self._size])
            rows, weights, draws = rows[kept], weights[kept], draws[kept]
        self._parts, self._held = [(rows, weights, draws)], rows.shape[0]

    def result(self) -> tuple[Rows, FloatArray]:
        """The rows kept (m, d), in the dtype they came in, and their numbers (m,)."""
        self._prune()
        return self._parts[0][:2]


class FeatureBank:
    """Vectors ``weights * rows / |rows|`` to search among; a row of zeros stays one.

    Parameters
    ----------
    rows : array (m, d), m >= 1
    weights : array (m,)

    Attributes
    ----------
    rows, weights : as given
    """

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
        self._lead = np.where(empty, 0.5, 0.0) if empty.any() else None
        self._terms = (rows.shape[1] + 8) * float(np.abs(weights).max())

    def __len__(self) -> int:
        """Return the number of vectors."""
        return int(self.rows.shape[0])

    def distances(self, queries: FloatArray, k: int) -> FloatArray:
        """Euclidean distance of unit vectors (n, d) to the k-th nearest of the bank, whose weights are 1; (n,).

        Distances come from differences of vectors, so that nearly equal vectors lose no digits; a vector of the bank is
        at distance 0 from itself.
        """
        out = np.empty(queries.shape[0])
        for where, keys in self._products(queries, self._lead):
            block = queries[where]
            found = _candidates(keys, k, self._error(np.float32), only_last=True)
            if found is None:
                out[where] = self._distances_in_float64(block, k)
                continue
            rows, columns, above = found
            values = np.empty(rows.size)
            for a in range(0, rows.size, _PAIRS):
                pairs = slice(a, a + _PAIRS)
                apart = block[rows[pairs]] - self._vector(columns[pairs])
                values[pairs] = np.einsum("ij,ij->i", apart, apart)
            order = np.lexsort((values, rows))
            starts = np.searchsorted(rows, np.arange(block.shape[0]))
            out[where] = np.sqrt(values[order][starts + (k - 1 - above)])
        return out

    def _distances_in_float64(self, queries: FloatArray, k: int) -> FloatArray:
        """The same for queries that float32 products cannot tell apart: float64 products choose the candidates."""
        out = np.empty(queries.shape[0])
        margin = 2.0 * self._error(np.float64)
        for i, keys in self._exact_products(queries, self._lead):
            last = np.partition(keys, len(self) - k)[len(self) - k]
            query = queries[i]
            square = 1.0 + query @ query - 2.0 * last
            if square < _NEAR:  # what is left of the subtraction has lost digits
                columns = np.flatnonzero(np.abs(keys - last) <= margin)
                squares = np.empty(columns.size)
                for a in range(0, columns.size, _PAIRS):
                    apart = query - self._vector(columns[a : a + _PAIRS])
                    squares[a : a + _PAIRS] = np.einsum("ij,ij->i", apart, apart)
                place = k - 1 - np.count_nonzero(keys > last + margin)
                square = np.partition(squares, place)[place]
            out[i] = np.sqrt(square)
        return out

    def largest_products(self, queries: FloatArray, k: int) -> FloatArray:
        """The k largest inner products of each query (n, d) with the bank, the largest first; (n, k)."""
        out = np.empty((queries.shape[0], k))
        for where, keys in self._products(queries, None):
            block = queries[where]
            found = _candidates(keys, k, self._error(np.float32), only_last=False)
            if found is None:
                for i, exact in self._exact_products(block, None):
                    out[where.start + i] = -np.sort(-np.partition(exact, len(self) - k)[len(self) - k :])
                continue
            rows, columns, _ = found
            values = np.empty(rows.size)
            for a in range(0, rows.size, _PAIRS):
                pairs = slice(a, a + _PAIRS)
                values[pairs] = np.einsum("ij,ij->i", block[rows[pairs]], self._vector(columns[pairs]))
            order = np.lexsort((-values, rows))
            starts = np.searchsorted(rows, np.arange(block.shape[0]))
            out[where] = values[order][starts[:, None] + np.arange(k)]
        return out

    def _error(self, dtype: type[np.floating[Any]]) -> float:
        """How far a product of a unit vector with the bank can be off when it is computed in this precision."""
        return float(self._terms * np.finfo(dtype).eps)

    def _vector(self, columns: IntArray | slice) -> FloatArray:
        vectors: FloatArray = self.rows[columns] / self._lengths[columns, None]  # bit by bit what unit_rows gives
        vectors *= self.weights[columns, None]
        return vectors

    def _products(self, queries: FloatArray, lead: FloatArray | None) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Blocks of queries with their float32 products; the larger, the nearer."""
        size = min(queries.shape[0], max(_LEAST_QUERIES, _PRODUCTS // len(self)))
        room: NDArray[np.float32] = np.empty((size, len(self)), dtype=np.float32)
        for a in range(0, queries.shape[0], max(1, size)):
            where = slice(a, min(a + size, queries.shape[0]))
            keys = np.matmul(queries[where].astype(np.float32), self._vectors.T, out=room[: where.stop - a])
            if lead is not None:
                keys += lead.astype(np.float32)
            yield where, keys

    def _exact_products(self, queries: FloatArray, lead: FloatArray | None) -> Iterator[tuple[int, FloatArray]]:
        """Every query's place and its float64 products (m,)."""
        step = max(1, _PRODUCTS // (8 * queries.shape[1]))
        size = max(1, _PRODUCTS // (2 * len(self)))
        for a in range(0, queries.shape[0], size):
            block = queries[a : a + size]
            keys = np.empty((block.shape[0], len(self)))
            for b in range(0, len(self), step):
                np.matmul(block, self._vector(slice(b, b + step)).T, out=keys[:, b : b + step])
            if lead is not None:
                keys += lead
            yield from enumerate(keys, a)


def _candidates(
    keys: NDArray[np.float32], k: int, error: float, *, only_last: bool
) -> tuple[IntArray, IntArray, IntArray] | None:
    """Which entries of every row may be its k largest (or its k-th) when each is off by up to ``error``.

    Returns rows and columns of the candidates, sorted by row, and for each row how many further entries are surely
    larger than the k-th; None where there are too many candidates to look at one by one.
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
    rows, columns = flat // m, flat % m
    above = np.zeros(n, dtype=np.int64)
    if only_last:
        values = keys.ravel()[flat].astype(np.float64)
        order = np.lexsort((-values, rows))
        starts = np.searchsorted(rows, np.arange(n))
        last = values[order][starts + (k - 1)]
        surely = values > last[rows] + 2.0 * error
        open_ = ~surely & (values >= last[rows] - 2.0 * error)
        above = np.bincount(rows[surely], minlength=n)
        rows, columns = rows[open_], columns[open_]
    return rows, columns, above
