"""A threshold serves the mode it runs in: known rows are flagged as rarely at the start of a stream as later."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.registry import make_detector
from our_detectors import OUR_DETECTORS

UNLIKE_FROZEN = {"oodd"}
"""Its streamed score is another quantity than the one as fitted; `normscale fit` says so."""
RUNNING = [name for name in OUR_DETECTORS if make_detector(name)._runs and name not in UNLIKE_FROZEN]
SHUFFLES = 60


def flagged(detector: ns.Detector, rows: ns.ModelOutputs, shuffles: int = SHUFFLES) -> np.ndarray:
    """(shuffles, n) which rows of known inputs are flagged, by their place in a stream."""
    found = []
    for seed in range(shuffles):
        stream = rows[np.random.default_rng(seed).permutation(len(rows))]
        fresh = copy.copy(detector)
        found.append(fresh.predict(stream, scores=fresh.stream(stream)))
    return np.array(found)


@pytest.fixture(scope="module")
def sample() -> ns.Sample:
    return ns.load_sample()


@pytest.mark.parametrize("name", [*RUNNING, "present_classes+norm_scaling", "norm_scaling+energy", "stream_aware+knn"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_stream_begins_as_it_goes_on(name: str, streamed: bool, sample: ns.Sample) -> None:
    detector = make_detector(name).fit(sample.train).set_threshold(sample.validation, keep=0.95, stream=streamed)
    shares = flagged(detector, sample.test)
    frozen = detector.predict(sample.test).mean()  # .06 to .09: the threshold stands on 216 rows
    assert shares[:, :10].mean() < max(0.05, frozen) + 0.035
    assert shares[:, :100].mean() < max(0.05, frozen) + 0.025


@pytest.mark.parametrize("classes", [3, 30, 214])
def test_with_many_classes_too(classes: int) -> None:
    rng = np.random.default_rng(0)

    def draw(n: int) -> ns.ModelOutputs:
        sure = rng.gamma(6.0, 1.2, n)[:, None] * np.eye(classes)[rng.integers(0, classes, n)]
        return ns.ModelOutputs(rng.normal(size=(n, classes)) + sure)

    detector = ns.NormScaling().fit(draw(20 * classes + 500)).set_threshold(draw(1000))
    rows = draw(1000)
    known = detector.predict(rows)
    orders = [np.random.default_rng(seed).permutation(len(rows)) for seed in range(SHUFFLES)]
    frozen = np.array([known[order] for order in orders])  # the same rows, scored alone
    shares = flagged(detector, rows)
    assert abs(known.mean() - 0.05) < 0.03
    assert abs(shares[:, 0].mean() - frozen[:, 0].mean()) < 0.02
    assert abs(shares[:, :10].mean() - frozen[:, :10].mean()) < 0.01
    assert abs(shares[:, :100].mean() - frozen[:, :100].mean()) < 0.01


def test_without_a_threshold_norm_scaling_is_the_papers(sample: ns.Sample) -> None:
    plain, decided = (ns.NormScaling().fit(sample.train) for _ in range(2))
    assert plain.training_weight_ == 1.0
    assert decided.set_threshold(sample.validation).training_weight_ == 80.0  # ten rows a class
    assert decided.fit(sample.train).training_weight_ == 1.0
    np.testing.assert_array_equal(plain.stream(sample.test), decided.stream(sample.test))


def test_a_large_prior_stays(sample: ns.Sample) -> None:
    detector = ns.NormScaling(prior_weight=500.0).fit(sample.train).set_threshold(sample.validation)
    assert detector.training_weight_ == detector.running_.weight == 500.0


def test_a_threshold_in_the_middle_of_a_stream_forgets_no_row(sample: ns.Sample) -> None:
    late, early = (ns.NormScaling().fit(sample.train) for _ in range(2))
    late.stream(sample.test)
    late.set_threshold(sample.validation)
    early.set_threshold(sample.validation).stream(sample.test)
    assert late.n_streamed_ == early.n_streamed_ == len(sample.test)
    np.testing.assert_allclose(late.running_.mean, early.running_.mean, rtol=1e-12)
    np.testing.assert_allclose(late.running_.std, early.running_.std, rtol=1e-12)


def test_a_threshold_that_cannot_be_set_changes_nothing(sample: ns.Sample) -> None:
    detector = ns.NormScaling().fit(sample.train)
    with pytest.raises(ns.InvalidInput, match="keep"):
        detector.set_threshold(sample.validation, keep=2.0)
    assert detector.training_weight_ == 1.0
    assert detector.threshold_ is None


def test_it_is_kept_in_the_file(sample: ns.Sample, tmp_path: Path) -> None:
    detector = ns.NormScaling(prior_weight=0.3).fit(sample.train).set_threshold(sample.validation)
    detector.save(tmp_path / "d.safetensors")
    again = ns.load_detector(tmp_path / "d.safetensors")
    assert isinstance(again, ns.NormScaling)
    assert again.training_weight_ == 80.0
    np.testing.assert_array_equal(again.stream(sample.test), detector.stream(sample.test))
    assert again.reset().n_streamed_ == 0


def test_a_regression_begins_calmly_only_with_a_threshold(sample: ns.Sample, tmp_path: Path) -> None:
    plain, decided = (ns.RTL().fit(sample.train) for _ in range(2))
    decided.set_threshold(sample.validation)
    assert not np.allclose(copy.copy(plain).stream(sample.test), copy.copy(decided).stream(sample.test))
    decided.save(tmp_path / "d.safetensors")
    again = ns.load_detector(tmp_path / "d.safetensors")
    expected = decided.stream(sample.test)
    np.testing.assert_array_equal(again.stream(sample.test), expected)
    np.testing.assert_allclose(again.reset().stream(sample.test), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(decided.fit(sample.train).stream(sample.test), plain.stream(sample.test))


def test_a_late_threshold_forgets_no_row_of_a_regression(sample: ns.Sample) -> None:
    late, early = (ns.RTL().fit(sample.train) for _ in range(2))
    late.stream(sample.test)
    late.set_threshold(sample.validation)
    early.set_threshold(sample.validation).stream(sample.test)
    np.testing.assert_allclose(late.state_.weights, early.state_.weights, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(late.state_.covariance, early.state_.covariance, rtol=1e-6, atol=1e-10)
