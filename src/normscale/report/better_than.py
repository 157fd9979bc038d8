"""Is one method, the subject of the report, better than its rivals? A paired bootstrap, with a verdict in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.experiments.methods import title_of
from normscale.experiments.run_folder import RunFolder
from normscale.metrics.paired import resampled_auroc
from normscale.report.scoreboard import Scoreboard
from normscale.report.table import Column, ReportTable, Row, Section

ALL_SETS = "Mean of all OoD sets"
LEVEL = 0.95

BETTER, WORSE = "better", "worse"
BETTER_NOT_ALL, WORSE_NOT_ALL = "better on average, not with every network", "worse on average, not with every network"
NO_DIFFERENCE = "no difference shown"


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
    def difference(self) -> float:
        """AUROC of the subject minus the rival's."""
        return self.auroc - self.rival_auroc

    @property
    def verdict(self) -> str:
        """In words: a side is better if the interval leaves 0 out and every network agrees."""
        if self.low > 0:
            return BETTER if self.networks_won == self.n_networks else BETTER_NOT_ALL
        if self.high < 0:
            return WORSE if self.networks_won == 0 else WORSE_NOT_ALL
        return NO_DIFFERENCE


def compare_all(
    run: RunFolder,
    board: Scoreboard,
    *,
    resamples: int = 1000,
    level: float = LEVEL,
    seed: int = 0,
    tick: Callable[[str], None] = lambda _: None,
) -> list[Comparison]:
    """Compare the board's subject with every other method on all sets of the block together, and on every OoD set.

    The rows of a resample are the same for both methods and for all networks, and the in-distribution rows also for
    all OoD sets. What is resampled is the mean over networks, so the interval speaks of these networks on other
    inputs, not of other networks; how many of the networks agree is counted beside it.

    Parameters
    ----------
    run, board : RunFolder, Scoreboard
    resamples, level, seed : int, float, int
        As in :func:`normscale.metrics.paired.paired_bootstrap`.
    tick : callable
        Told the OoD set after each (set, network) pair.
    """
    drawn: dict[tuple[str, str], dict[int, FloatArray]] = {}
    wanted = comparable(board)
    subject = board.subject or ""
    for name in dict.fromkeys(name for name, _ in wanted if name != ALL_SETS):
        rivals = {rival: pair.networks for (one, rival), pair in wanted.items() if one == name}
        for network in board.seeds_of(subject, name):
            there = [subject, *(rival for rival, networks in rivals.items() if network in networks)]
            pairs = [run.load_cell(network, name, method)[1] for method in there]
            rows = dict(zip(there, resampled_auroc(pairs, resamples, seed), strict=True))
            for rival in there[1:]:
                drawn.setdefault((name, rival), {})[network] = rows[subject] - rows[rival]
            tick(name)
    return [
        _comparison(
            name,
            rival,
            pair,
            [np.mean([drawn[one, rival][network] for one in pair.ood_sets], axis=0) for network in pair.networks],
            level,
        )
        for (name, rival), pair in wanted.items()
    ]


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
    wanted: dict[tuple[str, str], tuple[Sequence[str], Sequence[int]]] = {}
    if subject in block.methods and len(block.ood_sets) > 1:
        wanted |= {(ALL_SETS, rival): (block.ood_sets, block.seeds) for rival in rivals if rival in block.methods}
    for name in board.ood_sets:
        ours = board.seeds_of(subject, name)
        for rival in rivals:
            both = [network for network in ours if network in board.seeds_of(rival, name)]
            wanted |= {(name, rival): ([name], both)} if both else {}

    def auroc(method: str, sets: Sequence[str], networks: Sequence[int]) -> tuple[float, ...]:
        return tuple(fmean(board.value("auroc", method, one, network) for one in sets) for network in networks)

    return {
        (name, rival): Pair(tuple(sets), tuple(networks), auroc(subject, sets, networks), auroc(rival, sets, networks))
        for (name, rival), (sets, networks) in wanted.items()
    }


def _comparison(name: str, rival: str, pair: Pair, drawn: Sequence[FloatArray], level: float) -> Comparison:
    differences = np.mean(drawn, axis=0)
    differences = differences[np.isfinite(differences)]  # a resample may leave a class empty
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Comparison(
        name,
        rival,
        fmean(pair.ours),
        fmean(pair.theirs),
        low,
        high,
        wins=float(np.mean(differences > 0)),
        networks_won=sum(a > b for a, b in zip(pair.ours, pair.theirs, strict=True)),
        n_networks=len(pair.networks),
    )


def better_than_table(
    comparisons: Sequence[Comparison], board: Scoreboard, *, resamples: int = 1000, level: float = LEVEL
) -> ReportTable | None:
    """The comparisons as a table; None if there are none."""
    if not comparisons or board.subject is None:
        return None
    subject = title_of(board.subject)
    sections: dict[str, list[Row]] = {}
    networks = any(one.n_networks > 1 for one in comparisons)
    for one in comparisons:
        sections.setdefault(one.ood_set, []).append(comparison_row(one, networks=networks))
    notes = comparison_notes([method for method in board.methods if method in board.per_class], networks=networks)
    notes.insert(0, bootstrap_note(resamples, level))
    made = [Section(name, rows) for name, rows in sections.items()]
    columns = comparison_columns(subject, networks=networks)
    return ReportTable("better_than", f"Is {subject} better?", columns, made, notes, section_column="OoD set")


def comparison_columns(subject: str, *, networks: bool = True) -> list[Column]:
    """The columns of a table of comparisons; ``subject`` is a title, ``networks`` says that there are several."""
    return [
        Column("Against"),
        Column(subject, "value"),
        Column("Rival", "value"),
        Column("Difference", "difference", (1, 2)),
        Column("from", "difference"),
        Column("to", "difference"),
        Column("Resamples won", "percent"),
        *([Column("Networks won")] if networks else []),
        Column(f"{subject} is"),
    ]


def comparison_row(one: Comparison, *, networks: bool = True) -> Row:
    """A comparison as a row of these columns."""
    numbers = (one.auroc, one.rival_auroc, one.difference, one.low, one.high, one.wins)
    won = (f"{one.networks_won} of {one.n_networks}",) if networks else ()
    return (title_of(one.rival), *numbers, *won, one.verdict)


def bootstrap_note(resamples: int, level: float) -> str:
    """What the interval of a comparison is."""
    return (
        f"AUROC. From, to: the {100 * level:g} % interval of the difference from {resamples:,} resamples of the test "
        "rows, the same rows for both methods and all networks (paired bootstrap)."
    )


def comparison_notes(per_class: Sequence[str], *, networks: bool = True) -> list[str]:
    """How comparisons must be read; ``per_class`` names the methods that are means over classes."""
    scope = (
        "The difference is the mean over networks. Only rows are resampled, so the interval speaks of these networks "
        "on other inputs; how many networks agree is counted beside it."
        if networks
        else "Only rows are resampled, so the interval speaks of this network on other inputs."
    )
    agreed = " and every network agrees" if networks else ""
    return [
        f"{scope} Scores are taken as they are: another order of the stream is not part of the interval.",
        f'"{BETTER.capitalize()}" or "{WORSE}": the interval leaves 0 out{agreed}.',
        *(
            f"{title_of(method)} is a mean over predicted classes and no single ranking; read its rows with care."
            for method in per_class
        ),
        "Many comparisons are made at once: about one in twenty would leave 0 out by chance.",
    ]
