"""How every figure looks: size, colours, saving. No pyplot: figures are objects, and nothing global is left changed."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from normscale._atomic import atomic_path

INK = "#1a1c1f"
"""Of text and axes; in a page it becomes the page's own text colour."""
GROUND = "#fefefe"
"""Of gaps; in a page it becomes the ground of the page's figures."""
GRID = "#8c9196"
INSIDE, OUTSIDE = "#0072b2", "#d55e00"
"""In-distribution and OoD."""

CLASS_COLOURS = ("#0072b2", "#009e73", "#7b61c4", "#b8860b", "#cc79a7", "#56b4e9")
_SUBJECT_COLOUR = "#d55e00"
_COLOURS = (
    "#0072b2", "#7f7f7f", "#b8860b", "#cc79a7", "#009e73", "#a6761d", "#56b4e9", "#7b61c4", "#e377c2", "#17a2a2",
    "#8c564b", "#6b8e23",
)  # fmt: skip
"""After Okabe and Ito: told apart with any colour vision, and visible on light and dark ground."""
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (2, 1.2), (6, 1.5, 1.5, 1.5), (3, 1))

_SETTINGS: Any = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK
    ),
    "text.parse_math": False,  # a data set may have dollars in its name
    "svg.fonttype": "none",  # text stays text: small, searchable, and in the page's own font
}


_NOT_NEEDED = (
    r"<metadata>.*?</metadata>",
    r"<!--.*?-->",
    r"<style .*?</style>",
    r"font-family: [^;\"]*; ",
    r' transform="rotate\(-0 [^"]*"',
    r'(?<=<g) id="[^"]*"',
)
"""Of matplotlib's SVG inside a page: the style sheet says the rest, and nothing refers to the names of groups."""


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save in here; everything is as before afterwards."""
    with mpl.rc_context(_SETTINGS):
        yield


def new_figure(width: float = 4.4, height: float = 3.3) -> Figure:
    """A figure in inches; narrow, because a page puts several beside each other, or one on a telephone."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def one_axes(title: str, height: float = 3.3) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = new_figure(height=height)
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


class Look(NamedTuple):
    """How a method's line looks, so that it can be told from others with and without colour."""

    colour: str
    dashes: tuple[float, ...]
    """Empty for a solid line."""
    width: float


def looks(methods: Iterable[str], subject: str | None = None) -> dict[str, Look]:
    """A look for every method: the subject's line is thick, a frozen form has the colour of the running one."""
    names = list(methods)
    others = [one for one in dict.fromkeys(name.removesuffix("_frozen") for name in names) if one != subject]
    by_method = {}
    for name in names:
        base = name.removesuffix("_frozen")
        place = others.index(base) if base in others else 0
        colour = _SUBJECT_COLOUR if base == subject else _COLOURS[place % len(_COLOURS)]
        dashes = (1.0, 1.0) if base != name else () if base == subject else _DASHES[place % len(_DASHES)]
        by_method[name] = Look(colour, dashes, 2.2 if name == subject else 1.3)
    return by_method


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure on white as .png, .svg or .pdf; equal numbers give equal files."""
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
    salt: Any = {"svg.hashsalt": os.path.basename(os.fspath(path))}
    with atomic_path(path) as temporary, styled(), mpl.rc_context(salt):
        figure.savefig(temporary, facecolor="white", metadata=undated)
        figure.set_layout_engine("none")  # settled once: the next format need not settle it again


def inline_svg(figure: Figure, name: str, label: str = "") -> str:
    """A figure as an SVG element for a page: transparent, in the page's text colour and font, with short numbers."""
    file = io.StringIO()
    with styled(), mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    (view_box,) = re.findall(r'viewBox="([^"]+)"', text)
    inner = text[text.index(">", text.index("<svg")) + 1 :]
    inner = re.sub(r'\b(d|x|y|width|height|points|transform)="[^"]*"', _with_short_numbers, inner)
    for what in _NOT_NEEDED:
        inner = re.sub(what, "", inner, flags=re.DOTALL)
    # the names of parts are only unique within a figure, and a page holds many
    inner = re.sub(r'\bid="', f'id="{name}-', inner)
    inner = re.sub(r"url\(#", f"url(#{name}-", inner)
    inner = inner.replace('xlink:href="#', f'href="#{name}-').replace("xlink:href", "href")
    inner = re.sub(r"\s*\n\s*", " ", inner.replace(INK, "currentColor").replace(GROUND, "var(--card)"))
    return f'<svg viewBox="{view_box}" role="img" aria-label="{escape(label, quote=True)}">{inner}'


def _with_short_numbers(attribute: re.Match[str]) -> str:
    return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", attribute[0])
