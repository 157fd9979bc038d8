"""The stress grid as a picture: where running statistics gain on frozen ones, where they lose, and what is left."""

from __future__ import annotations

import os

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from normscale._atomic import atomic_path
from normscale._validate import FloatArray
from normscale.bench.experiments.measurement import StreamKind
from normscale.bench.experiments.stress_result import StressNumbers, StressResult
from normscale.bench.report.figures.style import GROUND, INK, styled
from normscale.errors import InvalidInput

SUFFIXES = (".png", ".svg", ".pdf")
_SKIPPED = (0.55, 0.57, 0.59, 0.35)
"""Half through: a grey on any ground."""
_DEEPEST = 0.2
"""Differences beyond this have the deepest colour: one bad cell should not make all others pale."""


def draw_stress(result: StressResult) -> Figure:
    """Draw two heat maps, with a column for every OoD share and a row for every class balance and order.

    Left: AUROC of the first method with running statistics minus that of its frozen form, blue for a gain, red for a
    loss. Right: its AUROC. Numbers are means over the OoD sets; cells that were skipped are grey.
    """
    pair = result.running_and_frozen()
    if pair is None:
        raise InvalidInput("the grid has no method with running statistics and its frozen form; there is no map of it.")
    means, unknown = result.means(), StressNumbers(np.nan, np.nan)
    kinds = [row.stream for row in result.rows if row.stream is not None]
    shares = list(dict.fromkeys(kind.share for kind in kinds))
    orders = list(dict.fromkeys(kind.order for kind in kinds))
    balances = list(dict.fromkeys(kind.balance for kind in kinds))
    lines = [(balance, order) for balance in balances for order in orders]
    own, other = (
        np.array([[means.get(StreamKind(share, order, balance), {}).get(name, unknown).auroc for share in shares]
                  for balance, order in lines])
        for name in pair
    )  # fmt: skip
    difference = own - other
    depth = min(_DEEPEST, float(np.nanmax(np.abs(difference), initial=0.01)))

    figure = Figure(figsize=(4.4 + 1.05 * len(shares), 1.7 + 0.33 * len(lines)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    _heat_map(left, difference, "RdBu", Normalize(-depth, depth), "+.3f")
    _heat_map(right, own, "cividis", Normalize(0.5, 1.0), ".3f")
    left.set_title("AUROC of running minus frozen", fontsize=9)
    right.set_title("AUROC of running", fontsize=9)
    for axes in (left, right):
        axes.set_xticks(range(len(shares)), [f"{100 * share:g} %" for share in shares])
        axes.set_xlabel("share of OoD rows in the stream", fontsize=8)
        for edge in range(len(orders), len(lines), len(orders)):
            axes.axhline(edge - 0.5, color=GROUND, linewidth=4)
    left.set_yticks(range(len(lines)), [order for _, order in lines])
    for number, balance in enumerate(balances):
        centre = (number + 0.5) * len(orders) - 0.5
        left.annotate(
            balance, (0, centre), (-66, 0), ("axes fraction", "data"), "offset points", rotation=90,
            ha="center", va="center", fontweight="bold", fontsize=8, annotation_clip=False,
        )  # fmt: skip
    sets = result.ood_sets
    figure.suptitle(sets[0] if len(sets) == 1 else f"mean of {len(sets)} OoD sets", fontsize=11)
    return figure


def save_stress_map(result: StressResult, path: str | os.PathLike[str]) -> None:
    """Write :func:`draw_stress` as .png, .svg or .pdf."""
    check_suffix(path)
    with atomic_path(path) as temporary, styled():
        draw_stress(result).savefig(temporary)


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Refuse a picture of another kind: before the work, not after it."""
    if os.path.splitext(os.fspath(path))[1].lower() not in SUFFIXES:
        raise InvalidInput(f"a picture's name must end in {', '.join(SUFFIXES)}; got {os.fspath(path)!r}.")


def _heat_map(axes: Axes, table: FloatArray, colours: str, norm: Normalize, form: str) -> None:
    palette = colormaps[colours].with_extremes(bad=_SKIPPED)
    axes.grid(visible=False)
    down, across = (np.arange(n + 1) - 0.5 for n in table.shape)
    image = axes.pcolormesh(across, down, np.ma.masked_invalid(table), cmap=palette, norm=norm)  # sharp at any size
    axes.set_ylim(down[-1], down[0])
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    for (i, j), value in np.ndenumerate(table):
        known = bool(np.isfinite(value))
        red, green, blue, _ = palette(norm(value))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        text = format(value, form).replace("0.", ".", 1).replace("-", "−") if known else "skipped"
        colour = ("white" if dark else "black") if known else INK  # a skipped cell has the page's own ground
        axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color=colour)
    low, high = np.nanmin(table, initial=np.inf), np.nanmax(table, initial=-np.inf)
    below, above = low < (norm.vmin or 0.0), high > (norm.vmax or 0.0)
    bar = axes.figure.colorbar(
        image, ax=axes, extend="both" if below and above else "min" if below else "max" if above else "neither",
        aspect=45, pad=0.02,
    )  # fmt: skip
    bar.outline.set_visible(False)
    if bar.solids is not None:
        bar.solids.set_rasterized(True)  # 256 little paths would be most of the file
    bar.ax.tick_params(labelsize=7)
