"""One sort for every ranking metric: the scores of both sides merged into groups of equal scores.

Every ranking metric is a function of two cumulative counts: how many in-distribution and how many OoD inputs
have a score up to each distinct value. This module finds them with a single sort of unsigned integers.

The bits of a finite IEEE float, read as an integer, are in the order of the floats (after turning the
negative ones round). Real scores use a small part of that range, so the codes are shifted together until
one bit is free; the label goes there (0 in-distribution, 1 OoD). NumPy sorts such keys with SIMD
instructions, about twice as fast as merging two sorted arrays. Where no bit is free, dense ranks take the
place of the codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray, IntArray

Scores: TypeAlias = NDArray[Any]
"""Checked scores: finite, contiguous, float32 or float64."""
Keys: TypeAlias = NDArray[Any]
"""Sorted unsigned integers: the code of a score shifted up by one, the label (1 = OoD) in the lowest bit."""

BLOCK = 15_000
"""Scores per block: temporaries stay in cache, and below the 128 KB from which malloc maps fresh pages."""

_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


class Merged(NamedTuple):
    """Both sides in one sorted array of keys."""

    keys: Keys
    decode: Callable[[Keys], Scores]
    n_id: int
    n_ood: int


class TieGroups(NamedTuple):
    """Distinct scores, ascending, with cumulative counts.

    ``id_edges[g]`` in-distribution inputs have a score below ``thresholds[g]``, ``id_edges[g + 1]`` a score
    of at most that; ``ood_edges`` is the same for OoD inputs. Shapes: (g,), (g + 1,), (g + 1,).
    """

    thresholds: FloatArray
    id_edges: IntArray
    ood_edges: IntArray


def merge(id_scores: Scores, ood_scores: Scores) -> Merged:
    """Sort both sides together; equal scores (and -0.0 with 0.0) get equal codes."""
    if id_scores.dtype != ood_scores.dtype:  # float32 into float64 is exact
        id_scores, ood_scores = id_scores.astype(np.float64), ood_scores.astype(np.float64)
    for dtype in dict.fromkeys((id_scores.dtype, np.dtype(np.float64))):  # as float64 a float32 always fits
        sides = (id_scores.astype(dtype, copy=False), ood_scores.astype(dtype, copy=False))
        fold = _Fold.of(sides)
        if fold.n_codes <= 1 << (8 * dtype.itemsize - 1):
            keys = np.empty(id_scores.size + ood_scores.size, fold.unsigned)
            fold.encode_into(keys[: id_scores.size], label=0)
            fold.encode_into(keys[id_scores.size :], label=1)
            keys.sort()
            return Merged(keys, fold.decode, id_scores.size, ood_scores.size)
    distinct, ranks = np.unique(np.concatenate(sides), return_inverse=True)
    keys = ranks.astype(np.uint64) << np.uint64(1)
    keys[id_scores.size :] |= np.uint64(1)
    keys.sort()
    return Merged(keys, lambda codes: distinct[codes], id_scores.size, ood_scores.size)


def blocks(merged: Merged) -> Iterator[tuple[FloatArray, FloatArray, NDArray[np.intp]]]:
    """Walk the groups in ascending order, some ten thousand scores at a time; no group is cut in two.

    Yields
    ------
    id_edges, ood_edges : arrays of shape (g + 1,)
        Cumulative counts as in :class:`TieGroups`, as float64: they are exact, and quicker than int64 in what
        follows.
    last : array of shape (g,)
        The position in ``merged.keys`` of the last key of each group.
    """
    keys = merged.keys
    one = keys.dtype.type(1)
    start = ood_before = 0
    while start < keys.size:
        stop = min(start + BLOCK, keys.size)
        if stop < keys.size:  # leave the group of the next key, which may have begun, to the next block
            stop = int(np.searchsorted(keys, keys[stop] & ~one, side="left"))
        if stop == start:  # a group larger than a block: the labels in it are sorted, so two searches count them
            middle, stop = (int(np.searchsorted(keys, keys[start] | one, side=side)) for side in _SIDES)
            ood_edges = np.array([ood_before, ood_before + stop - middle], np.float64)
            yield np.array([start, stop]) - ood_edges, ood_edges, np.array([stop - 1])
            start, ood_before = stop, ood_before + stop - middle
            continue
        block = keys[start:stop]
        is_edge = np.ones(block.size + 1, np.bool_)
        np.greater(block[1:] ^ block[:-1], one, out=is_edge[1:-1])
        edges = np.flatnonzero(is_edge)
        ood_counts = np.zeros(block.size + 1, np.int64)
        np.cumsum(block & one, out=ood_counts[1:])
        if edges.size < ood_counts.size:
            ood_counts = ood_counts[edges]
        ood_edges = np.add(ood_counts, float(ood_before), dtype=np.float64)
        id_edges: FloatArray = edges + float(start) - ood_edges
        yield id_edges, ood_edges, edges[1:] + (start - 1)
        start, ood_before = stop, ood_before + int(ood_counts[-1])


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
    zero = np.zeros(1, np.int64)
    last = merged.keys[np.concatenate([part[2] for part in parts])]
    return TieGroups(
        merged.decode(last >> last.dtype.type(1)).astype(np.float64),
        np.concatenate([zero, *(part[0][1:].astype(np.int64) for part in parts)]),
        np.concatenate([zero, *(part[1][1:].astype(np.int64) for part in parts)]),
    )


class _Fold(NamedTuple):
    """Order-preserving codes 0 ... n_codes - 1 of the bit patterns between the extremes of the data.

    Read as unsigned integers, non-negative floats go up from ``low`` and negative ones, sign bit set, go up
    in size to ``deepest``. Codes run from the deepest negative number to the shallowest, then on through
    the non-negative ones; the unused patterns around zero, most of them all, are left out. ``sides`` are the
    scores without any minus zero.
    """

    unsigned: np.dtype[Any]
    low: int
    deepest: int
    n_negative: int
    n_codes: int
    sides: tuple[Scores, Scores]

    @classmethod
    def of(cls, sides: tuple[Scores, Scores]) -> _Fold:
        """Find the extremes of the bit patterns."""
        bits = 8 * sides[0].dtype.itemsize
        unsigned, signed = np.dtype(f"u{bits // 8}"), np.dtype(f"i{bits // 8}")
        sign = 1 << (bits - 1)
        low = min(int(side.view(unsigned).min()) for side in sides)
        deepest = max(int(side.view(unsigned).max()) for side in sides)
        high = max(int(side.view(signed).max()) for side in sides)
        shallowest = min(int(side.view(signed).min()) for side in sides) % (2 * sign)
        if shallowest == sign:  # minus zero, which adding zero makes plus zero: it must not split a tie
            return cls.of((sides[0] + 0.0, sides[1] + 0.0))
        n_negative = deepest - shallowest + 1 if deepest >= sign else 0
        n_other = high - low + 1 if low < sign else 0
        return cls(unsigned, low, deepest, n_negative, n_negative + n_other, sides)

    def encode_into(self, keys: Keys, *, label: int) -> None:
        """Write ``2 * code + label`` of each score of one side; all arithmetic is modulo the word size."""
        scores = self.sides[label]
        word = self.unsigned.type
        size = 8 * self.unsigned.itemsize
        bits = scores.view(self.unsigned)
        signed = scores.view(f"i{size // 8}")
        modulus = 1 << size
        up = word((self.n_negative - self.low) % modulus)
        down_less_up = word((self.deepest + 1 - self.n_negative + self.low) % modulus)
        for start in range(0, keys.size, BLOCK):
            out = keys[start : start + BLOCK]
            if self.n_negative:
                # all ones where the score is negative
                turn = (signed[start : start + BLOCK] >> (size - 1)).view(self.unsigned)
                np.bitwise_xor(bits[start : start + BLOCK], turn, out=out)
                turn &= down_less_up
                out += turn
                out += up
            else:
                np.add(bits[start : start + BLOCK], up, out=out)
            out <<= word(1)
            if label:
                out |= word(1)

    def decode(self, codes: Keys) -> Scores:
        """Give the scores back, bit for bit."""
        word = self.unsigned.type
        modulus = 1 << (8 * self.unsigned.itemsize)
        negative = codes < word(self.n_negative)
        shift = word((self.low - self.n_negative) % modulus)
        bits = np.where(negative, word(self.deepest) - codes, codes + shift)
        scores: Scores = bits.view(f"f{self.unsigned.itemsize}")
        return scores
