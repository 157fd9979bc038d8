"""Which figures a run's report has: per OoD set, of training, the stress map, and what others add."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.scored_pair import ScoredPair
from normscale.bench.experiments.stress_result import StressResult
from normscale.bench.report.figures.curves import draw_precision_recall, draw_roc
from normscale.bench.report.figures.densities import draw_densities
from normscale.bench.report.figures.score_histograms import draw_scores
from normscale.bench.report.figures.style import styled
from normscale.bench.report.figures.training import draw_training
from normscale.bench.report.scoreboard import Scoreboard
from normscale.bench.report.stress_map import draw_stress
from normscale.outputs import LOGITS

CALIBRATION, TRAINING, STRESS = "calibration", "training", "stress"


class Drawn(NamedTuple):
    """A figure, what to call its file, what it shows, and where it belongs."""

    name: str
    caption: str
    figure: Figure
    group: str
    """``calibration``, ``training``, ``stress``, or :func:`group_of` an OoD set."""


_MOST_METHODS = 12
"""In the figures of one OoD set: the best of them by AUROC."""


def n_figures(board: Scoreboard, stress: StressResult | None) -> int:
    """About how many figures there will be."""
    return 5 * len(board.ood_sets) + 3 + 1 + (stress is not None)


def group_of(ood_set: str) -> str:
    """Where the figures of an OoD set belong."""
    return f"ood:{ood_set}"


def draw_all(
    run: RunFolder,
    board: Scoreboard,
    stress: StressResult | None,
    further: Callable[[RunFolder, Scoreboard], Iterator[Drawn]],
) -> Iterator[Drawn]:
    """Draw every figure for which the numbers are there; networks are shown by the first finished seed."""
    for name, slug in slugs(board.ood_sets).items():
        with styled():
            yield from _of_set(run, board, name, slug)
    with styled():
        yield from further(run, board)
        yield from _training(run)
    if stress is not None and stress.means():
        caption = (
            "Left, what running statistics gain (blue) or lose (red) in AUROC against frozen ones; right, what AUROC "
            "they reach. A row for every class balance and order of the stream, a column for every share of OoD rows."
        )
        with styled():
            yield Drawn("stress_map", caption, draw_stress(stress), STRESS)


def slugs(names: Sequence[str]) -> dict[str, str]:
    """Names that are safe in file names, each once."""
    found: dict[str, str] = {}
    for number, name in enumerate(names):
        slug = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
        found[name] = slug if slug and slug not in found.values() else f"{slug or 'set'}-{number}"
    return found


def first_seed(board: Scoreboard, ood_set: str) -> int:
    """The first network with a finished cell on an OoD set."""
    return next(seed for seed in board.seeds if any((one, ood_set, seed) in board.cells for one in board.methods))


def network_of(run: RunFolder, seed: int) -> str:
    """Which network a picture is of, as the end of its caption; nothing where the outputs are somebody's own."""
    return f"; network of seed {seed}" if run.plan.network else ""


def _of_set(run: RunFolder, board: Scoreboard, name: str, slug: str) -> Iterator[Drawn]:
    seed = first_seed(board, name)
    there = [method for method in board.methods if (method, name, seed) in board.cells]
    n_all = len(there)
    if n_all > _MOST_METHODS:  # a page has room for so many curves; the tables have all
        best = sorted(there, key=lambda method: -board.cells[method, name, seed].auroc)[:_MOST_METHODS]
        there = [method for method in there if method in best]
    loaded = {method: run.load_cell(seed, name, method) for method in there}
    pairs: dict[str, ScoredPair] = {method: pair for method, (_, pair) in loaded.items() if pair.id_predicted is None}
    group, network = group_of(name), network_of(run, seed)
    whose = "every method" if len(there) == n_all else f"the {len(pairs)} best of {n_all} methods by AUROC"
    if pairs:
        caption = f"ROC curves of {whose} on {name}{network}."
        yield Drawn(f"roc_{slug}", caption, draw_roc(pairs, name, board.subject), group)
        caption = f"Precision and recall of {whose} on {name}, OoD positive{network}. Dotted: the share of OoD inputs."
        yield Drawn(f"precision_recall_{slug}", caption, draw_precision_recall(pairs, name, board.subject), group)
        caption = f"Scores of {whose} on {name}, each on a scale of its own{network}."
        yield Drawn(f"scores_{slug}", caption, draw_scores(pairs, name), group)
    if all(run.has_outputs(seed, one, [LOGITS]) for one in ("test", name)):
        caption = (
            f"Largest logit of the inputs predicted as one of three classes (those with the lowest, middle and highest "
            f"mean), and of {name}: density (line) and histogram (steps){network}."
        )
        figure = draw_densities(run.outputs(seed, "test"), run.outputs(seed, name), name)
        yield Drawn(f"density_{slug}", caption, figure, group)


def _training(run: RunFolder) -> Iterator[Drawn]:
    logs = {seed: run.training(seed).get("log") for seed in run.plan.seeds}
    known = {seed: log for seed, log in logs.items() if log}
    if known:
        caption = f"Accuracy on the validation part after every epoch of training on {run.plan.in_set}."
        yield Drawn("training", caption, draw_training(known, run.plan.in_set), TRAINING)
