"""Is one method better than another on the same inputs? The paired bootstrap of the AUROC difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import FloatArray, IntArray, as_class_indices, as_score_vector, at_least, fraction
from normscale.errors import InvalidInput
from normscale.metrics._tie_groups import Scores
from normscale.metrics.intervals import Interval
from normscale.metrics.record import Record

Ranking: TypeAlias = "Sequence[ArrayLike | None]"
"""Scores of the in-distribution and of the OoD inputs and, for one ranking per class, their predicted classes."""

_BATCH = 1 << 20
"""Counts per batch of resamples: wide enough to gather whole cache lines."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedComparison(Record):
    """What :func:`paired_bootstrap` found; ``difference`` is the AUROC of a minus that of b."""

    auroc_a: float
    auroc_b: float
    difference: float
    interval: Interval
    wins: float
    """Share of resamples in which a has the higher AUROC."""
    ties: float
    """Share of resamples in which both have the same."""
    level: float
    resamples: int
    seed: int


def paired_bootstrap(
    id_scores_a: ArrayLike,
    ood_scores_a: ArrayLike,
    id_scores_b: ArrayLike,
    ood_scores_b: ArrayLike,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> PairedComparison:
    """Compare two methods on the same inputs: the AUROC of a minus that of b, and how sure that is.

    Each resample draws inputs with replacement, the same ones for both methods, so that inputs that are hard for both
    do not widen the interval. What another order of a stream would change is left out.

    Parameters
    ----------
    id_scores_a, id_scores_b : arrays of shape (n_id,)
        Scores of the same inputs in the same order by methods a and b, higher = more OoD.
    ood_scores_a, ood_scores_b : arrays of shape (n_ood,)
        The same for OoD inputs.
    level, resamples, seed
        As in :func:`bootstrap_intervals`.

    Examples
    --------
    >>> a, b = ([0.1, 0.2, 0.6], [0.5, 0.8, 0.9]), ([0.3, 0.2, 0.6], [0.5, 0.3, 0.9])
    >>> found = paired_bootstrap(*a, *b, resamples=200)
    >>> round(found.difference, 4), found.difference in found.interval
    (0.1667, True)
    """
    level = fraction(level, "level")
    rankings = [(id_scores_a, ood_scores_a), (id_scores_b, ood_scores_b)]
    names = ("_a", "_b")
    auroc_a, auroc_b = (_Counted.of(one, name).auroc() for one, name in zip(rankings, names, strict=True))
    drawn_a, drawn_b = resampled_auroc(rankings, resamples, seed, names=names)
    low, high = np.quantile(drawn_a - drawn_b, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return PairedComparison(
        auroc_a=auroc_a,
        auroc_b=auroc_b,
        difference=auroc_a - auroc_b,
        interval=Interval(low=low, high=high),
        wins=float(np.mean(drawn_a > drawn_b)),
        ties=float(np.mean(drawn_a == drawn_b)),
        level=level,
        resamples=int(resamples),
        seed=int(seed),
    )


def resampled_auroc(
    rankings: Sequence[Ranking], resamples: int = 1000, seed: int = 0, *, names: Sequence[str] | None = None
) -> FloatArray:
    """AUROC of several methods in the same resamples of the same inputs.

    Parameters
    ----------
    rankings : sequence of (id_scores, ood_scores) or (id_scores, ood_scores, id_predicted, ood_predicted)
        One per method; all of the same n_id and n_ood inputs. With predicted classes the AUROC is the mean over
        classes, as in :func:`evaluate_per_class`: a class that a resample leaves without inputs of one side is
        skipped in it.
    resamples, seed : int
        The inputs drawn follow from ``seed``, n_id and n_ood alone, so that calls for several networks on the same
        inputs draw the same ones; the in-distribution draws do not depend on n_ood.
    names : sequence of str, optional
        What an error calls each ranking's arguments by: ``id_scores`` and the name.

    Returns
    -------
    array of shape (len(rankings), resamples)
        NaN in a resample that leaves every class of a method without one of the sides.

    Examples
    --------
    >>> resampled_auroc([([0.1, 0.2], [0.3, 0.4]), ([1.0, 1.0], [1.0, 1.0])], resamples=3).tolist()
    [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5]]
    """
    resamples, seed = at_least(resamples, "resamples", 1), at_least(seed, "seed", 0)
    suffixes = names or [f" of ranking {i}" for i in range(len(rankings))]
    counted = [_Counted.of(ranking, name) for ranking, name in zip(rankings, suffixes, strict=True)]
    sizes = {(one.n_id, one.n_ood): name for one, name in zip(counted, suffixes, strict=True)}
    if len(sizes) != 1:
        found = "; ".join(f"{n_id} and {n_ood} in id_scores{s} and ood_scores{s}" for (n_id, n_ood), s in sizes.items())
        raise InvalidInput(f"a paired comparison needs the scores of the same inputs by every method; got {found}.")
    ((n_id, n_ood),) = sizes
    drawn = np.empty((len(counted), resamples))
    for batch, id_counts, ood_counts in _draws(n_id, n_ood, resamples, seed):
        for row, one in zip(drawn, counted, strict=True):
            row[batch] = one.auroc_of(id_counts, ood_counts)
    return drawn


def _draws(n_id: int, n_ood: int, resamples: int, seed: int) -> Iterator[tuple[slice, FloatArray, FloatArray]]:
    """How often each input is drawn: arrays of shape (n_id, b) and (n_ood, b) for b resamples at a time."""
    id_rng, ood_rng = (np.random.default_rng((seed, side)) for side in (0, 1))
    size = max(1, _BATCH // (n_id + n_ood))
    for start in range(0, resamples, size):
        batch = slice(start, min(start + size, resamples))
        width = batch.stop - start
        yield batch, _counts(n_id, width, id_rng), _counts(n_ood, width, ood_rng)


def _counts(n: int, width: int, rng: np.random.Generator) -> FloatArray:
    chosen = rng.integers(0, n, size=(width, n))
    cells = chosen * width + np.arange(width)[:, None]
    counts: FloatArray = np.bincount(cells.ravel(), minlength=n * width).reshape(n, width).astype(np.float64)
    return counts


class _Group:
    """Inputs that are ranked together: where each OoD score stands among the sorted in-distribution scores."""

    def __init__(self, id_scores: Scores, ood_scores: Scores, id_rows: IntArray, ood_rows: IntArray | slice) -> None:
        inside, outside = id_scores[id_rows], ood_scores[ood_rows]
        order = np.argsort(inside, kind="stable")
        self.id_rows, self.ood_rows = id_rows[order], ood_rows
        self.below = np.searchsorted(inside[order], outside, side="left")
        upto = np.searchsorted(inside[order], outside, side="right")
        self.tied = np.flatnonzero(upto > self.below)
        self.upto = upto[self.tied]

    def auroc(self, id_counts: FloatArray, ood_counts: FloatArray) -> FloatArray:
        """Of each resample; NaN where it has no input on one side.

        Twice the number of pairs won is a whole number, and exact, so equal rankings give equal values.
        """
        inside = np.zeros((len(self.id_rows) + 1, id_counts.shape[1]))
        np.cumsum(id_counts[self.id_rows], axis=0, out=inside[1:])
        outside = ood_counts[self.ood_rows]
        twice_won = 2 * np.einsum("ib,ib->b", outside, inside[self.below])
        tied_with = inside[self.upto] - inside[self.below[self.tied]]
        twice_won += np.einsum("ib,ib->b", outside[self.tied], tied_with)
        pairs = inside[-1] * outside.sum(axis=0)
        return _ratio(twice_won, 2 * pairs)


class _Counted:
    """A method's rankings, one or one per class, ready to be weighed by how often each input was drawn."""

    def __init__(self, n_id: int, n_ood: int, groups: list[_Group]) -> None:
        self.n_id, self.n_ood, self.groups = n_id, n_ood, groups

    @classmethod
    def of(cls, ranking: Ranking, name: str) -> _Counted:
        inside, outside, *predicted = ranking
        id_scores = as_score_vector(inside, f"id_scores{name}")
        ood_scores = as_score_vector(outside, f"ood_scores{name}")
        n_id, n_ood = id_scores.size, ood_scores.size
        if not predicted or predicted[0] is None:
            return cls(n_id, n_ood, [_Group(id_scores, ood_scores, np.arange(n_id), slice(None))])
        id_classes = as_class_indices(predicted[0], f"id_predicted{name}", length=n_id)
        ood_classes = as_class_indices(predicted[1], f"ood_predicted{name}", length=n_ood)
        shared = np.intersect1d(id_classes, ood_classes)
        if not shared.size:
            raise InvalidInput(f"id_predicted{name} and ood_predicted{name} have no class in common.")
        groups = [
            _Group(id_scores, ood_scores, np.flatnonzero(id_classes == one), np.flatnonzero(ood_classes == one))
            for one in shared
        ]
        return cls(n_id, n_ood, groups)

    def auroc(self) -> float:
        """Of the inputs as they are."""
        return float(self.auroc_of(np.ones((self.n_id, 1)), np.ones((self.n_ood, 1)))[0])

    def auroc_of(self, id_counts: FloatArray, ood_counts: FloatArray) -> FloatArray:
        """Of each resample, shape (b,)."""
        found = np.stack([group.auroc(id_counts, ood_counts) for group in self.groups])
        there = np.isfinite(found)
        return _ratio(np.where(there, found, 0.0).sum(axis=0), there.sum(axis=0))


def _ratio(part: FloatArray, whole: FloatArray | IntArray) -> FloatArray:
    """Part by whole, NaN where there is nothing."""
    result = np.full(len(whole), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
