"""Histograms of the softmax confidence before and after something was done to the logits."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from normscale._validate import FloatArray
from normscale.bench.report.figures.style import INSIDE, OUTSIDE, draw_steps, new_figure
from normscale.scores import confidence

BINS = 25


def draw_confidences(
    before: tuple[FloatArray, FloatArray], after: tuple[FloatArray, FloatArray], ood_set: str, titles: tuple[str, str]
) -> Figure:
    """Draw two histograms above each other.

    Parameters
    ----------
    before, after : pairs of arrays of shape (n_id,) and (n_ood,)
        Log-odds scores of the in-distribution and the OoD inputs; they are drawn as probabilities.
    ood_set : str
        Its name.
    titles : pair of str
        Of the two histograms.
    """
    figure = new_figure(4.4, 3.6)
    upper, lower = figure.subplots(2, 1, sharex=True)
    edges = np.linspace(0.0, 1.0, BINS + 1)
    for axes, (inside, outside), title in (
        (upper, before, titles[0]),
        (lower, after, titles[1]),
    ):
        for scores, colour, name in ((inside, INSIDE, "in-distribution"), (outside, OUTSIDE, ood_set)):
            counts, _ = np.histogram(confidence(scores), bins=edges)
            share = counts / len(scores)
            draw_steps(axes, share, edges, colour, name)
        axes.set_title(title)
        axes.set_ylabel("share of inputs")
    upper.legend(loc="upper left")
    lower.set_xlabel("maximum softmax probability")
    lower.set_xlim(0.0, 1.0)
    return figure
