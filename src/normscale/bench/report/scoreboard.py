"""The finished cells of a run as numbers: per OoD set, and averaged over the largest block without gaps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.run_folder import RunFolder
from normscale.detectors.base import Setting


class ComparableBlock(NamedTuple):
    """Methods, seeds and OoD sets of which every combination has been measured."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    ood_sets: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many cells it has."""
        return len(self.methods) * len(self.seeds) * len(self.ood_sets)


class Average(NamedTuple):
    """Of one method over seeds and OoD sets; all None where it was not measured. Spreads are population deviations."""

    mean: float | None = None
    over_seeds: float | None = None
    """How much another training changes the mean over the sets; None with a single seed."""
    over_sets: float | None = None
    """How much the sets differ; None with a single set."""
    within_sets: float | None = None
    """Mean over the sets of the deviation over seeds, which is the paper's own ±; None with a single seed."""


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
    block : ComparableBlock
        What averages are made of, so that all methods are averaged over the same sets and seeds.
    """

    def __init__(self, cells: Sequence[Measurement], subject: str | None = None, *, trained: bool = True) -> None:
        self.trained = trained
        self.cells = {(cell.method, cell.ood_set, cell.seed or 0): cell for cell in cells}
        self.methods = list(dict.fromkeys(cell.method for cell in cells))
        self.ood_sets = list(dict.fromkeys(cell.ood_set for cell in cells))
        self.seeds = list(dict.fromkeys(cell.seed or 0 for cell in cells))
        self.settings = {cell.method: str(cell.setting) for cell in cells}
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

    def mean(self, metric: str, method: str, ood_set: str) -> Average:
        """On one OoD set, over the seeds that are finished."""
        return self._average(metric, method, [ood_set], self.seeds_of(method, ood_set))

    def average(self, metric: str, method: str, ood_sets: Sequence[str] | None = None) -> Average:
        """Over the block's seeds and sets, or some of the sets; empty if the method or a set is not in the block."""
        sets = self.block.ood_sets if ood_sets is None else ood_sets
        inside = method in self.block.methods and set(sets) <= set(self.block.ood_sets)
        return self._average(metric, method, sets, self.block.seeds if inside else ())

    def _average(self, metric: str, method: str, sets: Sequence[str], seeds: Sequence[int]) -> Average:
        if not sets or not seeds:
            return Average()
        by_seed = [[self.value(metric, method, name, seed) for name in sets] for seed in seeds]
        by_set = list(zip(*by_seed, strict=True))
        means = [fmean(row) for row in by_seed]
        spreads = [pstdev(column) for column in by_set]
        several = len(seeds) > 1
        return Average(
            fmean(means),
            pstdev(means) if several else None,
            pstdev(map(fmean, by_set)) if len(sets) > 1 else None,
            fmean(spreads) if several else None,
        )

    def seeds_of(self, method: str, ood_set: str) -> list[int]:
        """The seeds with which a method has been measured on a set."""
        return [seed for seed in self.seeds if (method, ood_set, seed) in self.cells]

    def n_ood(self, ood_set: str) -> int:
        """Rows of an OoD set."""
        return next(cell.n_ood for cell in self.cells.values() if cell.ood_set == ood_set)

    def n_id(self) -> int:
        """Rows of the in-distribution test set."""
        return next(iter(self.cells.values())).n_id

    def share(self, ood_set: str) -> float:
        """Share of OoD rows in the stream of the test set and an OoD set."""
        return self.n_ood(ood_set) / (self.n_ood(ood_set) + self.n_id())

    def _largest_block(self) -> ComparableBlock:
        """Leave out the methods with the fewest cells, one after the other, as long as that makes the block larger."""
        rank = {name: sum(key[0] == name for key in self.cells) for name in self.methods}
        fullest = sorted(self.methods, key=lambda name: -rank[name])
        best = ComparableBlock((), (), ())
        for n_kept in range(len(fullest), 0, -1):
            kept = tuple(name for name in self.methods if name in fullest[:n_kept])
            done = {
                seed: tuple(name for name in self.ood_sets if all((one, name, seed) in self.cells for one in kept))
                for seed in self.seeds
            }
            for sets in filter(None, done.values()):
                seeds = tuple(seed for seed in self.seeds if set(sets) <= set(done[seed]))
                best = max(best, ComparableBlock(kept, seeds, sets), key=lambda one: (one.size, len(one.ood_sets)))
        return best
