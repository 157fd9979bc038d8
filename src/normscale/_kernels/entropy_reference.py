"""Entropies in blocked numpy: always there, and the oracle the compiled loops are tested against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale._kernels.entropy import UNDERFLOW

FloatArray = NDArray[np.float64]

_BLOCK_ELEMENTS = 1 << 17


class _Piece(NamedTuple):
    """Some rows relative to their largest logit, which itself is -inf: exp of it adds nothing."""

    place: slice
    below: FloatArray
    """(b, C) z - m."""
    others: FloatArray
    """(b, 1) sum of exp of it."""


def _pieces(rows: NDArray[Any]) -> Iterator[_Piece | None]:
    """Rows a block at a time; None for a block that is not finite."""
    step = max(1, _BLOCK_ELEMENTS // rows.shape[1])
    for a in range(0, rows.shape[0], step):
        below = rows[a : a + step].astype(np.float64)
        if not np.isfinite(below).all():
            yield None
            return
        first = below.argmax(axis=1)[:, None]
        below -= np.take_along_axis(below, first, axis=1)
        np.put_along_axis(below, first, -np.inf, axis=1)
        yield _Piece(slice(a, a + below.shape[0]), below, np.exp(below).sum(axis=1, keepdims=True))


def entropy(rows: NDArray[Any], out: FloatArray) -> bool:
    """-sum p log p; False when a row is not finite."""
    for piece in _pieces(rows):
        if piece is None:
            return False
        terms = np.exp(piece.below)
        terms *= np.maximum(piece.below, -1e308)  # 0 * -inf would be NaN
        out[piece.place] = (np.log1p(piece.others) - terms.sum(axis=1, keepdims=True) / (1.0 + piece.others))[:, 0]
    return True


def generalised_entropy(rows: NDArray[Any], gamma: float, top: int, out: FloatArray) -> bool:
    """Sum of (p (1 - p)) ** gamma over the ``top`` largest p; False when a row is not finite."""
    for piece in _pieces(rows):
        if piece is None:
            return False
        below, others = piece.below, piece.others
        log_total = np.log1p(others)
        runner_up = below.max(axis=1, keepdims=True)
        small = others < UNDERFLOW
        safe = np.where(small, np.exp(below - runner_up).sum(axis=1, keepdims=True), others)
        log_others = np.log(safe) + np.where(small, runner_up, 0.0)
        n_less = below.shape[1] - top
        log_p = np.partition(below, n_less, axis=1)[:, n_less + 1 :] - log_total  # the largest comes on top of these
        terms = np.exp(gamma * (log_p + np.log1p(-np.exp(log_p)))).sum(axis=1, keepdims=True)
        out[piece.place] = (terms + np.exp(gamma * (log_others - 2.0 * log_total)))[:, 0]
    return True
