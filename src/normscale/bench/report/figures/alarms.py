"""Shares flagged of streams without OoD inputs: frozen against streamed, a line for every stream."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from normscale.bench.experiments.alarms import KEEP, Alarms
from normscale.bench.report.figures.style import GRID, INSIDE, OUTSIDE, new_figure


def draw_alarms(alarms: Sequence[Alarms], title: str) -> Figure:
    """Draw one method's shares: a point for frozen statistics, one for streamed ones, joined by a line."""
    figure = new_figure(5.4, 1.1 + 0.2 * len(alarms))
    axes = figure.add_subplot()
    for place, one in enumerate(alarms):
        axes.plot((one.frozen, one.streamed), (-place, -place), color=GRID, linewidth=2.0, zorder=2)
    places = [-place for place in range(len(alarms))]
    looks = {"frozen": (INSIDE, "o"), "streamed": (OUTSIDE, "D")}
    for name, (colour, marker) in looks.items():
        shares = [getattr(one, name) for one in alarms]
        axes.plot(shares, places, marker, color=colour, markersize=4.5, zorder=3, label=name)
    axes.axvline(1.0 - KEEP, color=GRID, linewidth=1.0, linestyle=":")
    axes.set_yticks(places, [one.stream for one in alarms])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel(f"share of in-distribution rows flagged (dotted: the nominal {1.0 - KEEP:.2f})")
    axes.set_title(title, loc="left")
    axes.spines["left"].set_visible(False)
    axes.legend(loc="lower right")
    return figure
