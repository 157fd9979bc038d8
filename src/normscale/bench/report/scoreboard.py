"""The finished cells of a run as numbers: per OoD set, and averaged over the largest block in which nothing is missing.

There are two spreads, and they answer different questions. *Over seeds*: how much another training changes the number.
*Over OoD sets*: how much the number differs from set to set. Both are population standard deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.run_folder import RunFolder
from normscale.detectors.base import Setting

SHOWN = ("auroc", "aupr_out", "fpr95_out")
"""The metrics of the main tables."""


class ComparableBlock(NamedTuple):
    """Methods, seeds and OoD sets of which every combination has been measured."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    ood_sets: tuple[str, ...]


class Mean(NamedTuple):
    """Of one method on one OoD set."""

    mean: float
    over_seeds: float | None
    """None with a single seed."""
    n_seeds: int


class Average(NamedTuple):
    """Of one method over OoD sets and seeds."""

    mean: float
    over_seeds: float | None
    """Of the means over the sets, one per seed; None with a single seed."""
    over_sets: float | None
    """Of the means over the seeds, one per set; None with a single set."""


class Scoreboard:
    """All finished cells of a run, by method, OoD set and seed.

    Attributes
    ----------
    methods, ood_sets, seeds : lists
        Those with a finished cell, in the plan's order.
    subject : str or None
        The method that is compared with every other one.
    trained : bool
        Whether the seeds are of networks that the run trained; outputs of somebody's own have none.
    per_class : set of str
        Methods that are means over one ranking per predicted class; they cannot be ranked with the others.
    block : ComparableBlock
        What averages are made of. They would compare unlike with unlike if a method were averaged over other sets or
        seeds than its rivals.
    """

    def __init__(self, cells: Sequence[Measurement], subject: str | None = None, *, trained: bool = True) -> None:
        self.trained = trained
        self.cells = {(cell.method, cell.ood_set, cell.seed or 0): cell for cell in cells}
        self.methods = list(dict.fromkeys(cell.method for cell in cells))
        self.ood_sets = list(dict.fromkeys(cell.ood_set for cell in cells))
        self.seeds = list(dict.fromkeys(cell.seed or 0 for cell in cells))
        self.per_class = {cell.method for cell in cells if cell.setting == Setting.PER_CLASS}
        running = next((cell.method for cell in cells if cell.setting == Setting.STREAM), None)
        self.subject = subject if subject in self.methods else running
        self.block = self._largest_block()

    @classmethod
    def of(cls, run: RunFolder) -> Scoreboard:
        """Read the cells of a run."""
        return cls(run.cells(), run.plan.subject, trained=bool(run.plan.network))

    def value(self, metric: str, method: str, ood_set: str, seed: int) -> float:
        """One cell's number."""
        return self.cells[method, ood_set, seed].metrics[metric]

    def mean(self, metric: str, method: str, ood_set: str) -> Mean | None:
        """Over the seeds that are finished; None if there is none."""
        values = [self.value(metric, method, ood_set, seed) for seed in self.seeds_of(method, ood_set)]
        return Mean(fmean(values), _spread(values), len(values)) if values else None

    def average(self, metric: str, method: str, ood_sets: Sequence[str] | None = None) -> Average | None:
        """Over the block's seeds and sets, or some of the sets; None if the method or a set is not in the block."""
        sets = self.block.ood_sets if ood_sets is None else ood_sets
        if method not in self.block.methods or not sets or not set(sets) <= set(self.block.ood_sets):
            return None
        table = [[self.value(metric, method, name, seed) for name in sets] for seed in self.block.seeds]
        by_seed = [fmean(row) for row in table]
        by_set = [fmean(column) for column in zip(*table, strict=True)]
        return Average(fmean(by_seed), _spread(by_seed), _spread(by_set))

    def seeds_of(self, method: str, ood_set: str) -> list[int]:
        """The seeds with which a method has been measured on a set."""
        return [seed for seed in self.seeds if (method, ood_set, seed) in self.cells]

    def n_ood(self, ood_set: str) -> int:
        """Rows of an OoD set."""
        return next(cell.n_ood for cell in self.cells.values() if cell.ood_set == ood_set)

    def n_id(self) -> int:
        """Rows of the in-distribution test set."""
        return next(iter(self.cells.values())).n_id

    def _largest_block(self) -> ComparableBlock:
        """Leave out the methods with the fewest cells, one after the other, as long as that makes the block larger."""
        rank = {name: sum(key[0] == name for key in self.cells) for name in self.methods}
        fullest = sorted(self.methods, key=lambda name: -rank[name])
        best = ComparableBlock((), (), ())
        for n_kept in range(len(fullest), 0, -1):
            kept = tuple(name for name in self.methods if name in fullest[:n_kept])
            for block in self._blocks(kept):
                best = max(best, block, key=lambda one: (_volume(one), len(one.ood_sets)))
        return best

    def _blocks(self, methods: tuple[str, ...]) -> list[ComparableBlock]:
        """For every seed the sets it has finished with all methods, and all seeds that have finished these."""
        done = {
            seed: tuple(name for name in self.ood_sets if all((one, name, seed) in self.cells for one in methods))
            for seed in self.seeds
        }
        return [
            ComparableBlock(methods, tuple(seed for seed in self.seeds if set(sets) <= set(done[seed])), sets)
            for sets in done.values()
            if sets
        ]


def _volume(block: ComparableBlock) -> int:
    return len(block.methods) * len(block.seeds) * len(block.ood_sets)


def _spread(values: Sequence[float]) -> float | None:
    return pstdev(values) if len(values) > 1 else None
