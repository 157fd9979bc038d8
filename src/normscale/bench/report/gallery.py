"""Which figures a run's report has: per OoD set, of calibration and training, and the stress map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from normscale._validate import IntArray, Rows
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.scored_pair import ScoredPair, score_shuffled
from normscale.bench.experiments.stress_result import StressResult
from normscale.bench.report.figures.calibration import BINS, TEMPERATURES, at_one, draw_ece, draw_reliability
from normscale.bench.report.figures.confidences import draw_confidences
from normscale.bench.report.figures.curves import draw_precision_recall, draw_roc
from normscale.bench.report.figures.densities import draw_densities
from normscale.bench.report.figures.score_histograms import draw_scores
from normscale.bench.report.figures.style import styled
from normscale.bench.report.figures.training import draw_training
from normscale.bench.report.scoreboard import Scoreboard
from normscale.bench.report.stress_map import draw_stress
from normscale.metrics.temperature import EceCurve, ece_curve
from normscale.moments import RunningMoments
from normscale.outputs import LOGITS
from normscale.scaling import norm_scale, norm_scale_stream
from normscale.scores import msp_score

CALIBRATION, TRAINING, STRESS = "calibration", "training", "stress"


class Drawn(NamedTuple):
    """A figure, what to call its file, what it shows, and where it belongs."""

    name: str
    caption: str
    figure: Figure
    group: str
    """``calibration``, ``training``, ``stress``, or :func:`group_of` an OoD set."""


_SHOWN_AT = ((0.5, 1.0, 2.0, 4.0), (0.25, 0.5, 1.0, 2.0))
"""Temperatures of reliability diagrams: of raw logits, and of norm-scaled ones."""
_MOST_METHODS = 12
"""In the figures of one OoD set: the best of them by AUROC."""


def n_figures(board: Scoreboard, stress: StressResult | None) -> int:
    """About how many figures there will be."""
    return 5 * len(board.ood_sets) + 3 + 1 + (stress is not None)


def group_of(ood_set: str) -> str:
    """Where the figures of an OoD set belong."""
    return f"ood:{ood_set}"


def draw_all(
    run: RunFolder, board: Scoreboard, stress: StressResult | None, classes: Sequence[int] = ()
) -> Iterator[Drawn]:
    """Draw every figure for which the numbers are there; networks are shown by the first finished seed.

    ``classes`` are those of the densities of logits.
    """
    for name, slug in slugs(board.ood_sets).items():
        with styled():
            yield from _of_set(run, board, name, slug, classes)
    with styled():
        yield from _calibration(run, board.seeds[0])
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


def _of_set(run: RunFolder, board: Scoreboard, name: str, slug: str, classes: Sequence[int]) -> Iterator[Drawn]:
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
    if not all(run.has_outputs(seed, one, [LOGITS]) for one in ("test", name)):
        return
    test, ood = (run.outputs(seed, one).only(LOGITS) for one in ("test", name))
    which = "these classes" if classes else "three classes (those with the lowest, middle and highest mean)"
    caption = (
        f"Largest logit of the inputs predicted as one of {which}, and of {name}: density (line) and histogram "
        f"(steps){network}."
    )
    yield Drawn(f"density_{slug}", caption, draw_densities(test, ood, name, classes), group)
    panels = {"raw logits": ScoredPair(msp_score(test.logits), msp_score(ood.logits))}
    if (training := _training_moments(run, seed)) is not None:
        first = training.reweighted(1.0)  # the training statistics count as one row, as in the paper
        panels["norm-scaled logits"] = score_shuffled(
            test.logits, ood.logits, lambda rows: msp_score(norm_scale_stream(rows, first)), seed
        )
    caption = f"Softmax confidence on {name}{network}."
    if len(panels) > 1:
        caption = f"Softmax confidence on {name} without and with norm-scaling, which runs along the stream{network}."
    yield Drawn(f"confidence_{slug}", caption, draw_confidences(panels, name), group)


def _training_moments(run: RunFolder, seed: int) -> RunningMoments | None:
    """Of the training logits of a network; None where they are not there."""
    if not run.has_outputs(seed, "train", [LOGITS]):
        return None
    logits = run.outputs(seed, "train").logits
    return RunningMoments(logits.shape[1]).update(logits)


def labelled_logits(run: RunFolder, seed: int) -> tuple[IntArray, dict[str, Rows]] | None:
    """Labels of the test set and its logits, as they are and norm-scaled; None without labels or outputs."""
    test = run.outputs(seed, "test") if run.has_outputs(seed, "test", [LOGITS]) else None
    if test is None or test.labels is None or not (test.labels >= 0).any():
        return None
    test = test[test.labels >= 0]
    kinds: dict[str, Rows] = {"temperature scaling": test.logits}
    if (training := _training_moments(run, seed)) is not None:
        kinds["norm-scaling"] = norm_scale(test.logits, training)
    return np.asarray(test.labels), kinds


def ece_curves(run: RunFolder, seed: int) -> dict[str, EceCurve]:
    """Calibration error against temperature by kind of logits; empty without labels."""
    found = labelled_logits(run, seed)
    if found is None:
        return {}
    labels, kinds = found
    return {kind: ece_curve(logits, labels, TEMPERATURES, BINS) for kind, logits in kinds.items()}


def draw_joint_ece(runs: Mapping[str, tuple[RunFolder, int]]) -> Iterator[Drawn]:
    """Calibration error against temperature of several runs in one plot, by title, a network of each."""
    curves = {title: found for title, (run, seed) in runs.items() if (found := ece_curves(run, seed))}
    if len(curves) > 1:
        caption = (
            f"Expected calibration error against temperature ({BINS} bins) on every in-distribution set, one network "
            "of each. Dashed: raw logits (temperature scaling); solid: norm-scaled logits."
        )
        with styled():
            yield Drawn("ece", caption, draw_ece(curves, "Calibration error against temperature"), CALIBRATION)


def _calibration(run: RunFolder, seed: int) -> Iterator[Drawn]:
    found, curves, network = labelled_logits(run, seed), ece_curves(run, seed), network_of(run, seed)
    if found is None:
        return
    words = [
        f"{kind} {curve.best_ece:.3f} at {curve.best_temperature:.2g} and {at_one(curve):.3f} at 1"
        for kind, curve in curves.items()
    ]
    caption = f"Expected calibration error against temperature ({BINS} bins): {'; '.join(words)}{network}."
    title = f"Calibration error against temperature, {run.plan.in_set}"
    yield Drawn("ece", caption, draw_ece({run.plan.in_set: curves}, title), CALIBRATION)
    labels, kinds = found
    for name, title, logits, temperatures in zip(
        ("reliability", "reliability_scaled"), ("Raw logits", "Norm-scaled logits"), kinds.values(), _SHOWN_AT,
        strict=False,
    ):  # fmt: skip
        caption = f"{title}: accuracy by softmax confidence at four temperatures; dashed: perfect{network}."
        yield Drawn(name, caption, draw_reliability(logits, labels, temperatures, title), CALIBRATION)


def _training(run: RunFolder) -> Iterator[Drawn]:
    logs = {seed: run.training(seed).get("log") for seed in run.plan.seeds}
    known = {seed: log for seed, log in logs.items() if log}
    if known:
        caption = f"Accuracy on the validation part after every epoch of training on {run.plan.in_set}."
        yield Drawn("training", caption, draw_training(known, run.plan.in_set), TRAINING)
