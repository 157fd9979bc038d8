"""What others published for the same comparison: numbers beside a run's, and near and far OoD sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from normscale.bench.report.scoreboard import Scoreboard


class PublishedValue(NamedTuple):
    """A mean over seeds, and the deviation printed beside it."""

    mean: float
    std: float


class Reference(NamedTuple):
    """What somebody published for networks trained on the same set; whoever asks for a report hands it in."""

    name: str = ""
    """What it is called over columns and in notes, such as "paper"."""
    values: Mapping[tuple[str, str, str], PublishedValue] = {}
    """By OoD set, method and metric."""
    sizes: Mapping[str, int] = {}
    """Rows of its OoD sets."""
    n_id: int | None = None
    """Rows of its in-distribution test set."""
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
        return self.reference.sizes.get(ood_set)


NEAR, FAR, ALL = GROUPS = ("near", "far", "all")


class OodGroups(NamedTuple):
    """Which OoD sets are near an in-distribution set and which are far, and who says so."""

    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    defined_by: str = "nobody"


class PublishedAverages(NamedTuple):
    """AUROC of a detector over the near and over the far sets, between 0 and 1."""

    near: float
    far: float


class OodGroupReference(NamedTuple):
    """What others have defined and measured.

    Examples
    --------
    >>> groups = {"cifar10": OodGroups(("cifar100",), ("svhn", "places"), "an example")}
    >>> reference = OodGroupReference(groups=groups, same_set={"places365": "places"})
    >>> reference.members("cifar10", "far", ["places365", "cifar100", "gaussian"])
    ('places365',)
    >>> reference.absent("cifar10", "far", ["places365", "cifar100", "gaussian"])
    ('svhn',)
    """

    title: str = ""
    source: str = ""
    groups: Mapping[str, OodGroups] = {}
    """By in-distribution set."""
    published: Mapping[tuple[str, str], PublishedAverages] = {}
    """By in-distribution set and method."""
    set_titles: Mapping[str, str] = {}
    same_set: Mapping[str, str] = {}
    """Other names of a set of the groups."""
    remarks: Mapping[str, str] = {}
    """What must be said beside a method, by its name."""

    def groups_of(self, in_set: str) -> OodGroups:
        """The groups of an in-distribution set; empty if nobody has defined any."""
        return self.groups.get(in_set, OodGroups())

    def members(self, in_set: str, group: str, ood_sets: Sequence[str]) -> tuple[str, ...]:
        """Those of the OoD sets that are in a group; ``all`` has all of them."""
        if group == ALL:
            return tuple(ood_sets)
        wanted = getattr(self.groups_of(in_set), group)
        return tuple(name for name in ood_sets if self.same_set.get(name, name) in wanted)

    def absent(self, in_set: str, group: str, ood_sets: Sequence[str]) -> tuple[str, ...]:
        """Sets of a group, near or far, that are not among the OoD sets."""
        there = {self.same_set.get(name, name) for name in ood_sets}
        return tuple(name for name in getattr(self.groups_of(in_set), group) if name not in there)
