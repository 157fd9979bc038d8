"""For a few classes, how the logit of the predicted class is distributed, against OoD."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from normscale._validate import FloatArray, as_finite_vector
from normscale.bench.report.figures.style import OUTSIDE, one_axes
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs

_CLASS_COLOURS = ("#0072b2", "#009e73", "#7b61c4", "#b8860b", "#cc79a7", "#56b4e9")
_POINTS = 160


def gaussian_kde(values: ArrayLike, at: ArrayLike) -> FloatArray:
    """A Gaussian kernel density estimate with Silverman's bandwidth.

    ``h = 0.9 min(std, iqr / 1.34) n^(-1/5)``; a spread of 0 gives the kernel a width of a thousandth of the range of
    ``at``, so that a constant shows as a spike.

    Parameters
    ----------
    values : array of shape (n,)
    at : array of shape (k,)
        Where the density is wanted.

    Returns
    -------
    array of shape (k,)

    References
    ----------
    Silverman, "Density estimation for statistics and data analysis", Chapman and Hall 1986, section 3.4.

    Examples
    --------
    >>> at = np.linspace(-4, 4, 401)
    >>> density = gaussian_kde([-1.0, 0.0, 1.0], at)
    >>> round(float(np.trapezoid(density, at)), 3), float(at[density.argmax()])
    (1.0, 0.0)
    """
    sample, places = as_finite_vector(values, "values"), as_finite_vector(at, "at")
    quarter, three_quarters = np.quantile(sample, [0.25, 0.75])
    spreads = [spread for spread in (float(sample.std()), float(three_quarters - quarter) / 1.34) if spread > 0]
    width = 0.9 * min(spreads) * sample.size**-0.2 if spreads else 1e-3 * (float(np.ptp(places)) or 1.0)
    density = np.zeros(places.size)
    for start in range(0, sample.size, 4096):
        steps = (places[:, None] - sample[start : start + 4096]) / width
        density += np.exp(-0.5 * steps * steps).sum(axis=1)
    return density / (sample.size * width * math.sqrt(2 * math.pi))


def three_classes(test: ModelOutputs) -> list[int]:
    """The predicted classes whose predicted logit is lowest, in the middle and highest on average."""
    predicted, top = test.predicted, np.asarray(test.logits).max(axis=1)
    present = [int(label) for label in np.unique(predicted) if np.count_nonzero(predicted == label) > 1]
    order = sorted(present, key=lambda label: float(top[predicted == label].mean()))
    return list(dict.fromkeys([order[0], order[len(order) // 2], order[-1]])) if order else []


def draw_densities(test: ModelOutputs, ood: ModelOutputs, ood_set: str, classes: Sequence[int] = ()) -> Figure:
    """Draw the density (line) and histogram (steps) of the predicted logit of some classes and of the OoD inputs.

    ``classes`` are predicted classes; none: :func:`three_classes`. One that is never predicted is an error.
    """
    chosen = list(classes) or three_classes(test)
    if absent := [label for label in chosen if not (test.predicted == label).any()]:
        raise InvalidInput(
            f"no input of the test set is predicted as class {absent[0]}; name others of the {test.n_classes} classes."
        )
    figure, axes = one_axes(f"Predicted logit by class, against {ood_set}")
    predicted, top = test.predicted, np.asarray(test.logits, dtype=np.float64).max(axis=1)
    groups = [
        (f"class {label}", top[predicted == label], colour)
        for label, colour in zip(chosen, cycle(_CLASS_COLOURS), strict=False)
    ]
    groups.append((ood_set, np.asarray(ood.logits, dtype=np.float64).max(axis=1), OUTSIDE))
    everything = np.concatenate([values for _, values, _ in groups])
    low, high = np.quantile(everything, [0.001, 0.999])
    margin = 0.05 * (high - low) or 1.0
    at, edges = np.linspace(low - margin, high + margin, _POINTS), np.linspace(low - margin, high + margin, 41)
    for name, values, colour in groups:
        heights, _ = np.histogram(values, bins=edges)
        share = heights / (len(values) * np.diff(edges))
        is_ood = colour == OUTSIDE
        axes.stairs(share, edges, color=colour, alpha=0.45, linewidth=0.9)
        axes.plot(
            at, gaussian_kde(values, at), color=colour, label=name, linewidth=1.6, linestyle="--" if is_ood else "-"
        )
    axes.set_xlabel("largest logit")
    axes.set_ylabel("density")
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(bottom=0)
    axes.legend(title="predicted", title_fontsize=7.5)
    return figure
