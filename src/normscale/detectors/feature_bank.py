"""Training features to search among: the sample that is kept, and the exact search for the nearest.

The search is exact at the speed of float32: one float32 matrix product finds the few candidates that could be among
the k best, given how far such a product can be off; these are compared in float64.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.row_blocks import float_blocks, lengths
from normscale.errors import InvalidInput

_PRODUCTS = 1 << 23
"""Products held at once: 32 MB in float32."""
_PAIRS = 4096
"""Candidates compared in float64 at once."""
_MOST_CANDIDATES = 1 / 64
"""Share of a bank above which candidates are so many that all of it is compared in float64."""
_COLUMNS = 8192


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
        self._scale = np.zeros(rows.shape[0])
        self._vectors: NDArray[np.float32] = np.empty(rows.shape, dtype=np.float32)
        for where, block in float_blocks(rows, "bank", fitting=True):
            size = lengths(block)
            used = np.where(size > 0.0, size, 1.0)
            self._scale[where] = np.where(size > 0.0, weights[where], 0.0) / used
            self._vectors[where] = block / used[:, None] * weights[where][:, None]
        self._half: FloatArray | None = None
        if not self._scale.all():  # |b|^2 is not the same for all, so that the nearest is not the largest product
            self._half = np.where(self._scale == 0.0, 0.5, 0.0)
        largest = float(np.abs(weights).max())
        self._error = (rows.shape[1] + 8) * largest * float(np.finfo(np.float32).eps)

    def __len__(self) -> int:
        """Return the number of vectors."""
        return int(self.rows.shape[0])

    def distances(self, queries: FloatArray, k: int) -> FloatArray:
        """Euclidean distance of unit vectors (n, d) to the k-th nearest of the bank, whose weights are 1; (n,)."""
        out = np.empty(queries.shape[0])
        for where, keys in self._all_keys(queries, self._half):
            block = queries[where]
            found = _candidates(keys, k, self._error, only_last=True)
            if found is None:
                exact = self._exact_keys(block, self._half)
                best = np.partition(exact, len(self) - k, axis=1)[:, len(self) - k]
                squares = 1.0 + np.einsum("ij,ij->i", block, block) - 2.0 * best
                out[where] = np.sqrt(np.maximum(squares, 0.0))
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

    def mean_products(self, queries: FloatArray, k: int) -> FloatArray:
        """Mean of the k largest inner products of each query (n, d) with the bank; (n,)."""
        out = np.empty(queries.shape[0])
        for where, keys in self._all_keys(queries, None):
            block = queries[where]
            found = _candidates(keys, k, self._error, only_last=False)
            if found is None:
                exact = self._exact_keys(block, None)
                out[where] = np.partition(exact, len(self) - k, axis=1)[:, len(self) - k :].mean(axis=1)
                continue
            rows, columns, _ = found
            values = np.empty(rows.size)
            for a in range(0, rows.size, _PAIRS):
                pairs = slice(a, a + _PAIRS)
                values[pairs] = np.einsum("ij,ij->i", block[rows[pairs]], self._vector(columns[pairs]))
            order = np.lexsort((-values, rows))
            starts = np.searchsorted(rows, np.arange(block.shape[0]))
            out[where] = values[order][starts[:, None] + np.arange(k)].mean(axis=1)
        return out

    def _vector(self, columns: IntArray) -> FloatArray:
        vectors: FloatArray = self.rows[columns] * self._scale[columns, None]
        return vectors

    def _all_keys(self, queries: FloatArray, half: FloatArray | None) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Blocks of queries with their float32 products; the larger, the nearer."""
        size = min(queries.shape[0], max(64, _PRODUCTS // len(self)))
        room: NDArray[np.float32] = np.empty((size, len(self)), dtype=np.float32)
        for a in range(0, queries.shape[0], max(1, size)):
            where = slice(a, min(a + size, queries.shape[0]))
            keys = np.matmul(queries[where].astype(np.float32), self._vectors.T, out=room[: where.stop - a])
            if half is not None:
                keys += half.astype(np.float32)
            yield where, keys

    def _exact_keys(self, block: FloatArray, half: FloatArray | None) -> FloatArray:
        keys = np.empty((block.shape[0], len(self)))
        for a in range(0, len(self), _COLUMNS):
            columns = np.arange(a, min(a + _COLUMNS, len(self)))
            keys[:, columns] = block @ self._vector(columns).T
        return keys if half is None else keys + half


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
