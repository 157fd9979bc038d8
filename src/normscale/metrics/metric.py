"""The list of metrics: what each is called, which direction is better, and how it is computed.

A metric is a function of the scores of both sides, or of :class:`Counts` where nothing but their order matters. Those
of counts are computed from one sort, and in every resample of a bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray
from normscale.errors import InvalidInput

if TYPE_CHECKING:
    from fractions import Fraction

Scores: TypeAlias = NDArray[Any]
"""Checked scores: finite, contiguous, float32 or float64."""


class Counts:
    """How many inputs of each side have a score below and up to each distinct score.

    ``id_edges`` and ``ood_edges`` have shape (..., g + 1), ascending from 0: entry g counts the inputs below the g-th
    distinct score, entry g + 1 those up to and including it. Leading axes are independent problems, such as the
    resamples of a bootstrap, in which a score may be left without inputs. Counts are float64: exact up to 2**53.
    ``caught_out`` and ``caught_in`` are how many inputs a threshold at the true positive rate ``tpr`` must catch.
    """

    def __init__(self, id_edges: FloatArray, ood_edges: FloatArray, tpr: Fraction) -> None:
        self.id_edges, self.ood_edges = id_edges, ood_edges
        self.n_id, self.n_ood = (int(edges.flat[-1]) for edges in (id_edges, ood_edges))
        self.caught_in, self.caught_out = math.ceil(tpr * self.n_id), math.ceil(tpr * self.n_ood)

    @cached_property
    def id_here(self) -> FloatArray:
        """In-distribution inputs of each distinct score."""
        return np.diff(self.id_edges)

    @cached_property
    def ood_here(self) -> FloatArray:
        """OoD inputs of each distinct score."""
        return np.diff(self.ood_edges)


def count_scores(id_scores: Scores, ood_scores: Scores) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The distinct scores (g,), ascending, and the cumulative counts (g + 1,) of both sides, as in :class:`Counts`.

    Examples
    --------
    >>> thresholds, id_edges, ood_edges = count_scores(np.array([0.1, 0.5]), np.array([0.5, 0.7]))
    >>> thresholds.tolist(), id_edges.tolist(), ood_edges.tolist()
    ([0.1, 0.5, 0.7], [0.0, 1.0, 2.0, 2.0], [0.0, 0.0, 1.0, 2.0])
    """
    both = np.sort(np.concatenate([id_scores, ood_scores]))  # float32 into float64 is exact
    last = np.flatnonzero(np.append(both[1:] != both[:-1], True))
    thresholds = both[last]
    edges = np.zeros((2, last.size + 1))
    edges[0, 1:] = np.searchsorted(np.sort(id_scores).astype(both.dtype, copy=False), thresholds, side="right")
    edges[1, 1:] = last + 1 - edges[0, 1:]
    return thresholds.astype(np.float64), edges[0], edges[1]


class Metric(NamedTuple):
    """One number about the scores of both sides; see :func:`register_metric`."""

    name: str
    title: str
    higher_is_better: bool
    function: Callable[..., Any]
    of_counts: bool = False


METRICS: dict[str, Metric] = {}
"""Every metric by name, in the order of registration: AUROC, AUPR and FPR95 first."""

Function = TypeVar("Function", bound=Callable[..., Any])


def register_metric(
    name: str, title: str, *, higher_is_better: bool, of_counts: bool = False
) -> Callable[[Function], Function]:
    """Add a metric to the list, so that evaluations, comparisons, stress grids and reports have it.

    Decorates a function of (id_scores, ood_scores), two checked vectors, that gives a float.

    Parameters
    ----------
    name : str
        An identifier; the attribute of results that holds the number.
    title : str
        What tables call it.
    of_counts : bool
        The function takes one :class:`Counts` instead, and works over its last axis. Then the metric has bootstrap
        intervals.

    Examples
    --------
    >>> from normscale.metrics import evaluate
    >>> @register_metric("gap", "Gap of the means", higher_is_better=True)
    ... def gap(id_scores, ood_scores):
    ...     return float(ood_scores.mean() - id_scores.mean())
    >>> evaluate([0.0, 1.0], [1.0, 2.0]).gap
    1.0
    >>> del METRICS["gap"]
    """
    if not name.isidentifier() or name.startswith("_"):
        raise InvalidInput(f"the name of a metric must be an identifier; got {name!r}.")

    def add(function: Function) -> Function:
        own = METRICS[name].function if name in METRICS else function
        if (own.__module__, own.__qualname__) != (function.__module__, function.__qualname__):
            raise InvalidInput(f"there is a metric {name!r} already, in {own.__module__}; choose another name.")
        METRICS[name] = Metric(name, title, higher_is_better, function, of_counts)
        return function

    return add


def values_of_counts(counts: Counts) -> dict[str, FloatArray]:
    """Every metric that is a function of the counts, for each problem (...,)."""
    return {name: metric.function(counts) for name, metric in METRICS.items() if metric.of_counts}


def metric_values(id_scores: Scores, ood_scores: Scores, tpr: Fraction) -> dict[str, float]:
    """Every metric of two checked vectors."""
    counts = Counts(*count_scores(id_scores, ood_scores)[1:], tpr)
    return {
        name: float(metric.function(counts) if metric.of_counts else metric.function(id_scores, ood_scores))
        for name, metric in METRICS.items()
    }
