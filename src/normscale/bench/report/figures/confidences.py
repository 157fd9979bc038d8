"""Histograms of the softmax confidence before and after something was done to the logits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from normscale.bench.experiments.scored_pair import ScoredPair
from normscale.bench.report.figures.style import INSIDE, OUTSIDE, draw_steps, new_figure
from normscale.scores import confidence

BINS = 25


def draw_confidences(panels: Mapping[str, ScoredPair], ood_set: str) -> Figure:
    """Draw histograms of the maximum softmax probability above each other, by title, from log-odds scores."""
    figure = new_figure(4.4, 0.8 + 1.4 * len(panels))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    edges = np.linspace(0.0, 1.0, BINS + 1)
    for axes, (title, pair) in zip(grid.flat, panels.items(), strict=True):
        for scores, colour, name in ((pair.id_scores, INSIDE, "in-distribution"), (pair.ood_scores, OUTSIDE, ood_set)):
            counts, _ = np.histogram(confidence(scores), bins=edges)
            draw_steps(axes, counts / len(scores), edges, colour, name)
        axes.set_title(title)
        axes.set_ylabel("share of inputs")
    grid.flat[0].legend(loc="upper left")
    grid.flat[-1].set_xlabel("maximum softmax probability")
    grid.flat[-1].set_xlim(0.0, 1.0)
    return figure
