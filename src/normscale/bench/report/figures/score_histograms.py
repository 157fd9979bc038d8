"""Histograms of every method's scores on one OoD set, a line of the figure for each method."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from normscale.bench.experiments.methods import title_of
from normscale.bench.experiments.scored_pair import ScoredPair
from normscale.bench.report.figures.style import INSIDE, OUTSIDE, draw_steps, new_figure

BINS = 40


def draw_scores(pairs: Mapping[str, ScoredPair], ood_set: str) -> Figure:
    """Draw both sides' scores for every method; the extreme half per cent at either end is left out of sight."""
    figure = new_figure(4.4, 0.7 + 0.62 * len(pairs))
    grid = figure.subplots(len(pairs), 1, squeeze=False)
    for axes, (method, pair) in zip(grid.flat, pairs.items(), strict=True):
        low, high = np.quantile(np.concatenate([pair.id_scores, pair.ood_scores]), [0.005, 0.995])
        edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
        for scores, colour, name in ((pair.id_scores, INSIDE, "in-distribution"), (pair.ood_scores, OUTSIDE, ood_set)):
            share = np.histogram(scores, bins=edges)[0] / len(scores)
            draw_steps(axes, share, edges, colour, name)
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_ylabel(title_of(method).replace(", ", ",\n"), rotation=0, ha="right", va="center", fontsize=7.5)
        axes.tick_params(labelsize=7, length=2, pad=1)
        axes.xaxis.set_major_locator(MaxNLocator(5))  # numbers like −0.00125 need the room
    figure.suptitle(f"Scores, higher is more OoD: {ood_set}", fontsize=10)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure
