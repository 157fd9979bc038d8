"""Bins of scores by rank: what is counted, where ranges are cut, and how far off a histogram may be.

With splitters s_1 < s_2 < ... the bins are: below s_1, exactly s_1, between s_1 and s_2, exactly s_2, and so on.
Scores that tie often are splitters, and their bins say all there is to say about them; splitters are quantiles, so
heavy tails and scores that lie close together are nothing special.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from normscale._validate import FloatArray, IntArray
from normscale.metrics._ranking_sums import FiveMetrics, RankingQuestion


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


def estimate(counts: ScoreCounts, question: RankingQuestion) -> tuple[FiveMetrics, FiveMetrics]:
    """The five metrics from counts alone, each in the middle of what it can be, and half the width of that.

    Pairs of inputs in one open bin may be either way round: the AUROC is off by at most
    ``sum_b id_b ood_b / (2 n_id n_ood)``. In AUPR, an OoD input of an open bin has at least itself and all OoD inputs
    above its bin on its side of the threshold, and at most all of its bin; the others likewise.
    """
    n_id, n_ood = question.n_id, question.n_ood
    id_here, ood_here = counts.id_counts.astype(np.float64), counts.ood_counts.astype(np.float64)
    id_edges, ood_edges = cumulative(counts.id_counts), cumulative(counts.ood_counts)
    is_open = np.arange(id_here.size) % 2 == 0
    exact = question.answer([question.part(id_edges, ood_edges)])
    auroc_error = float((id_here * ood_here)[is_open].sum()) / (2.0 * n_id * n_ood)
    out = _average_precision(ood_here[::-1], id_here[::-1], is_open[::-1], n_ood)
    into = _average_precision(id_here, ood_here, is_open, n_id)
    flagged = _rate(ood_here[::-1], id_here[::-1], is_open[::-1], question.caught_out, n_id)
    accepted = _rate(id_here, ood_here, is_open, question.caught_in, n_ood)
    ranges = (out, into, flagged, accepted)
    middles = FiveMetrics(exact.auroc, *((low + high) / 2.0 for low, high in ranges))
    return middles, FiveMetrics(auroc_error, *((high - low) / 2.0 for low, high in ranges))


def _average_precision(hits: FloatArray, others: FloatArray, is_open: FloatArray, n: int) -> tuple[float, float]:
    """The smallest and largest it can be; bins in the order in which a threshold takes them in."""
    hits_before, others_before = np.cumsum(hits) - hits, np.cumsum(others) - others
    most, least = hits_before + hits, hits_before + np.where(is_open, np.minimum(hits, 1.0), hits)
    few, many = others_before + np.where(is_open, 0.0, others), others_before + others
    low = hits * least / np.maximum(least + many, 1.0)
    high = hits * most / np.maximum(most + few, 1.0)
    return float(low.sum()) / n, float(high.sum()) / n


def _rate(hits: FloatArray, others: FloatArray, is_open: FloatArray, caught: int, n: int) -> tuple[float, float]:
    """The smallest and largest share of the others that is taken in with ``caught`` hits."""
    place = int(np.searchsorted(np.cumsum(hits), caught, side="left"))
    before = float(others[:place].sum())
    upto = before + float(others[place])
    return (before if is_open[place] else upto) / n, upto / n
