"""Rows whose logits lie outside of all that training showed: noticed, and flagged whatever their score."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.baseline import FAR_SCORE, TrainingBaseline
from normscale.state import record_arrays, record_of, same_records

SAMPLE = ns.load_sample()
LOGITS = SAMPLE.test.logits.astype(np.float64)
READERS = ("norm_scaling", "robust_norm_scaling", "energy", "max_logit", "stream_aware+ensemble")


def fitted(name: str) -> Any:
    return ns.make_detector(name).fit(SAMPLE.train).set_threshold(SAMPLE.test)


def scaled(factor: float) -> ns.ModelOutputs:
    return SAMPLE.test.replace(logits=factor * LOGITS)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("factor", (100.0, 1e6))
def test_a_changed_scale_is_noticed_and_flagged(name: str, factor: float) -> None:
    detector = fitted(name)
    for verb in (detector.score, detector.stream, detector.predict):
        with pytest.warns(ns.NumericalWarning, match=rf"of {len(LOGITS)} rows have logits far outside.*row 0 holds"):
            verb(scaled(factor))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ns.NumericalWarning)
        assert detector.predict(scaled(factor)).all()


@pytest.mark.parametrize("name", READERS)
def test_one_huge_logit_is_not_the_most_familiar_input(name: str) -> None:
    detector = fitted(name)
    rows = LOGITS[:20].copy()
    rows[7, 2] = 1e30
    outputs = SAMPLE.test[:20].replace(logits=rows)
    with pytest.warns(ns.NumericalWarning, match=r"1 of 20 rows .* row 7 holds 1e\+30"):
        flags = detector.predict(outputs)
    assert flags[7]
    alone = SAMPLE.test[7:8].replace(logits=rows[7:8])
    assert detector.predict(alone).tolist() == [True], "a row alone is flagged, too"
    assert detector.score(alone).tolist() == detector.stream(alone).tolist() == [FAR_SCORE]


@pytest.mark.parametrize("name", READERS)
def test_a_stream_is_not_moved_by_rows_far_outside(name: str) -> None:
    one, other = fitted(name), fitted(name)
    rows = LOGITS[:20].copy()
    rows[[3, 7], 2] = 1e30, -1e30
    outputs = SAMPLE.test[:20].replace(logits=rows)
    with pytest.warns(ns.NumericalWarning, match="2 of 20 rows"):
        scores = one.stream(outputs)
    near = np.delete(np.arange(20), [3, 7])
    assert np.array_equal(scores[near], other.stream(outputs[near]))
    assert (scores[[3, 7]] == FAR_SCORE).all()
    assert same_records(one.state_, other.state_)


def test_a_bad_row_beside_one_far_outside_is_named_by_its_place() -> None:
    detector, rows = fitted("norm_scaling"), LOGITS[:6].copy()
    rows[1, 0], rows[4, 2] = 1e30, np.nan
    with pytest.raises(ns.InvalidInput, match="row 4 holds NaN"), pytest.warns(ns.NumericalWarning):
        detector.score(rows)
    with pytest.warns(ns.NumericalWarning):
        scores = detector.score(rows, on_invalid="skip")
    assert scores[1] == FAR_SCORE
    assert np.isnan(scores).tolist() == [False, False, False, False, True, False]


def test_noise_of_another_scale_is_noticed() -> None:
    noise = np.random.default_rng(0).normal(0.0, 50.0, LOGITS.shape)
    detector = fitted("norm_scaling")
    with pytest.warns(ns.NumericalWarning, match="far outside"):
        assert detector.predict(noise).mean() > 0.95


@pytest.mark.parametrize("n_train", (40, 200, len(SAMPLE.train)))
def test_honest_rows_and_ordinary_ood_are_not_far_outside(n_train: int) -> None:
    rows = np.random.default_rng(1).permutation(len(SAMPLE.train))[:n_train]
    detector: Any = ns.NormScaling().fit(SAMPLE.train[rows])
    for outputs in (SAMPLE.train, SAMPLE.test, *SAMPLE.ood.values()):
        detector.score(outputs)  # warnings are errors here
        assert not detector._baseline.far_outside(outputs.logits).any()


def test_extremes_merge_and_are_stored() -> None:
    rows = np.random.default_rng(2).normal(size=(40, 3)).astype(np.float16)
    one, two, both = (TrainingBaseline.of(ns.ModelOutputs(part)) for part in (rows[:10], rows[10:], rows))
    for baseline in (one.merge(two), two.merge(one), record_of(TrainingBaseline, record_arrays(both))):
        assert np.array_equal(baseline.extremes, both.extremes)
    assert both.far_outside(np.array([[6e4, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=np.float16)).tolist() == [True, False]


def test_a_detector_that_reads_no_logits_does_not_look_at_them() -> None:
    detector = ns.KNN().fit(SAMPLE.train).set_threshold(SAMPLE.test)
    assert np.array_equal(detector.predict(scaled(100.0)), detector.predict(SAMPLE.test))


@pytest.mark.parametrize("distinct", (5000, 3))
def test_the_rows_that_are_kept_depend_on_no_order_and_no_split(distinct: int) -> None:
    random = np.random.default_rng(3)
    rows = random.normal(size=(distinct, 4))[random.integers(0, distinct, 5000)]
    whole = TrainingBaseline.of(ns.ModelOutputs(rows), keep_rows=True)
    shuffled = rows[random.permutation(5000)]
    parts = [TrainingBaseline.of(ns.ModelOutputs(part), keep_rows=True) for part in np.split(shuffled, [10, 3000])]
    for baseline in (parts[0].merge(parts[1]).merge(parts[2]), parts[2].merge(parts[0].merge(parts[1]))):
        assert np.array_equal(baseline.kept["logits"], whole.kept["logits"])
    assert whole.kept["logits"].shape == (2000, 4)
    assert set(map(bytes, whole.kept["logits"])) <= set(map(bytes, rows.astype(np.float32)))
    assert TrainingBaseline.of(ns.ModelOutputs(rows)).kept == {}
