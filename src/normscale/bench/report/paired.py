"""Resampled rows: an interval for every method's average, and the subject of a report against each of its rivals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import NamedTuple

import numpy as np

from normscale._progress import bar
from normscale._validate import FloatArray
from normscale.bench.experiments.measurement import ScoredPair
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.network_folder import read_document, write_document
from normscale.bench.report.scoreboard import Scoreboard
from normscale.errors import FileFormatError
from normscale.metrics.paired import resampled_auroc

ALL_SETS = "Mean of all OoD sets"
LEVEL = 0.95
_SAME = 1e-9
"""Two AUROC that differ by more are of other cells."""

BETTER, WORSE = "better", "worse"
BETTER_NOT_ALL, WORSE_NOT_ALL = "better on average, not with every network", "worse on average, not with every network"
NO_DIFFERENCE = "no difference shown"

LoadScores = Callable[[int, str, str], ScoredPair]
"""From a seed, an OoD set and a method to the scores."""


class Comparison(NamedTuple):
    """The subject against one rival on one OoD set, averaged over the networks that have both."""

    ood_set: str
    rival: str
    auroc: float
    rival_auroc: float
    low: float
    high: float
    wins: float
    """Share of resamples in which the subject has the higher AUROC."""
    networks_won: int
    n_networks: int

    @property
    def verdict(self) -> str:
        """A side is better if the interval leaves 0 out and every network agrees."""
        if self.low > 0:
            return BETTER if self.networks_won == self.n_networks else BETTER_NOT_ALL
        if self.high < 0:
            return WORSE if self.networks_won == 0 else WORSE_NOT_ALL
        return NO_DIFFERENCE


class Resampled(NamedTuple):
    """What resampling the rows of a run gave, as ``comparisons.json`` keeps it: a reader of results has no scores."""

    subject: str | None
    resamples: int
    level: float
    comparisons: Sequence[Comparison]
    intervals: Mapping[str, tuple[float, float]] = {}
    """Of each method's mean AUROC over the OoD sets of the comparable block."""

    def save(self, run: RunFolder) -> None:
        """Keep it beside the run's results."""
        document = {**self._asdict(), "comparisons": [one._asdict() for one in self.comparisons]}
        write_document(run.comparisons, document)

    @classmethod
    def load(cls, run: RunFolder) -> Resampled | None:
        """What was kept; None if nothing was."""
        document = read_document(run.comparisons)
        if not document:
            return None
        try:
            rows = [Comparison(**one) for one in document["comparisons"]]
            ends = {name: (float(low), float(high)) for name, (low, high) in document.get("intervals", {}).items()}
            return cls(**{**document, "comparisons": rows, "intervals": ends})
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"{run.comparisons} is not what this version writes ({error}); delete it and run `normscale report` "
                "on the run."
            ) from error

    def fits(self, board: Scoreboard) -> bool:
        """Whether this is of a board's cells, all of them."""
        pairs = comparable(board)
        return (
            self.subject == board.subject
            and [(one.ood_set, one.rival) for one in self.comparisons] == list(pairs)
            and all(
                one.n_networks == len(pair.networks)
                and math.isclose(one.auroc, fmean(pair.ours), abs_tol=_SAME)
                and math.isclose(one.rival_auroc, fmean(pair.theirs), abs_tol=_SAME)
                for one, pair in zip(self.comparisons, pairs.values(), strict=True)
            )
        )


def resample(
    board: Scoreboard,
    load: LoadScores,
    *,
    resamples: int = 1000,
    level: float = LEVEL,
    seed: int = 0,
) -> Resampled:
    """Draw rows again and again: intervals of all averages, and the subject against every other method.

    The rows of a resample are the same for all methods and all networks, and the in-distribution rows also for all OoD
    sets. What is resampled is the mean over networks: an interval is about these networks on other inputs.
    ``load`` reads the scores of a cell.
    """
    drawn: dict[tuple[str, str, int], FloatArray] = {}
    with bar("resampling rows", len(board.ood_sets) * len(board.seeds), quiet_seconds=1.0) as line:
        for name, network in product(board.ood_sets, board.seeds):
            if there := [method for method in board.methods if (method, name, network) in board.cells]:
                pairs = [load(network, name, method) for method in there]
                rows = resampled_auroc(pairs, resamples, seed)
                drawn |= {(method, name, network): row for method, row in zip(there, rows, strict=True)}
            line.advance(doing=f"resampling rows: {name}")

    def mean_of(method: str, sets: Sequence[str], networks: Sequence[int]) -> FloatArray:
        mean: FloatArray = np.mean([drawn[method, one, network] for one in sets for network in networks], axis=0)
        return mean

    block = board.block
    intervals = {method: _ends(mean_of(method, block.ood_sets, block.seeds), level) for method in block.methods}
    subject = board.subject or ""
    comparisons = []
    for (name, rival), pair in comparable(board).items():
        differences = mean_of(subject, pair.ood_sets, pair.networks) - mean_of(rival, pair.ood_sets, pair.networks)
        low, high = _ends(differences, level)
        wins = float(np.mean(differences[np.isfinite(differences)] > 0))
        won = sum(a > b for a, b in zip(pair.ours, pair.theirs, strict=True))
        both = fmean(pair.ours), fmean(pair.theirs)
        comparisons.append(Comparison(name, rival, *both, low, high, wins, won, len(pair.networks)))
    return Resampled(board.subject, resamples, level, comparisons, intervals)


def _ends(values: FloatArray, level: float) -> tuple[float, float]:
    """The quantiles; a resample that leaves a class empty does not count."""
    low, high = np.quantile(values[np.isfinite(values)], [(1 - level) / 2, (1 + level) / 2]).tolist()
    return low, high


class Pair(NamedTuple):
    """What the subject and a rival are compared on: AUROC of both with each network, means over the OoD sets."""

    ood_sets: tuple[str, ...]
    networks: tuple[int, ...]
    ours: tuple[float, ...]
    theirs: tuple[float, ...]


def comparable(board: Scoreboard) -> dict[tuple[str, str], Pair]:
    """Every comparison that the cells allow, by OoD set (or ``ALL_SETS``) and rival; those of all sets come first."""
    subject, block = board.subject, board.block
    if subject is None:
        return {}
    rivals = [name for name in board.methods if name != subject]
    shared: dict[tuple[str, str], tuple[Sequence[str], Sequence[int]]] = {}
    if subject in block.methods and len(block.ood_sets) > 1:
        shared |= {(ALL_SETS, rival): (block.ood_sets, block.seeds) for rival in rivals if rival in block.methods}
    for name in board.ood_sets:
        ours = board.seeds_of(subject, name)
        for rival in rivals:
            both = [network for network in ours if network in board.seeds_of(rival, name)]
            shared |= {(name, rival): ([name], both)} if both else {}

    def auroc(method: str, sets: Sequence[str], networks: Sequence[int]) -> tuple[float, ...]:
        return tuple(fmean(board.value("auroc", method, one, network) for one in sets) for network in networks)

    return {
        (name, rival): Pair(tuple(sets), tuple(networks), auroc(subject, sets, networks), auroc(rival, sets, networks))
        for (name, rival), (sets, networks) in shared.items()
    }
