"""Near and far OoD sets of an in-distribution set, and published averages over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


class LeaderboardReference(NamedTuple):
    """What others have defined and measured.

    Examples
    --------
    >>> groups = {"cifar10": OodGroups(("cifar100",), ("svhn", "places"), "an example")}
    >>> reference = LeaderboardReference(groups=groups, same_set={"places365": "places"})
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
