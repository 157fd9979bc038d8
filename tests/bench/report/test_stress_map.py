"""The stress map: every number in its cell, zero in the middle of the colours, no global state."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.image import imread

import normscale as ns
from bench.experiments.stress_rows import stress_row
from normscale.bench.experiments.measurement import StreamKind
from normscale.bench.experiments.stress_result import StressResult
from normscale.bench.paper.presets import FROZEN, RUNNING
from normscale.bench.report.figures.stress_map import draw_stress, save_stress_map
from program import python

SHARES, ORDERS, BALANCES = (0.01, 0.5), ("shuffled", "OoD first"), ("balanced", "one class 80 %")


def made(lowest: float = 0.30) -> StressResult:
    """Frozen 0.80 everywhere, running rising from ``lowest`` in steps of 0.08; the first cell skipped."""
    rows = []
    for number, (balance, order, share) in enumerate(product(BALANCES, ORDERS, SHARES)):
        for method, auroc in ((RUNNING, lowest + 0.08 * number), (FROZEN, 0.80)):
            skipped = "too few rows" if number == 0 else ""
            value = math.nan if skipped else auroc
            kind = StreamKind(share, order, balance)
            rows.append(stress_row(method, value, 0.5, kind, n_id=50, n_ood=50, draws=4, skipped=skipped))
    return StressResult(rows)


def numbers(axes: Axes) -> list[list[str]]:
    """The texts of the cells, from top to bottom."""
    texts = [text for text in axes.texts if text.get_text() not in BALANCES]
    table = [["" for _ in SHARES] for _ in range(4)]
    for text in texts:
        column, row = (round(float(v)) for v in text.get_position())
        table[row][column] = text.get_text()
    return table


def test_every_cell_holds_its_number() -> None:
    left, right = draw_stress(made()).axes[:2]
    assert numbers(left) == [["skipped", "−.420"], ["−.340", "−.260"], ["−.180", "−.100"], ["−.020", "+.060"]]
    assert numbers(right) == [["skipped", ".380"], [".460", ".540"], [".620", ".700"], [".780", ".860"]]
    assert [label.get_text() for label in left.get_xticklabels()] == ["1 %", "50 %"]
    assert [label.get_text() for label in left.get_yticklabels()] == [*ORDERS, *ORDERS]
    assert "running minus frozen" in left.get_title()


@pytest.mark.parametrize(("lowest", "depth"), ((0.30, 0.2), (0.24 + 0.48, 0.48), (0.80 - 0.32, 0.24)))
def test_zero_is_the_middle_of_the_colours_and_one_bad_cell_does_not_make_the_rest_pale(
    lowest: float, depth: float
) -> None:
    image = draw_stress(made(lowest)).axes[0].collections[0]
    assert isinstance(image, QuadMesh)
    low, high = image.get_clim()
    assert low == -high
    assert high == pytest.approx(min(depth, 0.2))
    red, green, blue, _ = image.to_rgba(np.array([[0.0]]))[0, 0]
    assert min(red, green, blue) > 0.95, "no difference is white"
    loss, gain = image.to_rgba(np.array([[-high, high]]))[0]
    assert loss[0] > loss[2] + 0.2, "a loss is red"
    assert gain[2] > gain[0] + 0.2, "a gain is blue"


def test_the_picture_can_be_read_and_written_in_every_format(tmp_path: Path) -> None:
    for suffix, begins in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        path = tmp_path / f"map{suffix}"
        save_stress_map(made(), path)
        assert path.read_bytes().startswith(begins)
    pixels = imread(tmp_path / "map.png")
    assert pixels.shape[1] > 600
    assert pixels[..., :3].std() > 0.1, "not an empty page"
    assert len(list(tmp_path.iterdir())) == 3


def test_several_sets_are_counted() -> None:
    result = made()
    other = [row._replace(ood_set="far") for row in result.rows]
    assert draw_stress(StressResult([*result.rows, *other])).get_suptitle() == "mean of 2 OoD sets"


def test_a_grid_of_skipped_cells_is_still_a_picture(tmp_path: Path) -> None:
    no_numbers = {"auroc": math.nan, "fpr95_out": math.nan}
    rows = [row._replace(metrics=no_numbers, skipped="too few rows") for row in made().rows]
    save_stress_map(StressResult(rows), tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_a_cell_in_which_one_method_has_no_number_is_empty() -> None:
    rows = made().rows
    rows[-1] = rows[-1]._replace(skipped="no class is predicted on both sides")
    left, right = draw_stress(StressResult(rows)).axes[:2]
    assert [numbers(axes)[-1][-1] for axes in (left, right)] == ["skipped", ".860"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ns.InvalidInput, match="no method with running statistics and its frozen form"):
        draw_stress(StressResult([row for row in made().rows if row.method == FROZEN]))
    with pytest.raises(ns.InvalidInput, match=r"must end in .png, .svg, .pdf; got 'map.jpg'"):
        save_stress_map(made(), "map.jpg")
    assert list(tmp_path.iterdir()) == []


def test_drawing_touches_no_global_state() -> None:
    code = "import sys, normscale.bench.report.figures.stress_map; print('matplotlib.pyplot' in sys.modules)"
    assert python(code).stdout == "False\n"
