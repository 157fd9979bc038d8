"""ROC curves, how networks learned, reliability diagrams, and calibration error (ECE) against temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from normscale._validate import FloatArray, IntArray, Rows
from normscale.bench.experiments.measurement import ScoredPair
from normscale.bench.experiments.methods import title_of
from normscale.bench.report.figures.style import CLASS_COLOURS, GRID, INK, INSIDE, OUTSIDE, looks, new_figure, one_axes
from normscale.metrics.calibration import reliability
from normscale.metrics.ranking import evaluate, roc_curve
from normscale.metrics.temperature import EceCurve
from normscale.scores import confidence, msp_score


def draw_roc(pairs: Mapping[str, ScoredPair], ood_set: str, subject: str | None = None) -> Figure:
    """Draw true against false positive rate, OoD positive, with the AUROC of every method."""
    figure, axes = one_axes(f"ROC, {ood_set}")
    axes.plot([0, 1], [0, 1], color=GRID, linewidth=0.9, linestyle=":")
    look = looks(pairs, subject)
    aurocs = {method: evaluate(pair.id_scores, pair.ood_scores).auroc for method, pair in pairs.items()}
    for method in sorted(pairs, key=lambda method: -aurocs[method]):
        curve = roc_curve(pairs[method].id_scores, pairs[method].ood_scores)
        (line,) = axes.plot(*thinned(curve.fpr, curve.tpr), color=look[method].colour, linewidth=look[method].width)
        line.set_label(f"{aurocs[method]:.3f} {title_of(method)}")
        if look[method].dashes:
            line.set_dashes(look[method].dashes)
    axes.set_xlabel("in-distribution inputs flagged")
    axes.set_ylabel("OoD inputs caught")
    axes.legend(loc="lower right", title="AUROC", title_fontsize=7.5)
    return figure


def thinned(x: FloatArray, y: FloatArray, points: int = 160) -> tuple[FloatArray, FloatArray]:
    """Fewer points of a curve, evenly along its length, both ends kept; a short curve stays as it is."""
    if len(x) <= points:
        return x, y
    length = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    places = np.searchsorted(length, np.linspace(0.0, length[-1], points))
    chosen = np.unique(np.concatenate([[0], places, [len(x) - 1]]).clip(max=len(x) - 1))
    return x[chosen], y[chosen]


def draw_training(logs: Mapping[int, Sequence[Mapping[str, Any]]], in_set: str) -> Figure:
    """Draw the accuracy on the validation part after every epoch, a line for every seed."""
    figure, axes = one_axes(f"Validation accuracy while training on {in_set}", height=2.9)
    for (seed, log), colour in zip(logs.items(), cycle(CLASS_COLOURS), strict=False):
        epochs, values = [line["epoch"] for line in log], [line["validation_accuracy"] for line in log]
        axes.plot(epochs, values, marker="o", markersize=3, color=colour, label=f"seed {seed}")
    axes.set_xlabel("epoch")
    axes.set_ylabel("accuracy")
    axes.legend(loc="lower right")
    return figure


TEMPERATURES = np.geomspace(0.05, 20.0, 105)
"""For the curve; 1 is among them."""
BINS = 15


def draw_reliability(logits: Rows, labels: IntArray, temperatures: Sequence[float], title: str) -> Figure:
    """Draw the accuracy in every bin of confidence, a diagram for each temperature."""
    figure = new_figure(4.4, 4.3)
    grid = figure.subplots(2, -(-len(temperatures) // 2), sharex=True, sharey=True, squeeze=False)
    correct = np.argmax(logits, axis=1) == labels
    for axes, temperature in zip(grid.flat, temperatures, strict=False):
        bins = reliability(confidence(msp_score(logits, temperature)), correct, BINS)
        axes.bar(
            bins.edges[:-1], np.nan_to_num(bins.accuracy), 1 / BINS, align="edge",
            color=INSIDE, alpha=0.75, edgecolor=INSIDE, linewidth=0.5,
        )  # fmt: skip
        axes.plot([0, 1], [0, 1], color=GRID, linewidth=1.2, linestyle="--")
        axes.set_title(f"T = {temperature:g}: ECE {bins.ece:.3f}", fontsize=8.5)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
    figure.supxlabel("confidence", fontsize=9)
    figure.supylabel("accuracy", fontsize=9)
    figure.suptitle(title, fontsize=10)
    return figure


def draw_ece(curves: Mapping[str, Mapping[str, EceCurve]], title: str) -> Figure:
    """Draw ECE against temperature, minima marked: a colour for every data set, a line for every kind of logits."""
    several = len(curves) > 1
    figure, axes = one_axes(title, height=3.4 + 0.36 * len(curves) if several else 3.3)
    axes.axvline(1.0, color=GRID, linewidth=1.0, linestyle=":")
    for number, (name, kinds) in enumerate(curves.items()):
        for place, (kind, curve) in enumerate(kinds.items()):
            colour = CLASS_COLOURS[number % len(CLASS_COLOURS)] if several else (INSIDE, OUTSIDE)[place % 2]
            label = f"{f'{name}, ' if several else ''}{kind}: {curve.best_ece:.3f} at {curve.best_temperature:.2g}"
            style = "--" if place == 0 else "-"
            axes.plot(curve.temperatures, curve.ece, color=colour, linestyle=style, linewidth=1.6, label=label)
            axes.plot([curve.best_temperature], [curve.best_ece], "o", color=colour, markersize=6, markeredgecolor=INK)
    axes.set_xscale("log")
    axes.set_xlabel("temperature")
    axes.set_ylabel("expected calibration error")
    highest = max(curve.ece.max() for kinds in curves.values() for curve in kinds.values())
    axes.set_ylim(0, (1.05 if several else 1.35) * highest)
    axes.set_xticks([0.1, 0.3, 1.0, 3.0, 10.0], ["0.1", "0.3", "1", "3", "10"])
    axes.set_xticks([], minor=True)
    if several:
        figure.legend(loc="outside lower center", title="smallest error", title_fontsize=7.5)
    else:
        axes.legend(loc="upper left", title="smallest error", title_fontsize=7.5)
    return figure
