"""Norm-scaling: the paper's method, its prior, its stream, and the end-to-end equality with the oracle."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import normscale as ns
import oracles
from normscale import _kernels


@pytest.fixture(name="train")
def _train() -> Any:
    return np.random.default_rng(0).normal(1.0, 3.0, (500, 10)).astype(np.float32)


@pytest.fixture(name="test")
def _test() -> Any:
    return np.random.default_rng(1).normal(0.0, 2.0, (300, 10)).astype(np.float32)


KIND = {"msp": "log_odds", "max_logit": "max", "energy": "log_sum_exp"}


@pytest.mark.parametrize("prior_weight", (0.5, 1.0, 500.0))
@pytest.mark.parametrize("score", KIND)
def test_stream_is_update_then_score(
    kernels: _kernels.Backend, train: Any, test: Any, prior_weight: float, score: str
) -> None:
    detector = ns.NormScaling(score=score, prior_weight=prior_weight, temperature=1.3).fit(train)
    z = train.astype(np.float64)
    expected, mean, m2 = oracles.streamed(test, prior_weight, z.mean(0), z.var(0) * prior_weight, KIND[score], 1.3)
    np.testing.assert_allclose(detector.stream(test), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(detector.running_.mean, mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(detector.running_.m2, m2, rtol=1e-10)
    assert detector.n_streamed_ == 300


def test_the_training_set_counts_as_one_row_in_the_paper(train: Any) -> None:
    """Not mu_t = (mu_{t-1} + z)/(t + 1), as printed, but mu_t = (t mu_{t-1} + z)/(t + 1)."""
    detector = ns.NormScaling().fit(train)
    row = np.full((1, 10), 7.0)
    detector.stream(row)
    np.testing.assert_allclose(detector.running_.mean, (train.astype(np.float64).mean(0) + 7.0) / 2, rtol=1e-12)
    detector.stream(row)
    np.testing.assert_allclose(detector.running_.mean, (train.astype(np.float64).mean(0) + 14.0) / 3, rtol=1e-12)


def test_statistics_are_over_all_training_rows(train: Any) -> None:
    detector = ns.NormScaling().fit(train)
    z = train.astype(np.float64)
    np.testing.assert_allclose(detector.scale(train), (z - z.mean(0)) / z.std(0), rtol=1e-9, atol=1e-9)


def test_infinite_prior_weight_is_frozen(train: Any, test: Any) -> None:
    frozen = ns.NormScaling(prior_weight=math.inf).fit(train)
    assert np.array_equal(frozen.stream(test), frozen.score(test))
    assert frozen.n_streamed_ == 0
    np.testing.assert_allclose(frozen.score(test), ns.NormScaling().fit(train).score(test), rtol=1e-12)


@given(st.lists(st.integers(0, 300), max_size=8), st.integers(1, 3))
def test_any_split_gives_the_same_stream(cuts: list[int], threads: int) -> None:
    rows = np.random.default_rng(5).normal(0.0, 2.0, (300, 10)).astype(np.float32)
    whole = ns.NormScaling().fit(rows[:50] * 2)
    expected = whole.stream(rows)
    parts = ns.NormScaling().fit(rows[:50] * 2)
    edges = [0, *sorted(cuts), 300]
    got = np.concatenate([parts.stream(rows[a:b], threads=threads) for a, b in pairwise(edges)])
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(parts.running_.m2, whole.running_.m2, rtol=1e-12)


def test_permuting_the_classes_changes_nothing(train: Any, test: Any) -> None:
    order = np.random.default_rng(2).permutation(10)
    a = ns.NormScaling().fit(train).stream(test)
    b = ns.NormScaling().fit(train[:, order]).stream(test[:, order])
    np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def test_norm_scaling_undoes_any_shift_and_scale_of_a_class(train: Any, test: Any) -> None:
    shift, scale = np.linspace(-5, 5, 10), np.geomspace(0.1, 10, 10)
    a = ns.NormScaling().fit(train.astype(float)).stream(test.astype(float))
    b = ns.NormScaling().fit(train * scale + shift).stream(test * scale + shift)
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_merge_of_two_workers_equals_one_that_saw_both(train: Any, test: Any) -> None:
    first, second, both = (ns.NormScaling().fit(train) for _ in range(3))
    first.stream(test[:100])
    second.stream(test[100:])
    both.stream(test)
    merged = first.merge(first.state_, second.state_)
    np.testing.assert_allclose(merged.moments.mean, both.running_.mean, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(merged.moments.m2, both.running_.m2, rtol=1e-11)
    assert first.n_streamed_ == 100, "merging must not change its parts"
    first.state_ = merged
    assert first.n_streamed_ == 300


def test_reset_forgets_the_stream(train: Any, test: Any) -> None:
    detector = ns.NormScaling().fit(train)
    before = detector.score(test)
    detector.stream(test)
    assert not np.allclose(detector.score(test), before)
    assert np.array_equal(detector.reset().score(test), before)


def test_a_loaded_guard_goes_on_where_it_stopped(train: Any, test: Any, tmp_path: Path) -> None:
    guard = ns.NormScaling().fit(train).set_threshold(test, keep=0.9)
    guard.stream(test[:150])
    guard.save(tmp_path / "guard.safetensors")
    loaded = ns.load_detector(tmp_path / "guard.safetensors")
    assert np.array_equal(loaded.stream(test[150:]), guard.stream(test[150:]))
    assert np.array_equal(loaded.predict(test), guard.predict(test))


def test_calibrating_on_a_stream_moves_no_statistics(train: Any, test: Any) -> None:
    detector = ns.NormScaling().fit(train)
    detector.set_threshold(test, keep=0.8, stream=True)
    assert detector.n_streamed_ == 0
    assert detector.threshold_ is not None
    assert (detector.stream(test) <= detector.threshold_.value).mean() >= 0.8


def test_one_training_row_and_constant_classes_are_defined() -> None:
    detector = ns.NormScaling().fit([[1.0, 2.0, 3.0]])
    np.testing.assert_allclose(detector.score([[5.0, -1.0, 0.0]]), [math.log(2)])
    detector.stream([[5.0, 2.0, 3.0]])
    assert np.isfinite(detector.stream([[5.0, 2.0, 3.0], [0.0, 2.0, 3.0]])).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        ({"score": "mps"}, "unknown detector 'mps'. Did you mean 'msp'"),
        ({"prior_weight": 0.0}, "prior_weight must be greater than 0"),
        ({"prior_weight": -1.0}, "prior_weight must be greater than 0"),
        ({"temperature": math.inf}, "temperature must be finite"),
    ),
)
def test_parameters_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ns.NormscaleError, match=message):
        ns.NormScaling(**arguments)


def test_a_nan_is_named_and_leaves_the_running_state_alone(train: Any, test: Any) -> None:
    detector = ns.NormScaling().fit(train)
    detector.stream(test[:20])
    kept = detector.running_.copy()
    bad = test.copy()
    bad[17, 3] = np.nan
    with pytest.raises(
        ns.InvalidInput,
        match=r'logits row 17 holds NaN in column 3; nothing was taken in\. Drop the row or pass on_invalid="skip"\.',
    ):
        detector.stream(bad)
    assert detector.running_ == kept
    with pytest.raises(ns.InvalidInput, match="on_invalid must be one of"):
        detector.stream(test, on_invalid="ignore")
    assert detector.running_ == kept


@pytest.mark.parametrize("dtype", (">f4", ">f8", np.float16, np.int64))
def test_a_single_row_of_any_dtype_streams(kernels: _kernels.Backend, train: Any, dtype: Any) -> None:
    row = np.round(train[:1]).astype(dtype)
    expected = ns.NormScaling().fit(train).stream(row.astype(np.float64))
    np.testing.assert_allclose(ns.NormScaling().fit(train).stream(row), expected, rtol=1e-12)


def test_another_score_never_holds_the_scaled_logits_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal(size=(30_000, 50))
    detector = ns.make_detector("norm_scaling+entropy").fit(rows)
    for use in (detector.stream, detector.score):
        use(rows[:10])
        tracemalloc.start()
        use(rows)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 0.75 * rows.nbytes


def test_the_update_as_printed_to_the_letter(train: Any, test: Any) -> None:
    rows = test[:7].astype(np.float64)
    detector = ns.NormScaling(update="as_printed").fit(train)
    scores = np.concatenate([detector.stream(rows[:3]), detector.stream(rows[3:])])
    for j in range(rows.shape[1]):
        mu = Fraction(float(detector.training_.mean[j]))
        variance = Fraction(float(detector.training_.variance[j]))
        for t, z in enumerate(map(Fraction, rows[:, j]), start=1):
            mu = (mu + z) / (t + 1)
            variance = (variance + (z - mu) ** 2) / (t + 1)
        assert detector.running_.mean[j] == pytest.approx(float(mu), rel=1e-12)
        assert detector.running_.variance[j] == pytest.approx(float(variance), rel=1e-12)
    assert detector.n_streamed_ == 7
    last = ns.msp_score((rows[-1:] - detector.running_.mean) / detector.running_.std)
    assert scores[-1] == pytest.approx(float(last[0]), rel=1e-12)


def test_the_update_as_printed_does_not_merge(train: Any) -> None:
    detector = ns.NormScaling(update="as_printed").fit(train)
    with pytest.raises(ns.InvalidInput, match="depends on the order of its rows"):
        detector.merge(detector.start(), detector.start())


def test_the_update_as_printed_fails_where_the_running_mean_works() -> None:
    """Rows of 6 have the mean 6; as printed, what was seen before is divided again at every step."""
    printed, running = (
        ns.NormScaling(update=one).fit([[5.0, 6.0], [7.0, 6.0]]) for one in ("as_printed", "running_mean")
    )
    for one in (printed, running):
        one.stream([[6.0, 6.0]] * 99)
    assert printed.running_.mean.max() < 0.1
    np.testing.assert_allclose(running.running_.mean, 6.0)
    sample = ns.load_sample()
    aurocs = {}
    for update in ("as_printed", "running_mean"):
        (row,) = (
            row
            for row in ns.compare(
                sample.test,
                {"noise": sample.ood["uniform_noise"]},
                train=sample.train,
                detectors=[f"norm_scaling:update={update}"],
            )
            if row.setting == "stream"
        )
        aurocs[update] = row.auroc
    assert aurocs["as_printed"] < aurocs["running_mean"] - 0.1


def test_an_unknown_update_is_refused_and_a_row_that_is_not_finite_changes_nothing(train: Any) -> None:
    with pytest.raises(ns.InvalidInput, match="update"):
        ns.NormScaling(update="printed")
    detector = ns.NormScaling(update="as_printed").fit(train)
    rows = np.zeros((3, detector.training_.mean.size))
    rows[1, 0] = np.nan
    with pytest.raises(ns.InvalidInput, match="row 1"):
        detector.stream(rows)
    assert detector.n_streamed_ == 0
