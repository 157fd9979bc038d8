"""The paper's tables as the audit reads them, and what the rounding to four digits leaves open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from normscale.bench.paper.published import (
    AVERAGE,
    IN_SETS,
    METHODS,
    SETS,
    MainRow,
    PaperRow,
    PaperValue,
    main_tables,
    metric_name,
    paper_results,
)

COLUMNS = ("AUROC", "AUPR", "FPR95")
COMPARISON = "comparison"
THRESHOLDS = "norm_scaling_vs_thresholds"
RIVALS = ("msp", "odin", "mahalanobis", "energy")
OURS = "norm_scaling"

UNIT = 1e-4
"""The last printed digit."""

TITLES = {ours: printed for printed, ours in (METHODS | SETS).items()}
"""A method or a set as the paper calls it."""


class Tables:
    """Both kinds of tables, looked up by names; by default the paper's, or doctored ones to try the audit on.

    Parameters
    ----------
    results : rows of the expanded tables, optional
    main : rows of the main text's tables, optional

    Examples
    --------
    >>> tables = Tables()
    >>> tables.value("svhn", "lsun", "msp", "AUPR")
    PaperValue(mean=0.5614, std=0.0133)
    >>> [row.ood_set for row in tables.rows("cifar10", "msp", "AUROC")][:3]
    ['gaussian', 'uniform', 'svhn']
    """

    def __init__(self, results: Iterable[PaperRow] | None = None, main: Iterable[MainRow] | None = None) -> None:
        """Index the rows."""
        self.results = list(paper_results() if results is None else results)
        self.main = list(main_tables() if main is None else main)
        self._expanded = {row[:4]: PaperValue(row.mean, row.std) for row in self.results}
        self._main = {row[:4]: PaperValue(row.mean, row.std) for row in self.main}

    def value(self, in_set: str, ood_set: str, method: str, column: str) -> PaperValue:
        """A cell of the expanded tables."""
        return self._expanded[in_set, ood_set, method, metric_name(method, column)]

    def has(self, in_set: str, ood_set: str, method: str, column: str) -> bool:
        """Whether the expanded tables have that cell."""
        return (in_set, ood_set, method, metric_name(method, column)) in self._expanded

    def main_value(self, table: str, in_set: str, method: str, column: str) -> PaperValue:
        """A cell of the main text's tables."""
        return self._main[table, in_set, method, metric_name(method, column)]

    def four(self, table: str, method: str, column: str) -> list[float]:
        """The means of a method on the four in-distribution sets, from the main text."""
        return [self.main_value(table, in_set, method, column).mean for in_set in IN_SETS]

    def rows(self, in_set: str | None, method: str, column: str) -> list[PaperRow]:
        """The rows of single OoD sets for one in-distribution set, or for all of them."""
        metric = metric_name(method, column)
        return [
            row
            for row in self.results
            if row.ood_set != AVERAGE and row[2:4] == (method, metric) and in_set in (None, row.in_set)
        ]


def agrees(printed: float, recomputed: float, units: float = 1.0) -> bool:
    """Whether a printed number may be the rounding of what the rounded rows give.

    A row is off by half a unit at most, so a mean of rows is too, and so is a population deviation; the printed number
    adds its own half.

    Examples
    --------
    >>> agrees(0.3578, 0.3577), agrees(0.3578, 0.3467)
    (True, False)
    """
    return abs(printed - recomputed) <= units * UNIT * (1 + 1e-6)


def relative_change(ours: float, theirs: float) -> float:
    """How much more ``ours`` is than ``theirs``, as a share of it; more than nothing is infinitely more.

    Examples
    --------
    >>> relative_change(3.0, 2.0), relative_change(0.0, 0.0), relative_change(0.1, 0.0)
    (0.5, 0.0, inf)
    """
    if theirs == 0:
        return math.inf if ours else 0.0
    return ours / theirs - 1.0


def may_be(claimed: float, ours: float, theirs: float, unit: float = UNIT) -> bool:
    """Whether a claimed relative change, itself rounded to ``unit``, may come from two printed numbers."""
    half = UNIT / 2
    low = relative_change(ours - half, theirs + half)
    high = relative_change(ours + half, theirs - half)
    return low - unit / 2 <= claimed <= high + unit / 2


def best(values: Sequence[tuple[str, float]], column: str) -> tuple[str, float]:
    """The best of named values: the lowest FPR95, the highest of anything else."""
    return (min if column == "FPR95" else max)(values, key=lambda pair: pair[1])


def better(a: float, b: float, column: str) -> bool:
    """Whether ``a`` is better than ``b``."""
    return a < b if column == "FPR95" else a > b
