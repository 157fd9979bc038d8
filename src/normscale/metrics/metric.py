"""The list of metrics: what each is called, which direction is better, and how it is computed.

A metric is a function of the scores of both sides. Most are also a *sum over groups of equal scores*: each group adds
a number that depends on the counts up to it alone. Such metrics are computed together in one walk over the sorted
scores, and in every resample of a bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from normscale._validate import FloatArray
from normscale.errors import InvalidInput
from normscale.metrics._tie_groups import Merged, Scores, blocks

Values: TypeAlias = dict[str, float]
"""Numbers by the name of the metric."""


class SideSizes(NamedTuple):
    """How many inputs there are, and how many of them a threshold at the true positive rate must catch."""

    n_id: int
    n_ood: int
    caught_out: int
    """OoD inputs that the threshold of ``fpr95_out`` must flag."""
    caught_in: int
    """In-distribution inputs that the threshold of ``fpr95_in`` must accept."""


class Groups:
    """Neighbouring groups of equal scores in ascending order, as cumulative counts.

    ``id_edges`` and ``ood_edges`` have shape (..., g + 1): entry g counts the inputs below group g, those of other
    ranges of scores included, entry g + 1 those up to and including it. Leading axes are independent problems. Counts
    are float64: exact up to 2**53, never overflowing in a product, and quicker to divide than integers. A group may be
    empty on one side or on both: a bootstrap resample leaves many groups out.
    """

    def __init__(self, id_edges: FloatArray, ood_edges: FloatArray, sizes: SideSizes) -> None:
        self.id_edges, self.ood_edges, self.sizes = id_edges, ood_edges, sizes

    @cached_property
    def id_here(self) -> FloatArray:
        """In-distribution inputs in each group."""
        here: FloatArray = self.id_edges[..., 1:] - self.id_edges[..., :-1]
        return here

    @cached_property
    def ood_here(self) -> FloatArray:
        """OoD inputs in each group."""
        here: FloatArray = self.ood_edges[..., 1:] - self.ood_edges[..., :-1]
        return here

    @cached_property
    def all_edges(self) -> FloatArray:
        """Inputs of both sides up to each edge."""
        return self.id_edges + self.ood_edges


class Metric(NamedTuple):
    """One number about the scores of both sides; see :func:`register_metric`."""

    name: str
    title: str
    higher_is_better: bool
    function: Callable[[Scores, Scores], float] | None = None
    part: Callable[[Groups], Any] | None = None
    """What some neighbouring groups add; None: the metric needs all scores at once."""
    finish: Callable[[Any, SideSizes], Any] | None = None
    """From the sum over all groups to the number."""

    def best(self, values: Iterable[float]) -> float:
        """The best of some values."""
        return (max if self.higher_is_better else min)(values)


METRICS: dict[str, Metric] = {}
"""Every metric by name, in the order of registration: AUROC, AUPR and FPR95 first."""

Function = TypeVar("Function", bound=Callable[..., float])


def register_metric(
    name: str,
    title: str,
    *,
    higher_is_better: bool,
    part: Callable[[Groups], Any] | None = None,
    finish: Callable[[Any, SideSizes], Any] | None = None,
) -> Callable[[Function], Function]:
    """Add a metric to the list, so that evaluations, comparisons, stress grids and reports have it.

    Parameters
    ----------
    name : str
        An identifier; the attribute of results that holds the number.
    title : str
        What tables call it.
    higher_is_better : bool
    part, finish : callable, optional
        The metric as a sum over groups of equal scores: ``finish(sum of part(groups), sizes)``. With them it
        also has bootstrap intervals.

    Returns
    -------
    decorator of a function of (id_scores, ood_scores), two checked vectors, to a float

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
    if (part is None) != (finish is None):
        raise InvalidInput(f"the metric {name!r} must have both part and finish, or neither.")

    def add(function: Function) -> Function:
        known = METRICS.get(name)
        if known is not None and known.function is not None and _home(known.function) != _home(function):
            raise InvalidInput(f"there is a metric {name!r} already, in {_home(known.function)}; choose another name.")
        METRICS[name] = Metric(name, title, higher_is_better, function, part, finish)
        return function

    return add


def _home(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def number_of(values: Mapping[str, Any], name: str, owner: str) -> Any:
    """Look up the metric that an attribute names; raises AttributeError as Python does for unknown attributes."""
    if name.startswith("_") or name not in values:
        raise AttributeError(f"{owner} has no attribute {name!r}")
    return values[name]


def summed_metrics() -> tuple[Metric, ...]:
    """The metrics that are sums over groups."""
    return tuple(metric for metric in METRICS.values() if metric.part is not None)


def values_of(merged: Merged, id_scores: Scores, ood_scores: Scores, sizes: SideSizes) -> Values:
    """Compute every metric: the sums in one walk over the merged scores, the others from the scores themselves."""
    parts: dict[str, list[Any]] = {metric.name: [] for metric in summed_metrics()}
    for id_edges, ood_edges, _ in blocks(merged):
        groups = Groups(id_edges, ood_edges, sizes)
        for name, own in parts.items():
            own.append(METRICS[name].part(groups))  # type: ignore[misc]
    found = {}
    for name, metric in METRICS.items():
        if metric.part is not None and metric.finish is not None:
            found[name] = float(metric.finish(_total(parts[name]), sizes))
        elif metric.function is not None:
            found[name] = float(metric.function(id_scores, ood_scores))
    return found


def _total(values: list[Any]) -> Any:
    """The sum; whole numbers stay exact."""
    return sum(values) if all(isinstance(value, int) for value in values) else math.fsum(values)


def values_of_rows(groups: Groups) -> dict[str, FloatArray]:
    """Compute the metrics that are sums for each row of counts (b, g + 1); shape (b,) each."""
    return {
        metric.name: np.asarray(metric.finish(metric.part(groups), groups.sizes), np.float64)
        for metric in summed_metrics()
        if metric.part is not None and metric.finish is not None
    }
