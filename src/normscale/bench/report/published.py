"""What others published for the same comparison: numbers beside a run's, and near and far OoD sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from normscale.bench.experiments.run_folder import RunFolder

if TYPE_CHECKING:
    from normscale.bench.report.runs import ReportedRun
    from normscale.bench.report.table import ReportTable


class PublishedValue(NamedTuple):
    """A mean over seeds, and the ± printed beside it."""

    mean: float
    std: float


class Reference(NamedTuple):
    """What somebody published for networks trained on the same set."""

    name: str = ""
    """What it is called over columns and in notes, such as "paper"."""
    values: Mapping[tuple[str, str, str], PublishedValue] = {}
    """By OoD set, method and metric."""
    sizes: Mapping[str, int] = {}
    """Rows of its OoD sets."""
    n_id: int | None = None
    """Rows of its in-distribution test set."""
    accuracy: PublishedValue | None = None
    notes: Mapping[str, str] = {}
    """What must be said where a method is compared, by the method's name."""

    def share(self, ood_set: str) -> float | None:
        """Share of OoD rows in its stream of the test set and an OoD set; None where a size is not known."""
        size = self.sizes.get(ood_set)
        return None if size is None or self.n_id is None else size / (size + self.n_id)


class OodGroups(NamedTuple):
    """Which OoD sets are near an in-distribution set and which are far, who says so, and what was published."""

    near: Sequence[str] = ()
    far: Sequence[str] = ()
    defined_by: str = "nobody"
    auroc: Mapping[str, Sequence[float]] = {}
    """Published averages over the near and over the far sets, by method."""


class OodGroupReference(NamedTuple):
    """Near and far OoD sets of in-distribution sets, and the names of sets.

    Examples
    --------
    >>> groups = {"cifar10": OodGroups(("cifar100",), ("svhn", "places"), "an example")}
    >>> reference = OodGroupReference(groups=groups, same_set={"places365": "places"})
    >>> reference.members("cifar10", "far", ["places365", "cifar100", "gaussian"])
    ['places365']
    >>> reference.absent("cifar10", "far", ["places365", "cifar100", "gaussian"])
    ['svhn']
    """

    source: str = ""
    groups: Mapping[str, OodGroups] = {}
    """By in-distribution set."""
    set_titles: Mapping[str, str] = {}
    same_set: Mapping[str, str] = {}
    """Other names of a set of the groups."""
    remarks: Mapping[str, str] = {}
    """What must be said beside a method, by its name."""

    def members(self, in_set: str, group: str, ood_sets: Sequence[str]) -> list[str]:
        """Those of the OoD sets that are in a group, ``near`` or ``far``."""
        names = getattr(self.groups.get(in_set, OodGroups()), group)
        return [name for name in ood_sets if self.same_set.get(name, name) in names]

    def absent(self, in_set: str, group: str, ood_sets: Sequence[str]) -> list[str]:
        """Sets of a group that are not among the OoD sets."""
        there = {self.same_set.get(name, name) for name in ood_sets}
        return [name for name in getattr(self.groups.get(in_set, OodGroups()), group) if name not in there]


class Additions(NamedTuple):
    """Parts of a report that are not about every classifier."""

    reference: Callable[[RunFolder], Reference | None] = lambda _: None
    """Numbers that were published for a run's in-distribution set."""
    groups: OodGroupReference = OodGroupReference()
    """Titles of sets and, for a leaderboard, near and far OoD sets."""
    tables: Callable[[Sequence[ReportedRun]], Sequence[ReportTable | None]] = lambda _: ()
