"""Plots of dots: methods ranked by their mean AUROC, which opens a report; shares flagged without OoD inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

from matplotlib.figure import Figure

from normscale.bench.experiments.alarms import KEEP, Alarms
from normscale.bench.report.figures.style import GRID, INSIDE, OUTSIDE, new_figure

_ROW, _MARGIN, _GAP = 0.2, 0.95, 1.4
"""Inches for a method, inches for title and axis, rows between groups."""


class Ranked(NamedTuple):
    """A method of the picture."""

    title: str
    mean: float
    networks: Sequence[float] = ()
    """The mean of each network; drawn if there are several."""
    interval: tuple[float, float] | None = None


def draw_ranking(groups: Mapping[str, Sequence[Ranked]], title: str) -> Figure:
    """Draw groups of methods below each other by heading, each best first."""
    n_rows = sum(len(group) for group in groups.values()) + _GAP * len(groups)
    figure = new_figure(height=_MARGIN + _ROW * n_rows)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    place, ticks, across = 0.0, {}, axes.get_yaxis_transform()
    looks = cycle(((INSIDE, "o"), (OUTSIDE, "D")))
    for (heading, group), (colour, marker) in zip(groups.items(), looks, strict=False):
        axes.text(0.0, -place, heading, transform=across, color=colour, fontsize=8.5, fontweight="bold", va="center")
        for one in group:
            place += 1.0
            if one.interval is not None:
                axes.plot(one.interval, (-place, -place), color=colour, linewidth=2.0, alpha=0.55, zorder=2)
            if len(one.networks) > 1:
                axes.plot(one.networks, [-place] * len(one.networks), "|", color=GRID, markersize=7, zorder=3)
            axes.plot([one.mean], [-place], marker, color=colour, markersize=4.5, zorder=4)
            axes.text(1.01, -place, f"{one.mean:.3f}", transform=across, fontsize=7.5, va="center")
            ticks[-place] = one.title
        place += _GAP
    axes.set_yticks([*ticks], [*ticks.values()])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-place + _GAP - 0.7, 0.7)
    axes.set_xlabel("mean AUROC over the OoD sets")
    axes.spines["left"].set_visible(False)
    return figure


def draw_alarms(alarms: Sequence[Alarms], title: str) -> Figure:
    """Draw one method's shares: a point for frozen statistics, one for streamed ones, joined by a line."""
    figure = new_figure(height=1.1 + 0.2 * len(alarms))
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
    axes.set_xlabel(f"share of rows flagged (dotted: the nominal {1.0 - KEEP:.2f})")
    axes.set_title(title, loc="left")
    axes.spines["left"].set_visible(False)
    axes.legend(loc="lower right")
    return figure
