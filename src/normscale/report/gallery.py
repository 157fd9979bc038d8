"""Which figures a run's report has: per OoD set, of calibration, of training, and the stress map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from normscale.detectors.norm_scaling import NormScaling
from normscale.experiments.protocol import ScoredPair
from normscale.experiments.run_folder import RunFolder
from normscale.experiments.stress_result import StressResult
from normscale.metrics.temperature import ece_curve
from normscale.report.figures.calibration import BINS, TEMPERATURES, at_one, draw_ece, draw_reliability
from normscale.report.figures.confidences import draw_confidences
from normscale.report.figures.curves import draw_precision_recall, draw_roc
from normscale.report.figures.densities import draw_densities
from normscale.report.figures.score_histograms import draw_scores
from normscale.report.figures.style import styled
from normscale.report.figures.training import draw_training
from normscale.report.scoreboard import Scoreboard
from normscale.report.stress_map import draw_stress

CALIBRATION, TRAINING, STRESS = "calibration", "training", "stress"
_RAW_TEMPERATURES = (0.5, 1.0, 2.0, 4.0)
_SCALED_TEMPERATURES = (0.25, 0.5, 1.0, 2.0)


class Drawn(NamedTuple):
    """A figure, what to call its file, what it shows, and where it belongs."""

    name: str
    caption: str
    figure: Figure
    group: str
    """``calibration``, ``training``, ``stress``, or ``ood:`` and the name of an OoD set."""


def n_figures(run: RunFolder, board: Scoreboard, stress: StressResult | None) -> int:
    """At most how many figures there will be."""
    return 5 * len(board.ood_sets) + 3 + 1 + (stress is not None)


def draw_all(run: RunFolder, board: Scoreboard, stress: StressResult | None) -> Iterator[Drawn]:
    """Draw every figure for which the numbers are there; networks are shown by the first finished seed."""
    for name, slug in _slugs(board.ood_sets).items():
        with styled():
            yield from _of_set(run, board, name, slug)
    with styled():
        yield from _calibration(run, board.seeds[0])
        yield from _training(run)
    if stress is not None and stress.cells():
        caption = (
            "Left, what running statistics gain (blue) or lose (red) in AUROC against frozen ones; right, what AUROC "
            "they reach. A row for every class balance and order of the stream, a column for every share of OoD rows."
        )
        yield Drawn("stress_map", caption, draw_stress(stress), STRESS)


def _slugs(names: Sequence[str]) -> dict[str, str]:
    """Names that are safe in file names, each once."""
    slugs: dict[str, str] = {}
    for number, name in enumerate(names):
        slug = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
        slugs[name] = slug if slug and slug not in slugs.values() else f"{slug or 'set'}-{number}"
    return slugs


def _of_set(run: RunFolder, board: Scoreboard, name: str, slug: str) -> Iterator[Drawn]:
    seed = next(seed for seed in board.seeds if any((method, name, seed) in board.cells for method in board.methods))
    there = [method for method in board.methods if (method, name, seed) in board.cells]
    loaded = {method: run.load_cell(seed, name, method) for method in there}
    pairs: dict[str, ScoredPair] = {method: pair for method, (_, pair) in loaded.items() if pair.id_predicted is None}
    group, network = f"ood:{name}", f"network of seed {seed}"
    if pairs:
        yield Drawn(f"roc_{slug}", f"ROC curves on {name}; {network}.", draw_roc(pairs, name), group)
        caption = f"Precision and recall on {name}, OoD positive; {network}. Dotted: the share of OoD inputs."
        yield Drawn(f"precision_recall_{slug}", caption, draw_precision_recall(pairs, name), group)
        caption = f"Scores of every method on {name}, each on a scale of its own; {network}."
        yield Drawn(f"scores_{slug}", caption, draw_scores(pairs, name), group)
    plain, scaled = loaded.get("msp"), loaded.get("norm_scaling")
    if plain and scaled and scaled[0].parameters.get("score", "msp") == "msp":
        caption = f"Softmax confidence on {name} without and with norm-scaling; {network}."
        yield Drawn(f"confidence_{slug}", caption, draw_confidences(plain[1][:2], scaled[1][:2], name), group)
    if run.outputs_path(seed, "test").exists() and run.outputs_path(seed, name).exists():
        caption = (
            f"Largest logit of the inputs predicted as one of three classes (those with the lowest, middle and highest "
            f"mean), and of {name}: density (line) and histogram (steps); {network}."
        )
        figure = draw_densities(run.outputs(seed, "test"), run.outputs(seed, name), name)
        yield Drawn(f"density_{slug}", caption, figure, group)


def _calibration(run: RunFolder, seed: int) -> Iterator[Drawn]:
    if not (run.outputs_path(seed, "train").exists() and run.outputs_path(seed, "test").exists()):
        return
    test = run.outputs(seed, "test")
    if test.labels is None or not (test.labels >= 0).any():
        return
    test = test[test.labels >= 0]
    labels = np.asarray(test.labels)
    scaled = NormScaling().fit(run.outputs(seed, "train")).scale(test.logits)
    raw_curve, scaled_curve = (ece_curve(logits, labels, TEMPERATURES, BINS) for logits in (test.logits, scaled))
    words = [
        f"{name} {curve.best_ece:.3f} at {curve.best_temperature:.2g} and {at_one(curve):.3f} at 1"
        for name, curve in (("raw logits", raw_curve), ("norm-scaled logits", scaled_curve))
    ]
    network = f"network of seed {seed}, statistics of its training set"
    caption = f"Expected calibration error against temperature ({BINS} bins): {'; '.join(words)}; {network}."
    yield Drawn("ece", caption, draw_ece(raw_curve, scaled_curve, run.plan.in_set), CALIBRATION)
    caption = f"Reliability of the softmax of raw logits at four temperatures; dashed: perfect. Network of seed {seed}."
    figure = draw_reliability(test.logits, labels, _RAW_TEMPERATURES, "Raw logits")
    yield Drawn("reliability", caption, figure, CALIBRATION)
    caption = f"The same of norm-scaled logits; {network}."
    figure = draw_reliability(scaled, labels, _SCALED_TEMPERATURES, "Norm-scaled logits")
    yield Drawn("reliability_scaled", caption, figure, CALIBRATION)


def _training(run: RunFolder) -> Iterator[Drawn]:
    logs = {seed: run.training(seed).get("log") for seed in run.plan.seeds}
    known = {seed: log for seed, log in logs.items() if log}
    if known:
        caption = f"Accuracy on the validation part after every epoch of training on {run.plan.in_set}."
        yield Drawn("training", caption, draw_training(known, run.plan.in_set), TRAINING)
