"""One sort for every ranking metric: the scores of both sides merged into groups of equal scores.

Every ranking metric is a function of two cumulative counts: how many in-distribution and how many OoD inputs have a
score up to each distinct value. The bits of a float that is not negative, read as an integer, are in the order of the
floats, and the highest bit is free. Shifted up by one, they leave the lowest bit for the label. NumPy sorts such keys
with SIMD instructions, several times as fast as an argsort. Negative scores are sorted by themselves, turned round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray, IntArray

Scores: TypeAlias = NDArray[Any]
"""Checked scores: finite, contiguous, float32 or float64."""
Keys: TypeAlias = NDArray[Any]
"""Sorted unsigned integers: the bits of a score's size shifted up by one, the label (1 = OoD) in the lowest bit."""

BLOCK = 15_000
"""Scores per block: temporaries stay in cache, and below the 128 KB from which malloc maps fresh pages."""

_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


class Merged(NamedTuple):
    """Both sides in sorted keys: of the negative scores, and of the others."""

    negative: Keys
    other: Keys


class TieGroups(NamedTuple):
    """Distinct scores, ascending, with cumulative counts.

    ``id_edges[g]`` in-distribution inputs have a score below ``thresholds[g]``, ``id_edges[g + 1]`` a score
    of at most that; ``ood_edges`` is the same for OoD inputs. Shapes: (g,), (g + 1,), (g + 1,).
    """

    thresholds: FloatArray
    id_edges: IntArray
    ood_edges: IntArray


def merge(id_scores: Scores, ood_scores: Scores) -> Merged:
    """Sort both sides together; equal scores (and -0.0 with 0.0) get equal keys but for the label."""
    dtype = np.result_type(id_scores, ood_scores)  # float32 into float64 is exact
    unsigned = np.dtype(f"u{dtype.itemsize}")
    sides = [side.astype(dtype, copy=False) for side in (id_scores, ood_scores)]
    below = [side < 0 for side in sides]
    negative: Keys = np.empty(0, unsigned)
    if any(mask.any() for mask in below):
        negative = _keys([side[mask] for side, mask in zip(sides, below, strict=True)], unsigned, negative=True)
        sides = [side[~mask] for side, mask in zip(sides, below, strict=True)]
    return Merged(negative, _keys(sides, unsigned, negative=False))


def _keys(sides: list[Scores], unsigned: np.dtype[Any], *, negative: bool) -> Keys:
    keys: Keys = np.concatenate(sides).view(unsigned)
    if negative:
        np.invert(keys, out=keys)
    keys <<= unsigned.type(1)  # the sign, also that of -0.0, goes
    keys[sides[0].size :] |= unsigned.type(1)
    keys.sort()
    return keys


def _largest(unsigned: np.dtype[Any]) -> Any:
    return unsigned.type(2 ** (8 * unsigned.itemsize - 1) - 1)


def blocks(merged: Merged) -> Iterator[tuple[FloatArray, FloatArray, Keys]]:
    """Walk the groups in ascending order, some ten thousand scores at a time; no group is cut in two.

    Yields
    ------
    id_edges, ood_edges : arrays of shape (g + 1,)
        Cumulative counts as in :class:`TieGroups`, as float64: they are exact, and quicker than int64 in what
        follows.
    keys : array of shape (g,)
        The last key of each group.
    """
    done = ood_done = 0
    last: tuple[FloatArray, FloatArray, Keys] | None = None  # of the negative scores: its block goes on with the others
    for keys in merged:
        one = keys.dtype.type(1)
        start = 0
        while start < keys.size:
            room = BLOCK if last is None else max(0, BLOCK - int(done - last[0][0] - last[1][0]))
            stop = min(start + room, keys.size)
            if stop < keys.size:  # leave the group of the next key, which may have begun, to the next block
                stop = int(np.searchsorted(keys, keys[stop] & ~one, side="left"))
            if stop == start and last is not None:
                yield last
                last = None
                continue
            if stop == start:  # a group larger than a block: the labels in it are sorted, so two searches count them
                middle, stop = (int(np.searchsorted(keys, keys[start] | one, side=side)) for side in _SIDES)
                edges, ood_counts = np.array([0, stop - start]), np.array([0, stop - middle])
            else:
                block = keys[start:stop]
                is_edge = np.ones(block.size + 1, np.bool_)
                np.greater(block[1:] ^ block[:-1], one, out=is_edge[1:-1])
                edges = np.flatnonzero(is_edge)
                ood_counts = np.zeros(block.size + 1, np.int64)
                np.cumsum(block & one, out=ood_counts[1:])
                ood_counts = ood_counts[edges] if edges.size < ood_counts.size else ood_counts
            ood_edges = np.add(ood_counts, float(ood_done), dtype=np.float64)
            found = edges + float(done) - ood_edges, ood_edges, keys[start + edges[1:] - 1]
            if last is not None:
                n = edges.size - 1
                id_edges, ood_edges, codes = (np.concatenate([a, b[-n:]]) for a, b in zip(last, found, strict=True))
                found, last = (id_edges, ood_edges, codes), None
            if keys is merged.negative and stop == keys.size:
                last = found
            else:
                yield found
            done, ood_done = done + stop - start, ood_done + int(ood_counts[-1])
            start = stop
    if last is not None:
        yield last


def tie_groups(id_scores: Scores, ood_scores: Scores) -> TieGroups:
    """Merge two checked score vectors into groups of equal scores.

    Examples
    --------
    >>> groups = tie_groups(np.array([0.1, 0.5]), np.array([0.5, 0.7]))
    >>> groups.thresholds, groups.id_edges, groups.ood_edges
    (array([0.1, 0.5, 0.7]), array([0, 1, 2, 2]), array([0, 0, 1, 2]))
    """
    merged = merge(id_scores, ood_scores)
    parts = list(blocks(merged))
    n_id, n_ood = (np.concatenate([[0], *(part[side][1:] for part in parts)]).astype(np.int64) for side in (0, 1))
    codes = np.concatenate([part[2] for part in parts]) >> merged.other.dtype.type(1)
    return TieGroups(_scores(codes, int(np.searchsorted(n_id + n_ood, merged.negative.size))), n_id, n_ood)


def _scores(codes: Keys, n_negative: int) -> FloatArray:
    """The scores, bit for bit; the first ``n_negative`` are negative."""
    codes[:n_negative] = _largest(codes.dtype) - codes[:n_negative]
    scores = codes.view(f"f{codes.dtype.itemsize}").astype(np.float64)
    scores[:n_negative] *= -1.0
    return scores
