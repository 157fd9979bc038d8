"""Numbers that were published for the same comparison, beside a run's: like with like, over the OoD sets both have."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

from normscale.report.scoreboard import Scoreboard


class PublishedValue(NamedTuple):
    """A mean over seeds, and the deviation printed beside it."""

    mean: float
    std: float


class Reference(NamedTuple):
    """What somebody published for networks trained on the same set; whoever asks for a report hands it in."""

    name: str = "paper"
    """What it is called: "the paper" in sentences, "Paper" over columns."""
    values: Mapping[tuple[str, str, str], PublishedValue] = {}
    """By OoD set, method and metric."""
    sizes: Mapping[str, int] = {}
    """Rows of its OoD sets."""
    accuracy: PublishedValue | None = None
    """Share of right answers of its networks."""
    notes: Mapping[str, str] = {}
    """What must be said where a method is compared, by the method's name."""

    @property
    def title(self) -> str:
        """The name over a column."""
        return self.name.capitalize()


class SideBySide(NamedTuple):
    """An average here and in the reference, over the same OoD sets."""

    ours: float
    theirs: float
    ood_sets: tuple[str, ...]

    @property
    def difference(self) -> float:
        """Ours minus theirs."""
        return self.ours - self.theirs


class BesideReference:
    """Looks up what a reference has for a run.

    Attributes
    ----------
    reference : Reference
        An empty one, if there is none.
    ood_sets : list of str
        Sets of the run that the reference has too.
    """

    def __init__(self, board: Scoreboard, reference: Reference | None = None) -> None:
        self.board, self.reference = board, reference or Reference()
        known = {ood_set for ood_set, _, _ in self.reference.values}
        self.ood_sets = [name for name in board.ood_sets if name in known]

    @property
    def is_there(self) -> bool:
        """Whether there is anything to compare with."""
        return bool(self.ood_sets)

    def value(self, metric: str, method: str, ood_set: str) -> PublishedValue | None:
        """What was published for one method on one OoD set."""
        return self.reference.values.get((ood_set, method, metric))

    def average(self, metric: str, method: str) -> SideBySide | None:
        """Both averages over the sets that both have; None if there are none."""
        printed = {name: self.value(metric, method, name) for name in self.board.block.ood_sets}
        shared = {name: value.mean for name, value in printed.items() if value is not None}
        ours = self.board.average(metric, method, tuple(shared))
        return None if ours is None else SideBySide(ours.mean, fmean(shared.values()), tuple(shared))

    def size(self, ood_set: str) -> int | None:
        """Rows of an OoD set in the reference; None for one it does not have."""
        return self.reference.sizes.get(ood_set) if ood_set in self.ood_sets else None
