"""Is one method better than another on the same inputs? The paired bootstrap of the AUROC difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import FloatArray, IntArray, as_class_indices, as_score_vector, at_least, fraction
from normscale.errors import InvalidInput
from normscale.metrics.intervals import Interval, quantile_interval
from normscale.metrics.ranking import evaluate
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
    drawn_a, drawn_b = resampled_auroc(rankings, resamples, seed, names=("_a", "_b"))
    auroc_a, auroc_b = (evaluate(*one).auroc for one in rankings)
    return PairedComparison(
        auroc_a=auroc_a,
        auroc_b=auroc_b,
        difference=auroc_a - auroc_b,
        interval=quantile_interval(drawn_a - drawn_b, level),
        wins=float(np.mean(drawn_a > drawn_b)),
        ties=float(np.mean(drawn_a == drawn_b)),
        level=level,
        resamples=int(resamples),
        seed=int(seed),
    )


def resampled_auroc(
    rankings: Sequence[Ranking], resamples: int = 1000, seed: int = 0, *, names: Sequence[str] | None = None
) -> FloatArray:
    """AUROC of several methods in the same resamples of the same inputs; shape (len(rankings), resamples).

    Parameters
    ----------
    rankings : sequence of (id_scores, ood_scores) or (id_scores, ood_scores, id_predicted, ood_predicted)
        One per method; all of the same n_id and n_ood inputs. With predicted classes the AUROC is the mean over
        classes, as in :func:`evaluate_per_class`: a class that a resample leaves without inputs of one side is
        skipped in it, and a resample that leaves no class is NaN.
    resamples, seed : int
        The inputs drawn follow from ``seed``, n_id and n_ood alone, so that calls for several networks on the same
        inputs draw the same ones; the in-distribution draws do not depend on n_ood.
    names : sequence of str, optional
        What an error calls each ranking's arguments by: ``id_scores`` and the name.

    Examples
    --------
    >>> resampled_auroc([([0.1, 0.2], [0.3, 0.4]), ([1.0, 1.0], [1.0, 1.0])], resamples=3).tolist()
    [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5]]
    """
    resamples, seed = at_least(resamples, "resamples", 1), at_least(seed, "seed", 0)
    suffixes = names or [f" of ranking {i}" for i in range(len(rankings))]
    methods = [_groups(ranking, name) for ranking, name in zip(rankings, suffixes, strict=True)]
    sizes = {size: name for (size, _), name in zip(methods, suffixes, strict=True)}
    if len(sizes) != 1:
        found = "; ".join(f"{n_id} and {n_ood} in id_scores{s} and ood_scores{s}" for (n_id, n_ood), s in sizes.items())
        raise InvalidInput(f"a paired comparison needs the scores of the same inputs by every method; got {found}.")
    ((n_id, n_ood),) = sizes
    id_rng, ood_rng = (np.random.default_rng((seed, side)) for side in (0, 1))
    drawn = np.empty((len(methods), resamples))
    size = max(1, _BATCH // (n_id + n_ood))
    for start in range(0, resamples, size):
        width = min(size, resamples - start)
        id_counts, ood_counts = _counts(n_id, width, id_rng), _counts(n_ood, width, ood_rng)
        for row, (_, groups) in zip(drawn, methods, strict=True):
            found_here = np.stack([group.auroc(id_counts, ood_counts) for group in groups])
            there = np.isfinite(found_here)
            row[start : start + width] = _ratio(np.where(there, found_here, 0.0).sum(axis=0), there.sum(axis=0))
    return drawn


def _counts(n: int, width: int, rng: np.random.Generator) -> FloatArray:
    """How often each of n inputs is drawn in each of ``width`` resamples; shape (n, width)."""
    cells = rng.integers(0, n, size=(width, n)) * width + np.arange(width)[:, None]
    return np.bincount(cells.ravel(), minlength=n * width).reshape(n, width).astype(np.float64)


class _Group(NamedTuple):
    """Inputs that are ranked together."""

    id_rows: IntArray
    """By their scores, ascending."""
    ood_rows: IntArray
    below: IntArray
    """How many of ``id_rows`` score below each of ``ood_rows``."""
    upto: IntArray
    """Or equal."""

    def auroc(self, id_counts: FloatArray, ood_counts: FloatArray) -> FloatArray:
        """Of each resample; NaN where it has no input on one side.

        Twice the number of pairs won is a whole number, and exact, so equal rankings give equal values.
        """
        inside = np.zeros((len(self.id_rows) + 1, id_counts.shape[1]))
        np.cumsum(id_counts[self.id_rows], axis=0, out=inside[1:])
        outside = ood_counts[self.ood_rows]
        twice_won = np.einsum("ib,ib->b", outside, inside[self.below])
        twice_won += np.einsum("ib,ib->b", outside, inside[self.upto])
        return _ratio(twice_won, 2 * inside[-1] * outside.sum(axis=0))


def _groups(ranking: Ranking, name: str) -> tuple[tuple[int, int], list[_Group]]:
    """Numbers of inputs of both sides, and the inputs that are ranked together: all, or those of each class."""
    inside, outside, *predicted = ranking
    id_scores, ood_scores = as_score_vector(inside, f"id_scores{name}"), as_score_vector(outside, f"ood_scores{name}")
    n_id, n_ood = id_scores.size, ood_scores.size
    id_classes, ood_classes = np.zeros(n_id, np.int64), np.zeros(n_ood, np.int64)
    if predicted and predicted[0] is not None:
        id_classes = as_class_indices(predicted[0], f"id_predicted{name}", length=n_id)
        ood_classes = as_class_indices(predicted[1], f"ood_predicted{name}", length=n_ood)
    groups = []
    for label in np.intersect1d(id_classes, ood_classes):
        id_rows, ood_rows = np.flatnonzero(id_classes == label), np.flatnonzero(ood_classes == label)
        id_rows = id_rows[np.argsort(id_scores[id_rows], kind="stable")]
        below, upto = (np.searchsorted(id_scores[id_rows], ood_scores[ood_rows], side) for side in ("left", "right"))
        groups.append(_Group(id_rows, ood_rows, below, upto))
    if not groups:
        raise InvalidInput(f"id_predicted{name} and ood_predicted{name} have no class in common.")
    return (n_id, n_ood), groups


def _ratio(part: FloatArray, whole: FloatArray | IntArray) -> FloatArray:
    """Part by whole, NaN where there is nothing."""
    ratio: FloatArray = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return ratio
