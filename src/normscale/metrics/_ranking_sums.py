"""The five ranking metrics as functions of cumulative counts; :mod:`ranking` and :mod:`intervals` share them.

``id_edges`` and ``ood_edges`` have shape (..., g + 1): entry g counts the inputs below group g, entry g + 1
those up to and including it, groups in ascending order of score. Leading axes are independent problems.
Counts are float64: exact up to 2**53, never overflowing in a product, and quicker to divide than integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.metrics._tie_groups import Merged, blocks

METRICS = ("auroc", "aupr_out", "aupr_in", "fpr95_out", "fpr95_in")


class FiveMetrics(NamedTuple):
    """AUROC, and AUPR and FPR with either class as the positive one."""

    auroc: float
    aupr_out: float
    aupr_in: float
    fpr95_out: float
    fpr95_in: float


def five_metrics(merged: Merged, caught_out: int, caught_in: int) -> FiveMetrics:
    """Compute all five in one walk over the groups.

    ``caught_out`` is the number of OoD inputs that the threshold of ``fpr95_out`` must catch, ``caught_in``
    the number of in-distribution inputs that the one of ``fpr95_in`` must accept.
    """
    question = RankingQuestion(merged.n_id, merged.n_ood, caught_out, caught_in)
    return question.answer([question.part(id_edges, ood_edges) for id_edges, ood_edges, _ in blocks(merged)])


class RankingPart(NamedTuple):
    """What some neighbouring groups bring to the five metrics."""

    twice_pairs: int
    out_sum: float
    in_sum: float
    flagged: int | None
    """In-distribution inputs above the threshold of ``fpr95_out``, where it is among these groups."""
    accepted: int | None
    """OoD inputs below the threshold of ``fpr95_in``, where it is among these groups."""


class RankingQuestion(NamedTuple):
    """How many inputs there are, and how many of them the two thresholds must catch."""

    n_id: int
    n_ood: int
    caught_out: int
    caught_in: int

    def part(self, id_edges: FloatArray, ood_edges: FloatArray) -> RankingPart:
        """Look at groups from some place on; edges count all inputs below, also those of other groups."""
        n_id, n_ood, caught_out, caught_in = self
        flagged = accepted = None
        if ood_edges[0] <= n_ood - caught_out < ood_edges[-1]:
            group = np.searchsorted(ood_edges[:-1], n_ood - caught_out, side="right") - 1
            flagged = n_id - int(id_edges[group])
        if id_edges[0] < caught_in <= id_edges[-1]:
            accepted = int(ood_edges[np.searchsorted(id_edges, caught_in, side="left")])
        twice, out_sum, in_sum = ranking_sums(id_edges, ood_edges, n_id, n_ood)
        pairs = int(twice) if twice < 2.0**53 else _exact_twice_pairs(id_edges, ood_edges)
        return RankingPart(pairs, float(out_sum), float(in_sum), flagged, accepted)

    @staticmethod
    def together(parts: Sequence[RankingPart]) -> RankingPart:
        """Neighbouring parts as one, in the order of their scores."""
        return RankingPart(
            sum(part.twice_pairs for part in parts),
            math.fsum(part.out_sum for part in parts),
            math.fsum(part.in_sum for part in parts),
            next((part.flagged for part in parts if part.flagged is not None), None),
            next((part.accepted for part in parts if part.accepted is not None), None),
        )

    def answer(self, parts: Sequence[RankingPart]) -> FiveMetrics:
        """The metrics, from all parts in the order of their scores."""
        total = self.together(parts)
        return FiveMetrics(
            auroc=total.twice_pairs / (2 * self.n_id * self.n_ood),
            aupr_out=total.out_sum / self.n_ood,
            aupr_in=total.in_sum / self.n_id,
            fpr95_out=(self.n_id if total.flagged is None else total.flagged) / self.n_id,
            fpr95_in=(self.n_ood if total.accepted is None else total.accepted) / self.n_ood,
        )


def _exact_twice_pairs(id_edges: FloatArray, ood_edges: FloatArray) -> int:
    """The same as in :func:`ranking_sums` where it is too large for float64: a tie of a hundred million inputs."""
    twice_id = (id_edges[:-1] + id_edges[1:]).astype(np.int64).tolist()
    return sum(a * b for a, b in zip(twice_id, np.diff(ood_edges).astype(np.int64).tolist(), strict=True))


def five_metrics_rows(id_edges: FloatArray, ood_edges: FloatArray, caught_out: int, caught_in: int) -> FloatArray:
    """Compute all five for each row of counts (b, g + 1); shape (b, 5), columns in the order of ``METRICS``.

    A group may be empty, on one side or on both: a bootstrap resample leaves many groups out.
    """
    n_id, n_ood = int(id_edges[0, -1]), int(ood_edges[0, -1])
    twice, out_sum, in_sum = ranking_sums(id_edges, ood_edges, n_id, n_ood)
    group_out = np.count_nonzero(ood_edges[:, :-1] <= n_ood - caught_out, axis=1) - 1
    group_in = np.count_nonzero(id_edges[:, 1:] < caught_in, axis=1)
    row = np.arange(id_edges.shape[0])
    flagged = n_id - id_edges[row, group_out]
    accepted = ood_edges[row, group_in + 1]
    return np.stack(
        [twice / (2 * n_id * n_ood), out_sum / n_ood, in_sum / n_id, flagged / n_id, accepted / n_ood], axis=1
    )


def ranking_sums(
    id_edges: FloatArray, ood_edges: FloatArray, n_id: int, n_ood: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sum over the groups, along the last axis.

    Returns
    -------
    twice_pairs
        Twice the number of pairs in which the OoD input scores higher, a tie counting half: a whole number.
    out_sum
        Sum over OoD inputs of the precision at their score, OoD positive: of all that score at least as high,
        the share that is OoD.
    in_sum
        The same with in-distribution inputs, and of all that score at most as high.
    """
    id_below, id_upto = id_edges[..., :-1], id_edges[..., 1:]
    ood_below, ood_upto = ood_edges[..., :-1], ood_edges[..., 1:]
    id_here = id_upto - id_below
    ood_here = ood_upto - ood_below
    all_edges = id_edges + ood_edges

    at_score = id_below + id_upto
    at_score *= ood_here
    twice_pairs = at_score.sum(axis=-1)

    np.subtract(n_id + n_ood, all_edges[..., :-1], out=at_score)
    np.maximum(at_score, 1, out=at_score)  # 0 only in empty groups at the end, whose weight is 0
    np.divide(n_ood - ood_below, at_score, out=at_score)
    at_score *= ood_here
    out_sum = at_score.sum(axis=-1)

    np.maximum(all_edges[..., 1:], 1, out=at_score)  # likewise at the start
    np.divide(id_upto, at_score, out=at_score)
    at_score *= id_here
    in_sum = at_score.sum(axis=-1)
    return twice_pairs, out_sum, in_sum
