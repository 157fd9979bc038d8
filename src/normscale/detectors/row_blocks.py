"""Rows in float64, block by block: how detectors read large arrays in little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, Rows
from normscale.outputs import ModelOutputs

_BLOCK_ELEMENTS = 1 << 18


def float_blocks(rows: Rows, name: str, width: int = 0, *, fitting: bool = False) -> Iterator[tuple[slice, FloatArray]]:
    """Every block of rows (n, d) as (where it is, a float64 copy); a row that is not finite raises.

    ``name`` is what the rows are called in the error, ``width`` how many numbers per row the caller makes of a block
    where that is more than d, ``fitting`` whether they are training rows, which cannot be skipped.
    """
    size = block_rows(max(width, rows.shape[1]))
    for start in range(0, rows.shape[0], size):
        where = slice(start, min(start + size, rows.shape[0]))
        block = np.array(rows[where], dtype=np.float64, order="C")
        if not np.isfinite(block).all():
            raise _validate.invalid_row_error(rows, name, can_skip=not fitting)
        yield where, block


def blocks_of(
    outputs: ModelOutputs, names: Sequence[str], width: int = 0, *, fitting: bool = False
) -> Iterator[tuple[Any, ...]]:
    """Blocks of several arrays side by side, as (where they are, block of the first, block of the second, ...)."""
    width = max(width, *(outputs.array(name).shape[1] for name in names))
    every = (float_blocks(outputs.array(name), name, width, fitting=fitting) for name in names)
    for blocks in zip(*every, strict=True):
        yield blocks[0][0], *(block for _, block in blocks)


def by_blocks(score_block: Callable[..., FloatArray]) -> Callable[[Any, ModelOutputs, int], FloatArray]:
    """Make a detector's ``_score`` of a method that scores float64 blocks of the arrays it reads, in their order."""

    @wraps(score_block)
    def score(self: Any, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        with np.errstate(over="ignore", invalid="ignore"):
            for where, *blocks in blocks_of(outputs, self.reads):
                scores[where] = score_block(self, *blocks)
        if not np.isfinite(scores).all():
            raise _validate.invalid_row_error(outputs.array(self.reads[-1]), self.reads[-1], can_skip=True)
        return scores

    return score


def block_rows(width: int) -> int:
    """How many rows of a width make a block of about two megabytes."""
    return max(16, _BLOCK_ELEMENTS // max(1, width))


def lengths(block: FloatArray) -> FloatArray:
    """The Euclidean length of every row; tiny numbers do not underflow, huge ones do not overflow."""
    squares: FloatArray = np.einsum("ij,ij->i", block, block)
    found: FloatArray = np.sqrt(squares)
    unsafe = np.flatnonzero((squares < 1e-280) | ~np.isfinite(squares))
    if unsafe.size:
        largest = np.abs(block[unsafe]).max(axis=1, initial=0.0)
        scaled = block[unsafe] / np.where(largest > 0.0, largest, 1.0)[:, None]
        found[unsafe] = largest * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    return found


def unit_rows(block: FloatArray) -> FloatArray:
    """Every row divided by its length; a row of zeros stays one."""
    size = lengths(block)
    return block / np.where(size > 0.0, size, 1.0)[:, None]


def log_softmax(logits: FloatArray) -> FloatArray:
    """Log-probabilities (n, C) of logits (n, C), which are overwritten."""
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


def quantiles(values: Rows, shares: Sequence[float]) -> list[float]:
    """Quantiles of all numbers of an array, as numpy has them in float64; its one copy is in the array's precision."""
    places = (values.size - 1) * np.asarray(shares, dtype=np.float64)
    low = np.floor(places).astype(np.int64)
    high = np.minimum(low + 1, values.size - 1)
    ordered = np.partition(values, np.unique([low, high]), axis=None)
    below, above = ordered[low].astype(np.float64), ordered[high].astype(np.float64)
    share = places - low
    from_below, from_above = below + (above - below) * share, above - (above - below) * (1.0 - share)
    return np.where(share < 0.5, from_below, from_above).tolist()
