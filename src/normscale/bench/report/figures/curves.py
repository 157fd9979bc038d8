"""ROC and precision-recall curves of every method on one OoD set; how networks learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscale._validate import FloatArray
from normscale.bench.experiments.methods import title_of
from normscale.bench.experiments.scored_pair import ScoredPair
from normscale.bench.report.figures.style import CLASS_COLOURS, GRID, looks, one_axes
from normscale.metrics.ranking import evaluate, precision_recall_curve, roc_curve


def draw_roc(pairs: Mapping[str, ScoredPair], ood_set: str, subject: str | None = None) -> Figure:
    """Draw true against false positive rate, OoD positive, with the AUROC of every method."""
    figure, axes = one_axes(f"ROC, {ood_set}")
    axes.plot([0, 1], [0, 1], color=GRID, linewidth=0.9, linestyle=":")
    curves = {}
    for method, pair in pairs.items():
        curve = roc_curve(pair.id_scores, pair.ood_scores)
        curves[method] = evaluate(pair.id_scores, pair.ood_scores).auroc, curve.fpr, curve.tpr
    _lines(axes, curves, subject)
    axes.set_xlabel("in-distribution inputs flagged")
    axes.set_ylabel("OoD inputs caught")
    axes.legend(loc="lower right", title="AUROC", title_fontsize=7.5)
    return figure


def draw_precision_recall(pairs: Mapping[str, ScoredPair], ood_set: str, subject: str | None = None) -> Figure:
    """Draw precision against recall, OoD positive, with the AUPR of every method."""
    figure, axes = one_axes(f"Precision and recall, {ood_set}", height=3.9)
    curves = {}
    for method, pair in pairs.items():
        curve = precision_recall_curve(pair.id_scores, pair.ood_scores)
        curves[method] = curve.average_precision, curve.recall, curve.precision
        share = len(pair.ood_scores) / (len(pair.ood_scores) + len(pair.id_scores))
    _lines(axes, curves, subject)
    axes.axhline(share, color=GRID, linewidth=0.9, linestyle=":")
    axes.set_xlabel("recall: OoD inputs caught")
    axes.set_ylabel("precision: flagged inputs that are OoD")
    axes.set_ylim(min(0.5, share) - 0.02, 1.02)
    axes.set_xlim(0, 1)
    figure.legend(loc="outside lower center", ncols=2, title="AUPR, OoD positive", title_fontsize=7.5)
    return figure


def _lines(axes: Axes, curves: Mapping[str, tuple[float, FloatArray, FloatArray]], subject: str | None) -> None:
    """A line for every method with its number, the best first."""
    look = looks(curves, subject)
    for method, (number, x, y) in sorted(curves.items(), key=lambda item: -item[1][0]):
        (line,) = axes.plot(*thinned(x, y), color=look[method].colour, linewidth=look[method].width)
        line.set_label(f"{number:.3f} {title_of(method)}")
        if look[method].dashes:
            line.set_dashes(look[method].dashes)


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
