"""The stress grid in four numbers for each method: what it risks, how often, what it gains, and its mean."""

from __future__ import annotations

import math
from statistics import fmean
from typing import NamedTuple

from normscale.errors import InvalidInput
from normscale.experiments.stress import FROZEN, RIVALS, RUNNING, norm_scaling_name
from normscale.experiments.stress_result import Cell, StressResult

STATICS = (*RIVALS, FROZEN, norm_scaling_name("max", "frozen"))
"""What a method with running statistics must not lose against."""
TOLERANCE = 0.005
"""Differences in AUROC up to here do not count as a loss or a gain."""
PAPER_SETTING = Cell(0.5, "shuffled", "balanced")


class MethodSummary(NamedTuple):
    """One method over all cells, each averaged over the OoD sets."""

    method: str
    worst: float
    """Its AUROC minus the best static method's, in the cell where that is smallest."""
    worst_cell: Cell
    cells_below: int
    """In how many cells it falls short of the best static method by more than 0.005."""
    n_cells: int
    gain_kept: float
    """Its AUROC gain over Energy in the paper's setting, as a share of running norm-scaling's; NaN without one."""
    mean_auroc: float
    mean_fpr95_out: float


def summarise(result: StressResult, statics: tuple[str, ...] = STATICS) -> list[MethodSummary]:
    """Summarise every method of a grid, best mean AUROC first.

    Parameters
    ----------
    result : StressResult
    statics : names of methods
        The best of these in a cell is what the others are held against; those that were not measured are left out.

    Examples
    --------
    >>> from normscale.experiments.stress_result import StressRow
    >>> cell = ("noise", 0.5, "shuffled", "balanced", ())
    >>> rows = [StressRow(*cell, *numbers, 0.2, 50, 50, 4, 0, "") for numbers in
    ...         (("energy", {}, 0.8), ("norm_scaling msp w=1", {}, 0.9), ("mine", {}, 0.875))]
    >>> [(one.method, round(one.worst, 3), round(one.gain_kept, 2)) for one in summarise(StressResult(rows))]
    [('norm_scaling msp w=1', 0.1, 1.0), ('mine', 0.075, 0.75), ('energy', 0.0, 0.0)]
    """
    cells = result.cells()
    known = [name for name in statics if name in result.methods]
    if not cells or not known:
        raise InvalidInput(
            f"a summary needs a cell with numbers and one of the methods {', '.join(statics)}; got {len(cells)} cells "
            f"of {', '.join(result.methods) or 'no method'}."
        )
    best = {cell: max(numbers[name].auroc for name in known) for cell, numbers in cells.items()}
    summaries = []
    for method in result.methods:
        differences = {cell: numbers[method].auroc - best[cell] for cell, numbers in cells.items()}
        worst_cell = min(differences, key=lambda cell: differences[cell])
        summaries.append(
            MethodSummary(
                method=method,
                worst=differences[worst_cell],
                worst_cell=worst_cell,
                cells_below=sum(difference < -TOLERANCE for difference in differences.values()),
                n_cells=len(cells),
                gain_kept=_gain_kept(result, method),
                mean_auroc=fmean(numbers[method].auroc for numbers in cells.values()),
                mean_fpr95_out=fmean(numbers[method].fpr95_out for numbers in cells.values()),
            )
        )
    return sorted(summaries, key=lambda one: -one.mean_auroc)


def _gain_kept(result: StressResult, method: str) -> float:
    here = result.cells().get(PAPER_SETTING, {})
    if RUNNING not in here or "energy" not in here:
        return math.nan
    gain = here[RUNNING].auroc - here["energy"].auroc
    return (here[method].auroc - here["energy"].auroc) / gain if gain > 0 else math.nan
