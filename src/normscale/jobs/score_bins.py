"""Bins of scores by rank: what is counted, and where ranges are cut.

With splitters s_1 < s_2 < ... the bins are: below s_1, exactly s_1, between s_1 and s_2, exactly s_2, and so on.
Scores that tie often are splitters, and their bins say all there is to say about them; splitters are quantiles, so
heavy tails and scores that lie close together are nothing special.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from normscale._validate import FloatArray, IntArray


class Sketch(NamedTuple):
    """Evenly spaced order statistics of some scores."""

    n: int
    values: FloatArray

    @classmethod
    def of(cls, scores: FloatArray, size: int) -> Sketch:
        """At most ``size`` of the scores, the smallest and the largest among them."""
        if not scores.size:
            return cls(0, scores)
        places = np.unique(np.linspace(0, scores.size - 1, min(size, scores.size)).round().astype(np.int64))
        return cls(scores.size, np.sort(scores)[places])


def splitters(sketches: Sequence[Sketch], n_bins: int) -> FloatArray:
    """Distinct scores with about equally many scores between them, at most ``n_bins``; shape (k,)."""
    filled = [sketch for sketch in sketches if sketch.n]
    values = np.concatenate([sketch.values for sketch in filled])
    weights = np.concatenate([np.full(sketch.values.size, sketch.n / sketch.values.size) for sketch in filled])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    wanted = np.linspace(0.0, reached[-1], n_bins)
    places = np.minimum(np.searchsorted(reached, wanted, side="left"), values.size - 1)
    return np.unique(values[order][places])


def bins_of(scores: FloatArray, edges: FloatArray) -> IntArray:
    """The bin of every score: 2i + 1 exactly at splitter i, 2i below it; shape (n,)."""
    places = np.searchsorted(edges, scores, side="left")
    exactly = edges[np.minimum(places, edges.size - 1)] == scores
    bins: IntArray = 2 * places + exactly
    return bins


class ScoreCounts(NamedTuple):
    """How many scores of each side are in each bin; they add up."""

    id_counts: IntArray
    ood_counts: IntArray

    def merge(self, other: ScoreCounts) -> ScoreCounts:
        """Both together."""
        return ScoreCounts(self.id_counts + other.id_counts, self.ood_counts + other.ood_counts)


def cumulative(counts: IntArray) -> FloatArray:
    """How many are below every bin, and in all; shape (b + 1,), whole numbers."""
    edges: FloatArray = np.concatenate([[0], np.cumsum(counts)]).astype(np.float64)
    return edges
