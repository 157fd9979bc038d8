from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from normscale.errors import InvalidInput, NumericalWarning
from normscale.metrics import ece_curve, expected_calibration_error, fit_temperature, nll, temperature

quick = settings(deadline=None, max_examples=25)

# slow and obvious definitions


def slow_nll(logits: Sequence[Sequence[float]], labels: Sequence[int], temperature: float) -> float:
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        scaled = [z / temperature for z in row]
        top = max(scaled)
        total += top + math.log(math.fsum(math.exp(z - top) for z in scaled)) - scaled[label]
    return total / len(labels)


def sample(seed: int, n: int = 300, classes: int = 5, scale: float = 3.0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Labels drawn from softmax(z), logits handed out as scale * z: the temperature is about scale."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, classes)) * 2
    labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return scale * z, labels


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_matches_a_foreign_minimiser(scale: float, dtype: Any) -> None:
    logits, labels = sample(1, scale=scale)
    logits = logits.astype(dtype)
    found = fit_temperature(logits, labels)
    reference = minimize_scalar(
        lambda log_t: slow_nll(logits.astype(float).tolist(), labels.tolist(), math.exp(log_t)),
        bounds=(math.log(1e-2), math.log(1e2)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert found == pytest.approx(math.exp(reference.x), rel=1e-6)  # a minimum is flat: half the digits
    assert nll(logits, labels, found) <= reference.fun + 1e-13


@pytest.mark.parametrize("margin", [0.01, 0.5, 2.0, 40.0])
def test_matches_the_closed_form(margin: float) -> None:
    rows = [[margin, 0.0]] * 3 + [[0.0, margin]] * 2
    found = fit_temperature(rows, [0, 0, 1, 1, 1], bounds=(1e-4, 1e4))  # 4 of 5 right: margin / T = log 4
    assert found == pytest.approx(margin / math.log(4), rel=1e-12)


@quick
@given(st.integers(0, 10_000), st.floats(0.1, 10))
def test_scaling_the_logits_scales_the_temperature(seed: int, scale: float) -> None:
    logits, labels = sample(seed, n=60)
    found = fit_temperature(logits, labels, bounds=(1e-6, 1e6))
    assert fit_temperature(scale * logits, labels, bounds=(1e-6, 1e6)) == pytest.approx(scale * found, rel=1e-11)


def test_shifting_a_row_changes_nothing() -> None:
    logits, labels = sample(4)
    shifted = logits + 1024.0 * np.arange(len(labels))[:, None]
    assert fit_temperature(shifted, labels) == pytest.approx(fit_temperature(logits, labels), rel=1e-9)


def test_blocks_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = sample(5)
    sweep = [0.5, 1.0, 3.0]
    whole = fit_temperature(logits, labels), nll(logits, labels, 2.0), ece_curve(logits, labels, sweep)
    monkeypatch.setattr(temperature, "_BLOCK_ELEMENTS", 7)
    assert fit_temperature(logits, labels) == pytest.approx(whole[0], rel=1e-12)
    assert nll(logits, labels, 2.0) == pytest.approx(whole[1], rel=1e-13)
    np.testing.assert_allclose(ece_curve(logits, labels, sweep).ece, whole[2].ece, atol=1e-14)


def test_every_row_right_ends_at_the_lower_bound_with_a_reason() -> None:
    with pytest.warns(NumericalWarning, match=r"lower bound 0.01: perhaps every row is right"):
        assert fit_temperature([[3.0, 0.0], [0.0, 1.0]], [0, 1]) == 1e-2
    with pytest.warns(NumericalWarning, match="lower bound"):  # so right that the slope underflows to 0
        assert fit_temperature([[30.0, 0.0], [0.0, 30.0]], [0, 1]) == 1e-2


def test_worse_than_chance_ends_at_the_upper_bound_with_a_reason() -> None:
    with pytest.warns(NumericalWarning, match="upper bound 100: are the logits worse than chance"):
        assert fit_temperature([[3.0, 0.0], [0.0, 1.0]], [1, 0]) == 1e2


def test_optimum_outside_the_bounds_gives_the_nearer_bound() -> None:
    logits, labels = sample(6, scale=3.0)
    with pytest.warns(NumericalWarning, match="upper bound 1.5"):
        assert fit_temperature(logits, labels, bounds=(0.5, 1.5)) == 1.5
    with pytest.warns(NumericalWarning, match="lower bound 10"):
        assert fit_temperature(logits, labels, bounds=(10, 20)) == 10.0


def test_constant_rows_leave_the_temperature_open() -> None:
    with pytest.warns(NumericalWarning, match="the same at every temperature"):
        assert fit_temperature([[5.0, 5.0]], [0]) == 1.0


def test_extreme_logits_stay_finite() -> None:
    rows = [[1e140, 0.0], [1e140, 0.0], [0.0, 1e140], [0.0, 1e140]]
    assert fit_temperature(rows, [0, 0, 1, 0], bounds=(1e130, 1e150)) == pytest.approx(1e140 / math.log(3), rel=1e-9)
    assert nll([[1e4, 0.0]], [1]) == 1e4
    assert nll([[1.0, 0.0]], [1], 1e-320) == math.inf
    assert nll([[1.0, 0.0]], [0], 1e-320) == 0.0


@quick
@given(st.integers(0, 10_000), st.floats(0.05, 20))
def test_nll_matches_the_definition(seed: int, t: float) -> None:
    logits, labels = sample(seed, n=20)
    expected = slow_nll(logits.tolist(), labels.tolist(), t)
    assert nll(logits, labels, t) == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_ece_curve_is_ece_of_the_softmax_at_each_temperature() -> None:
    logits, labels = sample(8, n=500, scale=2.0)
    sweep = np.linspace(0.5, 4, 8)
    curve = ece_curve(logits, labels, sweep, bins=10)
    for t, ece in zip(sweep, curve.ece, strict=True):
        p = np.exp(logits / t)
        p /= p.sum(axis=1, keepdims=True)
        expected = expected_calibration_error(p.max(axis=1), p.argmax(axis=1) == labels, bins=10)
        assert ece == pytest.approx(expected, abs=1e-12)
    assert curve.best_ece == curve.ece.min()
    assert curve.best_temperature == sweep[curve.ece.argmin()]
    assert abs(curve.best_temperature - 2.0) <= 0.5  # the labels were drawn at temperature 2


@pytest.mark.parametrize("function", [nll, fit_temperature, lambda z, y: ece_curve(z, y, [1.0])])
@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (np.zeros((0, 3)), [], "at least 1 row"),
        ([[1.0, math.nan]], [0], "row 0 holds NaN in column 1"),
        ([[1.0, 2.0], [math.inf, 0.0]], [0, 0], "row 1 holds infinity in column 0"),
        ([[1e200, 0.0]], [0], "too large"),
        ([[1.0, 2.0]], [2], r"labels\[0\] is 2"),
        ([[1.0, 2.0]], [0, 1], "labels must have one entry per row"),
        ([1.0, 2.0], [0], "logits must have shape"),
    ],
)
def test_bad_arguments_are_refused(function: Any, logits: Any, labels: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        function(logits, labels)


def test_bad_temperatures_are_refused() -> None:
    rows, labels = [[1.0, 0.0]], [0]
    with pytest.raises(InvalidInput, match="temperature must be finite and greater than 0"):
        nll(rows, labels, 0.0)
    with pytest.raises(InvalidInput, match=r"temperatures\[1\] is -1"):
        ece_curve(rows, labels, [1.0, -1.0])
    with pytest.raises(InvalidInput, match="bounds must be"):
        fit_temperature(rows, labels, bounds=(2.0, 1.0))
    with pytest.raises(InvalidInput, match="bins"):
        ece_curve(rows, labels, [1.0], bins=0)
