"""The list of metrics: what each is called, which direction is better, and how it is computed.

A metric is a function of the scores of both sides. Most are also a *sum over groups of equal scores*: each group adds
a number that depends on the counts up to it alone. Such metrics are computed together in one walk over the sorted
scores, in every resample of a bootstrap, and over many files, where each worker sorts one range of scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
        The metric as a sum over groups of equal scores: ``finish(sum of part(groups), sizes)``. With them it is also
        computed over many files and has bootstrap intervals; without, it needs all scores at once.

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


@dataclass(frozen=True)
class RankingQuestion:
    """Computes metrics from parts of the scores, such as the ranges that different workers have sorted.

    It carries the metrics with it, so a worker needs only to be able to import the modules that define them.
    """

    n_id: int
    n_ood: int
    caught_out: int
    caught_in: int
    metrics: tuple[Metric, ...] = field(default_factory=summed_metrics)

    @property
    def sizes(self) -> SideSizes:
        """The numbers, as metrics take them."""
        return SideSizes(self.n_id, self.n_ood, self.caught_out, self.caught_in)

    def part(self, id_edges: FloatArray, ood_edges: FloatArray) -> dict[str, Any]:
        """What some neighbouring groups add to each metric; edges also count the inputs of all groups below."""
        groups = Groups(id_edges, ood_edges, self.sizes)
        return {metric.name: metric.part(groups) for metric in self.metrics if metric.part is not None}

    @staticmethod
    def together(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Add parts up; whole numbers stay exact."""
        return {name: _total([part[name] for part in parts]) for name in parts[0]}

    def answer(self, parts: Sequence[dict[str, Any]]) -> Values:
        """The metrics from all parts."""
        total = self.together(parts)
        return {one.name: float(one.finish(total[one.name], self.sizes)) for one in self.metrics if one.finish}


def _total(values: list[Any]) -> Any:
    return sum(values) if all(isinstance(value, int) for value in values) else math.fsum(values)


def values_of(merged: Merged, id_scores: Scores, ood_scores: Scores, caught_out: int, caught_in: int) -> Values:
    """Compute every metric: the sums in one walk over the merged scores, the others from the scores themselves."""
    question = RankingQuestion(merged.n_id, merged.n_ood, caught_out, caught_in)
    found = question.answer([question.part(id_edges, ood_edges) for id_edges, ood_edges, _ in blocks(merged)])
    for metric in METRICS.values():
        if metric.name not in found and metric.function is not None:
            found[metric.name] = float(metric.function(id_scores, ood_scores))
    return {name: found[name] for name in METRICS}


def values_of_rows(groups: Groups) -> dict[str, FloatArray]:
    """Compute the metrics that are sums for each row of counts (b, g + 1); shape (b,) each."""
    return {
        metric.name: np.asarray(metric.finish(metric.part(groups), groups.sizes), np.float64)
        for metric in summed_metrics()
        if metric.part is not None and metric.finish is not None
    }
