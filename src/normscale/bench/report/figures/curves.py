"""ROC and precision-recall curves of every method on one OoD set."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscale._validate import FloatArray
from normscale.bench.experiments.methods import title_of
from normscale.bench.experiments.scored_pair import ScoredPair
from normscale.bench.report.figures.style import GRID, Look, looks, one_axes
from normscale.metrics.ranking import evaluate, precision_recall_curve, roc_curve

_POINTS = 160
"""Points of a drawn line; a curve of ten thousand looks the same and weighs sixty times as much."""


def draw_roc(pairs: Mapping[str, ScoredPair], ood_set: str, subject: str | None = None) -> Figure:
    """Draw true against false positive rate, OoD positive, with the AUROC of every method."""
    figure, axes = one_axes(f"ROC, {ood_set}")
    axes.plot([0, 1], [0, 1], color=GRID, linewidth=0.9, linestyle=":")
    look = looks(pairs, subject)
    for method, pair in _ordered(pairs, "auroc"):
        curve = roc_curve(pair.id_scores, pair.ood_scores)
        number = evaluate(pair.id_scores, pair.ood_scores).auroc
        _line(axes, method, look[method], *thinned(curve.fpr, curve.tpr), number)
    axes.set_xlabel("in-distribution inputs flagged")
    axes.set_ylabel("OoD inputs caught")
    axes.legend(loc="lower right", title="AUROC", title_fontsize=7.5)
    return figure


def draw_precision_recall(pairs: Mapping[str, ScoredPair], ood_set: str, subject: str | None = None) -> Figure:
    """Draw precision against recall, OoD positive, with the AUPR of every method."""
    figure, axes = one_axes(f"Precision and recall, {ood_set}", height=3.9)
    look = looks(pairs, subject)
    for method, pair in _ordered(pairs, "aupr_out"):
        curve = precision_recall_curve(pair.id_scores, pair.ood_scores)
        _line(axes, method, look[method], *thinned(curve.recall, curve.precision), curve.average_precision)
        share = len(pair.ood_scores) / (len(pair.ood_scores) + len(pair.id_scores))
    axes.axhline(share, color=GRID, linewidth=0.9, linestyle=":")
    axes.set_xlabel("recall: OoD inputs caught")
    axes.set_ylabel("precision: flagged inputs that are OoD")
    axes.set_ylim(min(0.5, share) - 0.02, 1.02)
    axes.set_xlim(0, 1)
    figure.legend(loc="outside lower center", ncols=2, title="AUPR, OoD positive", title_fontsize=7.5)
    return figure


def thinned(x: FloatArray, y: FloatArray, points: int = _POINTS) -> tuple[FloatArray, FloatArray]:
    """Fewer points of a curve, evenly along its length, both ends kept; a short curve stays as it is."""
    if len(x) <= points:
        return x, y
    length = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    chosen = np.unique(np.searchsorted(length, np.linspace(0.0, length[-1], points)))
    chosen = np.unique(np.concatenate([[0], chosen, [len(x) - 1]]).clip(max=len(x) - 1))
    return x[chosen], y[chosen]


def _ordered(pairs: Mapping[str, ScoredPair], metric: str) -> list[tuple[str, ScoredPair]]:
    """The best method first, as in the legend."""
    numbers = {method: getattr(evaluate(pair.id_scores, pair.ood_scores), metric) for method, pair in pairs.items()}
    return sorted(pairs.items(), key=lambda item: -numbers[item[0]])


def _line(axes: Axes, method: str, look: Look, x: FloatArray, y: FloatArray, number: float) -> None:
    (line,) = axes.plot(x, y, color=look.colour, linewidth=look.width)
    line.set_label(f"{number:.3f} {title_of(method)}")
    if look.dashes:
        line.set_dashes(look.dashes)
