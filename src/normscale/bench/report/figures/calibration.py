"""Reliability diagrams at several temperatures, and calibration error (ECE) against temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from normscale._validate import IntArray, Rows
from normscale.bench.report.figures.style import CLASS_COLOURS, GRID, INK, INSIDE, OUTSIDE, new_figure, one_axes
from normscale.metrics.calibration import reliability
from normscale.metrics.temperature import EceCurve
from normscale.scores import confidence, msp_score

TEMPERATURES = np.geomspace(0.05, 20.0, 105)
"""For the curve; 1 is among them."""
BINS = 15


def draw_reliability(logits: Rows, labels: IntArray, temperatures: Sequence[float], title: str) -> Figure:
    """Draw the accuracy in every bin of confidence, a diagram for each temperature."""
    figure = new_figure(4.4, 4.3)
    grid = figure.subplots(2, -(-len(temperatures) // 2), sharex=True, sharey=True, squeeze=False)
    correct = np.argmax(logits, axis=1) == labels
    for axes, temperature in zip(grid.flat, temperatures, strict=False):
        found = reliability(confidence(msp_score(logits, temperature)), correct, BINS)
        axes.bar(
            found.edges[:-1], np.nan_to_num(found.accuracy), 1 / BINS, align="edge",
            color=INSIDE, alpha=0.75, edgecolor=INSIDE, linewidth=0.5,
        )  # fmt: skip
        axes.plot([0, 1], [0, 1], color=GRID, linewidth=1.2, linestyle="--")
        axes.set_title(f"T = {temperature:g}: ECE {found.ece:.3f}", fontsize=8.5)
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
