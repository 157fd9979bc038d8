"""The paper's numbers beside a run's: like with like, over the OoD sets that both have."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from normscale.experiments.paper import IN_SETS, PaperValue, ood_size, paper_value
from normscale.report.scoreboard import Scoreboard


class SideBySide(NamedTuple):
    """An average here and in the paper, over the same OoD sets."""

    ours: float
    paper: float
    ood_sets: tuple[str, ...]

    @property
    def difference(self) -> float:
        """Ours minus the paper's."""
        return self.ours - self.paper


class BesidePaper:
    """Looks up what the paper has for the in-distribution set of a run.

    Attributes
    ----------
    ood_sets : list of str
        Sets of the run that the paper has too.
    """

    def __init__(self, board: Scoreboard, in_set: str) -> None:
        self.board, self.in_set = board, in_set
        self.ood_sets = [name for name in board.ood_sets if self.value("auroc", "msp", name) is not None]

    @property
    def is_there(self) -> bool:
        """Whether there is anything to compare with."""
        return bool(self.ood_sets)

    def value(self, metric: str, method: str, ood_set: str) -> PaperValue | None:
        """What the paper prints: a mean over five seeds and its deviation."""
        return paper_value(self.in_set, ood_set, method, metric) if self.in_set in IN_SETS else None

    def average(self, metric: str, method: str) -> SideBySide | None:
        """Both averages over the sets that both have; None if there are none."""
        printed = {name: self.value(metric, method, name) for name in self.board.block.ood_sets}
        shared = {name: value.mean for name, value in printed.items() if value is not None}
        ours = self.board.average(metric, method, tuple(shared))
        return None if ours is None else SideBySide(ours.mean, fmean(shared.values()), tuple(shared))

    def size(self, ood_set: str) -> int | None:
        """Rows of an OoD set in the paper; None for one it does not have."""
        return ood_size(self.in_set, ood_set) if ood_set in self.ood_sets else None
