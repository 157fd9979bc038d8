"""The picture that opens a report: methods ranked by their mean AUROC, with intervals and single networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from normscale.bench.report.figures.style import GRID, INSIDE, OUTSIDE, new_figure

_ROW, _MARGIN, _GAP = 0.2, 0.95, 1.4
"""Inches for a method, inches for title and axis, rows between groups."""
_COLOURS = (INSIDE, OUTSIDE)
_MARKERS = ("o", "D")


class Ranked(NamedTuple):
    """A method of the picture."""

    title: str
    mean: float
    networks: Sequence[float] = ()
    """The mean of each network; drawn if there are several."""
    interval: tuple[float, float] | None = None


def draw_ranking(groups: Mapping[str, Sequence[Ranked]], title: str) -> Figure:
    """Draw groups of methods below each other, each best first.

    Parameters
    ----------
    groups : mapping of a heading to methods, best first
    title : str
    """
    n_rows = sum(len(group) for group in groups.values()) + _GAP * len(groups)
    figure = new_figure(5.4, _MARGIN + _ROW * n_rows)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    place, ticks, labels = 0.0, [], []
    for number, (heading, group) in enumerate(groups.items()):
        colour, marker = _COLOURS[number % 2], _MARKERS[number % 2]
        axes.text(0.0, -place, heading, transform=axes.get_yaxis_transform(), color=colour, fontsize=8.5,
                  fontweight="bold", va="center")  # fmt: skip
        for one in group:
            place += 1.0
            if one.interval is not None:
                axes.plot(one.interval, (-place, -place), color=colour, linewidth=2.0, alpha=0.55, zorder=2)
            if len(one.networks) > 1:
                axes.plot(one.networks, [-place] * len(one.networks), "|", color=GRID, markersize=7, zorder=3)
            axes.plot([one.mean], [-place], marker, color=colour, markersize=4.5, zorder=4)
            axes.text(1.01, -place, f"{one.mean:.3f}", transform=axes.get_yaxis_transform(), fontsize=7.5, va="center")
            ticks.append(-place)
            labels.append(one.title)
        place += _GAP
    axes.set_yticks(ticks, labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-place + _GAP - 0.7, 0.7)
    axes.set_xlabel("mean AUROC over the OoD sets")
    axes.spines["left"].set_visible(False)
    return figure
