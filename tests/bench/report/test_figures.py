"""Figures of known numbers: what the artists hold, not that a file exists."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch

from normscale import ModelOutputs, confidence, expected_calibration_error, load_sample
from normscale.bench.experiments.measurement import ScoredPair
from normscale.bench.report.figures.curves import BINS, draw_ece, draw_reliability, draw_roc, draw_training, thinned
from normscale.bench.report.figures.histograms import (
    density,
    draw_confidences,
    draw_densities,
    draw_scores,
    three_classes,
)
from normscale.bench.report.figures.style import INK, inline_svg, looks, save_figure, styled
from normscale.errors import InvalidInput
from normscale.metrics.temperature import EceCurve, ece_curve

PAIRS = {
    "msp": ScoredPair(np.array([0.1, 0.5]), np.array([0.5, 0.7])),
    "norm_scaling": ScoredPair(np.array([1.0, 2.0]), np.array([3.0, 4.0])),
}


def only_axes(figure: Figure) -> Any:
    (axes,) = figure.axes
    return axes


def steps(axes: Axes) -> list[Any]:
    return [patch for patch in axes.patches if isinstance(patch, StepPatch)]


def test_kde_is_the_sum_of_kernels() -> None:
    values, at = np.array([0.0, 1.0, 5.0]), np.linspace(-3, 8, 23)
    spread = min(np.std(values, ddof=1), (np.quantile(values, 0.75) - np.quantile(values, 0.25)) / 1.34)
    width = 0.9 * spread * 3**-0.2
    slow = [sum(np.exp(-0.5 * ((x - v) / width) ** 2) for v in values) / (3 * width * np.sqrt(2 * np.pi)) for x in at]
    np.testing.assert_allclose(density(values, at), slow, rtol=1e-12)


def test_kde_over_many_values_and_over_a_constant() -> None:
    rng = np.random.default_rng(0)
    at = np.linspace(-4, 4, 81)
    normal = np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi)
    assert np.abs(density(rng.normal(size=20_000), at) - normal).max() < 0.02
    spike = density(np.full(5, 2.0), np.linspace(0, 4, 401))
    assert spike.argmax() == 200


def test_roc_lines_are_the_curve_best_first() -> None:
    axes = only_axes(draw_roc(PAIRS, "noise", "norm_scaling"))
    diagonal, first, second = axes.lines
    assert first.get_label() == "1.000 Norm-Scaling"
    assert second.get_label() == "0.875 MSP"
    np.testing.assert_array_equal(second.get_xdata(), [0, 0, 0.5, 1])
    np.testing.assert_array_equal(second.get_ydata(), [0, 0.5, 1, 1])
    assert first.get_color() == looks(PAIRS, "norm_scaling")["norm_scaling"].colour
    assert first.get_linewidth() > second.get_linewidth()
    np.testing.assert_array_equal(diagonal.get_xdata(), diagonal.get_ydata())


def test_thinning_keeps_the_ends_and_the_shape() -> None:
    x = np.linspace(0, 1, 5001)
    y = np.sqrt(x)
    few_x, few_y = thinned(x, y, 100)
    assert 50 < len(few_x) <= 102
    assert (few_x[0], few_x[-1], few_y[-1]) == (0, 1, 1)
    assert np.abs(np.interp(x, few_x, few_y) - y).max() < 0.01
    assert thinned(x[:5], y[:5])[0] is not None
    np.testing.assert_array_equal(thinned(x[:5], y[:5])[1], y[:5])


def test_confidence_histograms_hold_the_shares() -> None:
    plain = (np.log([0.01 / 0.99, 0.03 / 0.97]), np.log([0.5 / 0.5, 0.01 / 0.99]))
    scaled = (np.log([0.3 / 0.7] * 2), np.log([0.7 / 0.3] * 4))
    upper: Any
    upper, lower = draw_confidences({"before": ScoredPair(*plain), "after": ScoredPair(*scaled)}, "noise").axes
    inside, outside = steps(upper)
    heights, edges, _ = inside.get_data()
    assert heights[-1] == 1.0  # both above 0.96
    assert outside.get_data().values[12] == 0.5
    assert outside.get_data().values[-1] == 0.5
    low, high = (patch.get_data() for patch in steps(lower))
    assert edges[np.argmax(low.values)] <= confidence(scaled[0])[0] < edges[np.argmax(low.values) + 1]
    assert edges[np.argmax(high.values)] <= 0.3 < edges[np.argmax(high.values) + 1]
    assert [text.get_text() for text in upper.get_legend().get_texts()] == ["in-distribution", "noise"]


def test_densities_of_the_lowest_the_middle_and_the_highest_class() -> None:
    logits = np.zeros((40, 5))
    for row in range(40):
        logits[row, row % 4] = {0: 9.0, 1: 3.0, 2: 6.0, 3: 7.0}[row % 4] + 0.01 * row
    test = ModelOutputs(logits)
    assert three_classes(test) == [1, 3, 0]
    axes = only_axes(draw_densities(test, ModelOutputs(np.eye(5)), "noise"))
    assert [line.get_label() for line in axes.lines] == ["class 1", "class 3", "class 0", "noise"]
    x, y = axes.lines[0].get_data()
    np.testing.assert_allclose(y, density(logits[1::4, 1], x))
    heights, edges, _ = steps(axes)[0].get_data()
    assert np.sum(heights * np.diff(edges)) == pytest.approx(1.0)


def test_reliability_bars_are_the_accuracies() -> None:
    sample = load_sample().test
    assert sample.labels is not None
    figure = draw_reliability(sample.logits, sample.labels, (1.0, 4.0), "raw")
    probabilities = np.exp(sample.logits / 4.0) / np.exp(sample.logits / 4.0).sum(axis=1, keepdims=True)
    top, correct = probabilities.max(axis=1), sample.predicted == sample.labels
    bars = [patch for patch in figure.axes[1].patches if isinstance(patch, Rectangle)]
    assert len(bars) == BINS
    for m, bar in enumerate(bars):
        inside = (top > m / BINS) & (top <= (m + 1) / BINS)
        assert bar.get_height() == pytest.approx(correct[inside].mean() if inside.any() else 0.0)
        assert bar.get_x() == pytest.approx(m / BINS)
    error = expected_calibration_error(top, correct, BINS)
    assert figure.axes[1].get_title() == f"T = 4: ECE {error:.3f}"


def test_both_minima_are_marked() -> None:
    at = np.array([0.1, 1.0, 3.0])
    raw = EceCurve(temperatures=at, ece=np.array([0.4, 0.2, 0.1]), best_temperature=3.0, best_ece=0.1)
    scaled = EceCurve(temperatures=at, ece=np.array([0.05, 0.3, 0.5]), best_temperature=0.1, best_ece=0.05)
    axes = only_axes(draw_ece({"digits": {"temperature scaling": raw, "norm-scaling": scaled}}, "digits"))
    marks = [line.get_data() for line in axes.lines if line.get_marker() == "o"]
    assert [(float(x[0]), float(y[0])) for x, y in marks] == [(3.0, 0.1), (0.1, 0.05)]
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["temperature scaling: 0.100 at 3", "norm-scaling: 0.050 at 0.1"]


def test_the_curve_drawn_is_the_sweep() -> None:
    sample = load_sample().test
    assert sample.labels is not None
    at = np.geomspace(0.2, 5, 9)
    curve = ece_curve(sample.logits, sample.labels, at)
    axes = only_axes(draw_ece({"digits": {"a": curve, "b": curve}}, "digits"))
    line = next(line for line in axes.lines if len(np.atleast_1d(line.get_xdata())) == 9)
    np.testing.assert_array_equal(line.get_ydata(), curve.ece)


def test_score_histograms_have_a_line_per_method() -> None:
    figure = draw_scores(PAIRS, "noise")
    assert [axes.get_ylabel() for axes in figure.axes] == ["MSP", "Norm-Scaling"]
    for axes, pair in zip(figure.axes, PAIRS.values(), strict=True):
        inside, _ = (patch.get_data() for patch in steps(axes))
        expected = np.histogram(pair.id_scores, bins=inside.edges)[0] / 2
        np.testing.assert_array_equal(inside.values, expected)


def collisions(figure: Figure) -> list[tuple[str, str]]:
    """Labels at the ticks of an axis that touch each other, or lie outside of the figure."""
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low - 1e-9 <= tick.get_loc() <= high + 1e-9]
            labels = [tick.label1 for tick in ticks if tick.label1.get_visible() and tick.label1.get_text()]
            boxes = [(label.get_text(), label.get_window_extent()) for label in labels]
            boxes.sort(key=lambda item: (item[1].x0, item[1].y0))
            found += [(a[0], b[0]) for a, b in pairwise(boxes) if a[1].padded(1).overlaps(b[1])]
    return found


@pytest.mark.parametrize(("centre", "spread"), ((0.0, 1.0), (1.937, 0.003), (-12.5, 5e-5), (1e6, 3.0), (0.0, 4e-9)))
def test_tick_labels_do_not_collide(centre: float, spread: float) -> None:
    scores = centre + spread * np.random.default_rng(0).normal(size=(2, 200))
    pairs = {f"method {k}": ScoredPair(scores[0], scores[1]) for k in range(6)}
    logits = np.random.default_rng(1).normal(size=(60, 5)) * spread + centre
    labels = np.zeros(60, dtype=np.int64)
    with styled():
        drawn = {
            "scores": draw_scores(pairs, "noise"),
            "roc": draw_roc(pairs, "noise"),
            "density": draw_densities(ModelOutputs(logits), ModelOutputs(logits + spread), "noise"),
            "reliability": draw_reliability(logits, labels, (0.5, 1.0, 2.0, 4.0), "raw"),
        }
        assert {name: found for name, figure in drawn.items() if (found := collisions(figure))} == {}


def test_training_curves() -> None:
    logs = {s: [{"epoch": e, "validation_accuracy": 0.1 * e + s} for e in (1, 2, 3)] for s in (0, 7)}
    axes = only_axes(draw_training(logs, "digits"))
    assert [line.get_label() for line in axes.lines] == ["seed 0", "seed 7"]
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [7.1, 7.2, 7.3])


def test_drawing_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    with styled():
        figure = draw_roc(PAIRS, "noise")
    save_figure(figure, tmp_path / "a.svg")
    inline_svg(figure, "a")
    assert dict(mpl.rcParams) == before


def test_equal_numbers_give_equal_files(tmp_path: Path) -> None:
    texts = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for suffix in ("svg", "png", "pdf"):
            with styled():
                save_figure(draw_roc(PAIRS, "noise"), tmp_path / folder / f"roc.{suffix}")
        texts.append([(tmp_path / folder / f"roc.{suffix}").read_bytes() for suffix in ("svg", "png", "pdf")])
    assert texts[0] == texts[1]


def test_inline_svg_is_safe_and_takes_the_pages_colour() -> None:
    name = '<b>x</b> "q" $a$ & b'
    with styled():
        figure = draw_roc(PAIRS, name)
        text = inline_svg(figure, "roc_x", f"curve on {name}")
    root = ElementTree.fromstring(text)
    shown = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert f"ROC, {name}" in shown  # the dollars are dollars, not mathematics
    assert root.get("aria-label") == f"curve on {name}"
    assert "0.875 MSP" in shown  # numbers in words keep their digits
    assert INK not in text
    assert "currentColor" in text
    names = re.findall(r'\bid="([^"]+)"', text)
    assert names
    assert all(one.startswith("roc_x-") for one in names)
    for target in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
        assert target in names


def test_the_classes_of_the_densities_can_be_chosen() -> None:
    test = ModelOutputs(np.repeat(np.eye(4), 3, axis=0) * np.arange(1, 13)[:, None])
    axes = only_axes(draw_densities(test, test, "noise", [3, 1]))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["class 3", "class 1", "noise"]
    with pytest.raises(InvalidInput, match="no input of the test set is predicted as class 7"):
        draw_densities(test, test, "noise", [1, 7])


def test_several_sets_share_one_plot_of_calibration_errors() -> None:
    curve = ece_curve(np.eye(3) * 4.0, np.arange(3), [0.5, 1.0, 2.0])
    figure = draw_ece({"a": {"raw": curve, "scaled": curve}, "b": {"raw": curve, "scaled": curve}}, "all")
    lines = [line for line in only_axes(figure).get_lines() if len(line.get_xdata()) == 3]
    assert [line.get_linestyle() for line in lines] == ["--", "-", "--", "-"], "raw is dashed"
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color() == lines[3].get_color()
    (legend,) = figure.legends
    assert [text.get_text().split(":")[0] for text in legend.get_texts()] == [
        "a, raw", "a, scaled", "b, raw", "b, scaled",
    ]  # fmt: skip
