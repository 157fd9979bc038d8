"""Histograms on one OoD set: scores of every method, softmax confidences, and largest logits with their densities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.mlab import GaussianKDE
from matplotlib.ticker import MaxNLocator

from normscale._validate import FloatArray
from normscale.bench.experiments.measurement import ScoredPair
from normscale.bench.experiments.methods import title_of
from normscale.bench.report.figures.style import CLASS_COLOURS, INSIDE, OUTSIDE, new_figure, one_axes
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs
from normscale.scores import confidence


def _both_sides(axes: Axes, pair: ScoredPair, edges: FloatArray, ood_set: str) -> None:
    """Two filled histograms; each can be seen through the other."""
    for scores, colour, name in ((pair.id_scores, INSIDE, "in-distribution"), (pair.ood_scores, OUTSIDE, ood_set)):
        share = np.histogram(scores, bins=edges)[0] / len(scores)
        axes.stairs(
            share, edges, fill=True, facecolor=to_rgba(colour, 0.3), edgecolor=colour, linewidth=1.2, label=name
        )


def draw_scores(pairs: Mapping[str, ScoredPair], ood_set: str) -> Figure:
    """Draw both sides' scores, a line for every method; half a per cent at either end is left out."""
    figure = new_figure(4.4, 0.7 + 0.62 * len(pairs))
    grid = figure.subplots(len(pairs), 1, squeeze=False)
    for axes, (method, pair) in zip(grid.flat, pairs.items(), strict=True):
        low, high = np.quantile(np.concatenate([pair.id_scores, pair.ood_scores]), [0.005, 0.995])
        _both_sides(axes, pair, np.linspace(low, high if high > low else low + 1.0, 41), ood_set)
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


def draw_confidences(panels: Mapping[str, ScoredPair], ood_set: str) -> Figure:
    """Draw the maximum softmax probability, a panel for each title, from log-odds scores."""
    figure = new_figure(4.4, 0.8 + 1.4 * len(panels))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for axes, (title, pair) in zip(grid.flat, panels.items(), strict=True):
        sure = ScoredPair(confidence(pair.id_scores), confidence(pair.ood_scores))
        _both_sides(axes, sure, np.linspace(0.0, 1.0, 26), ood_set)
        axes.set_title(title)
        axes.set_ylabel("share of inputs")
    grid.flat[0].legend(loc="upper left")
    grid.flat[-1].set_xlabel("maximum softmax probability")
    grid.flat[-1].set_xlim(0.0, 1.0)
    return figure


def draw_densities(test: ModelOutputs, ood: ModelOutputs, ood_set: str, classes: Sequence[int] = ()) -> Figure:
    """Draw density (line) and histogram (steps) of the largest logit, for predicted classes and for the OoD inputs.

    Without ``classes``: :func:`three_classes`.
    """
    predicted, top = test.predicted, np.asarray(test.logits, dtype=np.float64).max(axis=1)
    chosen = list(classes) or three_classes(test)
    if absent := [label for label in chosen if not (predicted == label).any()]:
        raise InvalidInput(
            f"no input of the test set is predicted as class {absent[0]}; name others of the {test.n_classes} classes."
        )
    figure, axes = one_axes(f"Predicted logit by class, against {ood_set}")
    groups = [
        (f"class {label}", top[predicted == label], colour, "-")
        for label, colour in zip(chosen, cycle(CLASS_COLOURS), strict=False)
    ]
    groups.append((ood_set, np.asarray(ood.logits, dtype=np.float64).max(axis=1), OUTSIDE, "--"))
    low, high = np.quantile(np.concatenate([values for _, values, *_ in groups]), [0.001, 0.999])
    margin = 0.05 * (high - low) or 1.0
    ends = low - margin, high + margin
    at, edges = np.linspace(*ends, 160), np.linspace(*ends, 41)
    for name, values, colour, line in groups:
        share = np.histogram(values, bins=edges)[0] / (len(values) * np.diff(edges))
        axes.stairs(share, edges, color=colour, alpha=0.45, linewidth=0.9)
        axes.plot(at, density(values, at), color=colour, label=name, linewidth=1.6, linestyle=line)
    axes.set_xlabel("largest logit")
    axes.set_ylabel("density")
    axes.set_xlim(*ends)
    axes.set_ylim(bottom=0)
    axes.legend(title="predicted", title_fontsize=7.5)
    return figure


def three_classes(test: ModelOutputs) -> list[int]:
    """The predicted classes whose predicted logit is lowest, in the middle and highest on average."""
    predicted, top = test.predicted, np.asarray(test.logits).max(axis=1)
    present = [int(label) for label in np.unique(predicted) if np.count_nonzero(predicted == label) > 1]
    order = sorted(present, key=lambda label: float(top[predicted == label].mean()))
    return list(dict.fromkeys([order[0], order[len(order) // 2], order[-1]])) if order else []


def density(values: FloatArray, at: FloatArray) -> FloatArray:
    """A Gaussian kernel density estimate with Silverman's bandwidth, ``0.9 min(std, iqr / 1.34) n^(-1/5)``.

    A constant is drawn as a spike. Silverman, "Density estimation for statistics and data analysis", 1986, section 3.4.
    """
    quarter, three_quarters = np.quantile(values, [0.25, 0.75])
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    if spread == 0.0:
        values, spread = values[0] + 1e-3 * np.ptp(at) * np.array([-1.0, 1.0]), 1e-3 * float(np.ptp(at))
    robust = min(spread, float(three_quarters - quarter) / 1.34 or spread)
    estimate: FloatArray = GaussianKDE(values, 0.9 * robust * len(values) ** -0.2 / spread).evaluate(at)
    return estimate
