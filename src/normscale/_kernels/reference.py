"""The same loops in blocked numpy: always there, and the oracle the compiled ones are tested against.

A block of b rows is laid out as a cube: row ``r = run * LENGTH + step`` stands at ``[step, ..., run]``, so that a
running sum over the rows is LENGTH - 1 additions of large contiguous slices (all runs take a step at once), then
one short sum over the runs' ends. numpy's own cumsum is five times slower. With few classes the runs lie along
the last axis, with many the classes do: the longer one belongs innermost.

Running statistics come from the sums of the deviations, and of their squares, from the mean the block starts
with. With a start weight w >= 1 no digits are lost that way: the sum of squares exceeds the result at most
(w + b) / w times. A first row that meets a smaller weight is therefore taken in alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale._kernels.kinds import MAX, MSP, TINY_VARIANCE, WIDE_FROM

FloatArray = NDArray[np.float64]

LENGTH = 16
_BLOCK_ELEMENTS = 1 << 15  # 256 KB per temporary: what is worked on stays in the second-level cache
_CONFIDENT = 2.0**-6  # below it "sum over all classes, less 1" would lose digits


class Prefix(NamedTuple):
    """Statistics after every row of a block, as cubes; ``inverse_weights`` broadcasts against the others."""

    inverse_weights: FloatArray
    moved: FloatArray
    """How far the mean has gone from the mean before the block."""
    m2: FloatArray
    """Sum of squared deviations; a true zero may come out a rounding error below zero."""
    deviation: FloatArray
    """The row less the mean before the block."""


def _class_axis(n_classes: int) -> int:
    return 1 if n_classes < WIDE_FROM else 2


def _cube(block: NDArray[Any]) -> FloatArray:
    """A contiguous block (b, C) as a float64 cube, (step, class, run) or (step, run, class)."""
    b, n_classes = block.shape
    length = LENGTH if b % LENGTH == 0 else 1
    runs = block.reshape(b // length, length, n_classes)
    axes = (1, 2, 0) if _class_axis(n_classes) == 1 else (1, 0, 2)
    return np.array(runs.transpose(axes), dtype=np.float64, order="C")


def _per_class(values: FloatArray) -> FloatArray:
    """Values (C,) in the shape that broadcasts against a cube."""
    return values[:, None] if _class_axis(values.shape[0]) == 1 else values


def _running_sum(cube: FloatArray, run_axis: int) -> None:
    """Sum over the rows up to and with each row, in place."""
    for step in range(1, cube.shape[0]):
        cube[step] += cube[step - 1]
    if cube.shape[run_axis] > 1:
        ends = np.cumsum(cube[-1], axis=run_axis - 1)
        if run_axis == 2:
            cube[:, :, 1:] += ends[:, :-1]
        else:
            cube[:, 1:] += ends[:-1]


def prefix_cubes(block: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray) -> Prefix:
    """Statistics after every row of one piece (see :func:`pieces`)."""
    class_axis = _class_axis(block.shape[1])
    run_axis = 3 - class_axis
    deviation = _cube(block)
    deviation -= _per_class(mean)
    length, n_runs = deviation.shape[0], deviation.shape[run_axis]
    rows_taken = 1.0 + np.arange(length)[:, None] + length * np.arange(n_runs)
    inverse_weights = np.expand_dims(1.0 / (weight + rows_taken), class_axis)
    sums = deviation.copy()
    _running_sum(sums, run_axis)
    squares = deviation * deviation
    first = squares[0, :, 0] if run_axis == 2 else squares[0, 0]
    first += m2
    _running_sum(squares, run_axis)
    moved = sums * inverse_weights
    sums *= moved
    squares -= sums
    return Prefix(inverse_weights, moved, squares, deviation)


def pieces(n: int, n_classes: int, weight: float) -> list[tuple[int, int]]:
    """Cut n rows into pieces that :func:`prefix_cubes` takes whole and without losing digits."""
    step = max(LENGTH, _BLOCK_ELEMENTS // n_classes // LENGTH * LENGTH)
    cuts = [0, 1] if weight < 1.0 and n > 1 else [0]
    while n - cuts[-1] >= step:
        cuts.append(cuts[-1] + step)
    for length in (LENGTH, 1):  # what is left: whole runs first, then single rows
        rest = (n - cuts[-1]) // length * length
        if rest:
            cuts.append(cuts[-1] + rest)
    return list(pairwise(cuts))


def prefix(
    rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Weights (n,), means and sums of squared deviations (n, C) after every row."""
    n, n_classes = rows.shape
    weights = weight + np.arange(1.0, n + 1.0)
    means, squares = np.empty((n, n_classes)), np.empty((n, n_classes))
    back = (2, 0, 1) if _class_axis(n_classes) == 1 else (1, 0, 2)
    with np.errstate(all="ignore"):
        for a, b in pieces(n, n_classes, weight):
            state = prefix_cubes(rows[a:b], weight + a, mean, m2)
            means[a:b] = mean + state.moved.transpose(back).reshape(b - a, n_classes)
            squares[a:b] = np.maximum(state.m2, 0.0).transpose(back).reshape(b - a, n_classes)
            mean, m2 = means[b - 1], squares[b - 1]
    return weights, means, squares


def absorb(rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray) -> bool:
    """Take rows (b, C) into ``mean`` and ``m2`` (C,); False, and nothing changed, when a result is not finite."""
    new_mean, new_m2 = mean.copy(), m2.copy()
    with np.errstate(all="ignore"):
        for a, b in pieces(rows.shape[0], rows.shape[1], weight):
            deviation = rows[a:b].astype(np.float64)
            deviation -= new_mean
            total = weight + b
            moved = deviation.sum(axis=0) / total
            new_m2 += np.maximum(np.einsum("ij,ij->j", deviation, deviation) - total * moved * moved, 0.0)
            new_mean += moved
    return _commit(mean, m2, new_mean, new_m2)


def stream_scores(
    rows: NDArray[Any],
    weight: float,
    mean: FloatArray,
    m2: FloatArray,
    kind: int,
    inverse_tau: float,
    out: FloatArray,
) -> bool:
    """Take rows (b, C) in one by one and score each with the statistics that include it.

    ``mean`` and ``m2`` (C,) move on, ``out`` (b,) gets the scores. False, and nothing moved, when a result is
    not finite.
    """
    class_axis = _class_axis(rows.shape[1])
    run_axis = 3 - class_axis
    new_mean, new_m2 = mean.copy(), m2.copy()
    with np.errstate(all="ignore"):
        for a, b in pieces(rows.shape[0], rows.shape[1], weight):
            inverse_weights, moved, squares, z = prefix_cubes(rows[a:b], weight + a, new_mean, new_m2)
            new_m2 = np.maximum(squares[-1].take(-1, axis=run_axis - 1), 0.0)
            new_mean = new_mean + moved[-1].take(-1, axis=run_axis - 1)
            z -= moved
            squares *= inverse_weights
            np.maximum(squares, TINY_VARIANCE, out=squares)
            np.sqrt(squares, out=squares)
            z /= squares
            if inverse_tau != 1.0:
                z *= inverse_tau
            _score_cube(z, class_axis, kind, out[a:b], scratch=squares)
    return _commit(mean, m2, new_mean, new_m2)


def frozen_scores(rows: NDArray[Any], shift: FloatArray, factor: FloatArray, kind: int, out: FloatArray) -> bool:
    """Score rows (b, C) as (row - shift) * factor; False when a row holds NaN or infinity."""
    with np.errstate(all="ignore"):
        for a, b in pieces(rows.shape[0], rows.shape[1], 1.0):
            if not np.isfinite(rows[a:b]).all():
                return False
            z = _cube(rows[a:b])
            z -= _per_class(shift)
            z *= _per_class(factor)
            _score_cube(z, _class_axis(rows.shape[1]), kind, out[a:b], scratch=None)
    return True


def _score_cube(z: FloatArray, class_axis: int, kind: int, out: FloatArray, scratch: FloatArray | None) -> None:
    """Reduce scaled logits to the scores of their rows; ``z`` is overwritten."""
    top = z.max(axis=class_axis, keepdims=True)
    if kind == MAX:
        scores = -top
    else:
        z -= top
        total = np.exp(z, out=scratch).sum(axis=class_axis, keepdims=True)
        scores = -(top + np.log(total)) if kind != MSP else _log_odds(z, class_axis, total)
    scores = scores.squeeze(class_axis)
    out.reshape(scores.shape[1], scores.shape[0])[...] = scores.T


def _log_odds(below_top: FloatArray, class_axis: int, total: FloatArray) -> FloatArray:
    """Log of the sum over all classes but the largest, from z - max z and the sum over all."""
    others = total - 1.0
    confident = (others <= _CONFIDENT).squeeze(class_axis)
    if not confident.any():
        return np.log(others)
    others[np.expand_dims(confident, class_axis)] = 1.0
    scores: FloatArray = np.log(others)
    rest = np.moveaxis(below_top, class_axis, -1)[confident]
    rest[np.arange(rest.shape[0]), rest.argmax(axis=1)] = -np.inf
    second = rest.max(axis=1, keepdims=True)  # relative to it the sum is at least 1: nothing underflows or cancels
    exact = second[:, 0] + np.log(np.exp(rest - second).sum(axis=1))
    np.moveaxis(scores, class_axis, -1)[confident, 0] = exact
    return scores


def _commit(mean: FloatArray, m2: FloatArray, new_mean: FloatArray, new_m2: FloatArray) -> bool:
    if not (np.isfinite(new_mean).all() and np.isfinite(new_m2).all()):
        return False
    mean[:] = new_mean
    m2[:] = new_m2
    return True
