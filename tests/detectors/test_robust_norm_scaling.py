"""Robust norm-scaling: equal to a slow oracle, safe on in-distribution streams, and better where OoD gathers."""

from __future__ import annotations

import copy
import math
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import normscale as ns
import two_groups_oracle as oracle
from normscale import _kernels
from normscale.detectors.partial_fit import second_half
from normscale.state import copied, load_state, save_state

N_CLASSES = 6


def inside(n: int, seed: int, classes: Any = None) -> Any:
    """Rows of a classifier that knows its classes, more or less."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, N_CLASSES, n) if classes is None else rng.choice(classes, n)
    rows = rng.normal(0.0, 1.0, (n, N_CLASSES))
    rows[np.arange(n), labels] += rng.gamma(8.0, 0.8, n)
    return rows


def outside(n: int, seed: int) -> Any:
    """Rows of no class that mostly end up as class 2, with a pattern of their own."""
    rng = np.random.default_rng(seed)
    return rng.normal(0.0, 0.8, (n, N_CLASSES)) + np.array([0.0, 1.5, 3.5, 0.0, -1.0, 0.0])


@pytest.fixture(name="train", scope="module")
def _train() -> Any:
    return inside(3000, 0)


@pytest.fixture(name="mixed", scope="module")
def _mixed() -> Any:
    rows = np.concatenate([inside(260, 1), outside(140, 2)])
    return rows[np.random.default_rng(3).permutation(400)]


def fitted(train: Any, **parameters: Any) -> ns.RobustNormScaling:
    return ns.RobustNormScaling(**parameters).fit(train)


def trained(rows: Any) -> oracle.Training:
    return oracle.Training(rows, second_half(ns.ModelOutputs(rows)))


@pytest.mark.parametrize("parameters", ({}, {"memory": 7.0, "prior_weight": 0.5, "tolerance": 1.0}))
def test_stream_equals_the_oracle(kernels: _kernels.Backend, train: Any, mixed: Any, parameters: Any) -> None:
    detector = fitted(train, **parameters)
    names = {"memory": "memory", "prior_weight": "prior", "tolerance": "tolerance"}
    expected, shift = oracle.streamed(trained(train), mixed, **{names[k]: v for k, v in parameters.items()})
    np.testing.assert_allclose(detector.stream(mixed), expected, rtol=1e-8, atol=1e-8)
    assert detector.state.covariate_shift == pytest.approx(shift, abs=1e-9)
    assert detector.n_streamed_ == 400


@pytest.mark.parametrize("factor", (0.5, 0.8))
def test_the_covariate_shift_equals_the_oracle(kernels: _kernels.Backend, train: Any, factor: float) -> None:
    detector = fitted(train)
    rows = factor * inside(300, 4)
    detector.stream(rows)
    _, expected = oracle.streamed(trained(train), rows)
    assert 0.1 < expected < 0.9
    assert detector.state.covariate_shift == pytest.approx(expected, abs=1e-9)


def test_a_class_that_training_never_predicts(kernels: _kernels.Backend, train: Any, mixed: Any) -> None:
    known = train[train.argmax(axis=1) != 2]
    expected, _ = oracle.streamed(trained(known), mixed)
    np.testing.assert_allclose(fitted(known).stream(mixed), expected, rtol=1e-8, atol=1e-8)


def test_score_is_what_stands_before_the_next_row(kernels: _kernels.Backend, train: Any, mixed: Any) -> None:
    """Fresh: confidence alone. Later: a row that changes no share scores as the stream would score it."""
    detector = fitted(train)
    training = trained(train)
    confidence = [training.confidence(row) for row in mixed]
    np.testing.assert_allclose(detector.score(mixed), np.negative(confidence), rtol=1e-9, atol=1e-9)
    detector.stream(mixed)
    taught = detector.score(mixed)
    streamed = np.array([copy.copy(detector).stream(row[None])[0] for row in mixed[:100]])
    assert np.abs(streamed - taught[:100]).max() < 0.35
    assert np.abs(taught + confidence).max() > 1.0, "the stream has taught nothing"


@settings(max_examples=25)
@given(st.lists(st.integers(0, 400), max_size=8), st.integers(1, 3))
def test_any_split_gives_the_same_stream(cuts: list[int], threads: int) -> None:
    rows = np.concatenate([outside(200, 5), inside(200, 6)]).astype(np.float32)
    whole, parts = fitted(inside(500, 7)), fitted(inside(500, 7))
    expected = whole.stream(rows)
    edges = [0, *sorted(cuts), 400]
    got = np.concatenate([parts.stream(rows[a:b], threads=threads) for a, b in pairwise(edges)])
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(parts.state_, whole.state_, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_both_kernels_agree(train: Any, mixed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from needed_extras import compiled_kernels
    from normscale._kernels import reference

    results = []
    for backend in (compiled_kernels(), reference):
        monkeypatch.setattr(_kernels, "_kernels", backend)
        detector = fitted(train)
        results.append((detector.stream(mixed), detector.score(mixed), *detector.state_))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_permuting_the_classes_changes_nothing(kernels: _kernels.Backend, train: Any, mixed: Any) -> None:
    order = np.random.default_rng(2).permutation(N_CLASSES)
    a, b = fitted(train), fitted(train[:, order])
    np.testing.assert_allclose(a.stream(mixed), b.stream(mixed[:, order]), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(a.state.id_share[order], b.state.id_share, rtol=1e-9)


def test_a_stream_like_training_stays_near_the_frozen_scores(train: Any) -> None:
    detector = fitted(train)
    rows = inside(4000, 11)
    frozen, streamed = detector.score(rows), detector.stream(rows)
    assert np.median(np.abs(streamed - frozen)) < 0.02
    assert np.corrcoef(streamed, frozen)[0, 1] > 0.98
    assert detector.state.id_share.min() > 0.8
    assert detector.state.covariate_shift < 0.1


@pytest.mark.parametrize("balance", ("balanced", "sorted", "one class 80 %", "missing"))
def test_false_alarms_stay_near_nominal(train: Any, balance: str) -> None:
    detector = fitted(train).set_threshold(inside(4000, 20), keep=0.95)
    rows = {
        "balanced": inside(4000, 21),
        "sorted": np.concatenate([inside(600, 30 + c, [c]) for c in range(N_CLASSES)]),
        "one class 80 %": inside(4000, 22, [0] * 24 + list(range(1, N_CLASSES)) + [5]),
        "missing": inside(4000, 23, [0, 1, 2, 3]),
    }[balance]
    assert detector.threshold_ is not None
    rate = float((detector.stream(rows) > detector.threshold_.value).mean())
    assert 0.5 * 0.05 < rate < 1.5 * 0.05


def test_ood_that_gathers_in_a_class_is_seen_better_than_without_the_stream(train: Any) -> None:
    good, bad = inside(1500, 12), outside(1500, 13)
    order = np.random.default_rng(14).permutation(3000)
    detector = fitted(train)
    frozen = ns.evaluate(detector.score(good), detector.score(bad)).auroc
    scores = np.empty(3000)
    scores[order] = detector.stream(np.concatenate([good, bad])[order])
    streamed = ns.evaluate(scores[:1500], scores[1500:]).auroc
    assert streamed > frozen + 0.01
    state = detector.state
    assert state.id_share[2] < 0.5 < 0.9 < state.id_share[4]
    assert state.class_share[2] > 2 * state.training_share[2]
    centred = bad - bad.mean(axis=1, keepdims=True)
    profiles, mixture = detector.fitted_.profiles, detector.state_
    ood_mean = profiles.mean[2] + mixture.ood_mean[2] / profiles.inverse_deviation[2]
    np.testing.assert_allclose(ood_mean, centred[bad.argmax(axis=1) == 2].mean(axis=0), atol=0.35)
    assert mixture.ood_weight[2] > 20.0
    assert state.covariate_shift < 0.15, "OoD beside healthy rows is no covariate shift"


def test_rows_that_are_surer_than_training_are_suspected_where_they_lie_off_their_class(train: Any) -> None:
    """Confidence alone is upside down here: noise that the network calls class 2 with more certainty than any input."""
    rng = np.random.default_rng(41)
    good, bad = inside(1500, 42), rng.normal(0.0, 0.5, (400, N_CLASSES)) + np.array([3.0, -3.0, 9.0, 3.0, -3.0, 0.0])
    order = rng.permutation(1900)
    detector = fitted(train)
    frozen = ns.evaluate(detector.score(good), detector.score(bad)).auroc
    scores = np.empty(1900)
    scores[order] = detector.stream(np.concatenate([good, bad])[order])
    assert frozen < 0.4
    assert ns.evaluate(scores[:1500], scores[1500:]).auroc > 0.8
    state = detector.state
    assert state.id_share[2] < 0.8 < 0.9 < np.delete(state.id_share, 2).min()
    assert state.covariate_shift < 0.15


def test_rows_of_a_class_that_are_surer_than_training_and_lie_on_it_are_not(train: Any) -> None:
    """Clear inputs of one class: many, and better than most that training showed."""
    detector = fitted(train)
    clear = inside(3000, 43, [2] * 8 + [0, 1])
    detector.stream(clear[detector.score(clear) < np.median(detector.score(clear))])
    assert detector.state.id_share.min() == 1.0


def test_one_dominant_class_is_no_reason_for_suspicion(train: Any) -> None:
    """Where the paper's running statistics collapse."""
    good, bad = inside(2000, 15, [3] * 8 + [0, 1]), outside(500, 16)
    order = np.random.default_rng(17).permutation(2500)

    def auroc(detector: ns.Detector) -> float:
        scores = np.empty(2500)
        scores[order] = detector.stream(np.concatenate([good, bad])[order])
        return ns.evaluate(scores[:2000], scores[2000:]).auroc

    robust, frozen = fitted(train), ns.NormScaling(prior_weight=math.inf).fit(train)
    assert auroc(robust) > auroc(frozen) - 0.002
    assert auroc(ns.NormScaling().fit(train)) < auroc(frozen)
    assert robust.state.id_share[3] > 0.9


def test_a_number_added_to_all_logits_of_a_row_changes_nothing(train: Any, mixed: Any) -> None:
    """Softmax cannot see it, so training does not fix it."""
    added = np.random.default_rng(0).normal(0.0, 1.0, (len(mixed), 1))
    detector, other = fitted(train), fitted(train)
    np.testing.assert_allclose(other.stream(mixed + added), detector.stream(mixed), rtol=1e-9, atol=1e-9)


def test_a_shift_of_every_row_is_told_from_ood(train: Any) -> None:
    shifted = fitted(train)
    shifted.stream(0.55 * inside(3000, 18))
    mixture = fitted(train)
    mixture.stream(np.concatenate([inside(1500, 19), outside(1500, 20)])[np.random.default_rng(0).permutation(3000)])
    assert shifted.state.covariate_shift > 0.4
    nothing = fitted(train)
    nothing.stream(0.1 * inside(3000, 18))
    assert nothing.state.covariate_shift > 0.7, "no row is left that looks like training"
    assert mixture.state.covariate_shift < 0.15
    assert fitted(train).state.covariate_shift == 0.0


def test_where_the_inputs_themselves_have_changed_the_stream_says_nothing(train: Any) -> None:
    """Contrast down, rows less confident: learning from them would flag them all."""
    detector = fitted(train).set_threshold(inside(4000, 20))
    faint = 0.55 * inside(4000, 21)
    flagged = detector.predict(faint, scores=detector.stream(faint))
    alone = detector.reset().predict(faint, scores=detector.score(faint))
    assert flagged[2000:].mean() <= alone[2000:].mean() + 0.01
    detector.stream(faint)
    assert detector.state.trust == 0.0
    assert np.array_equal(detector.score(faint), detector.reset().score(faint))
    assert detector.state.trust == 1.0


def test_rows_of_the_threshold_step_teach_how_new_rows_count(train: Any) -> None:
    """A network that knows its training rows better than new ones: its classes would be suspected without any OoD."""

    def new(seed: int) -> Any:
        return 0.85 * (inside(4000, seed) + np.random.default_rng(seed).normal(0.0, 0.8, (4000, N_CLASSES)))

    detector, without = fitted(train).set_threshold(new(30)), fitted(train)
    detector.stream(new(31))
    without.stream(new(31))
    assert detector.state.overall_id_share == 1.0
    assert np.median(detector.state.id_share) > np.median(without.state.id_share)
    once = detector.fitted_.profiles
    for name, scale in detector.set_threshold(new(30)).fitted_.profiles._asdict().items():
        np.testing.assert_allclose(scale, once._asdict()[name], rtol=1e-9)


def test_the_stream_is_forgotten(train: Any) -> None:
    detector = fitted(train)
    detector.stream(outside(500, 8))
    suspected = detector.state.id_share[2]
    detector.stream(inside(3000, 9))
    assert suspected < 0.3
    assert detector.state.id_share[2] > 0.8
    detector.stream(outside(50, 8))
    detector.reset()
    assert detector.n_streamed_ == 0
    assert np.array_equal(detector.score(train), fitted(train).score(train))


def test_a_nan_is_named_and_leaves_the_state_alone(kernels: _kernels.Backend, train: Any, mixed: Any) -> None:
    detector = fitted(train)
    detector.stream(mixed[:50])
    kept = copied(detector.state_)
    bad = mixed.copy()
    bad[17, 3] = np.nan
    with pytest.raises(ns.InvalidInput, match=r'logits row 17 holds NaN in column 3; nothing was taken in.*"skip"'):
        detector.stream(bad)
    with pytest.raises(ns.InvalidInput, match="on_invalid must be one of"):
        detector.stream(mixed, on_invalid="ignore")
    detector._marks_far_rows = False
    with pytest.raises(ns.InvalidInput, match="too large"):
        detector.stream(np.where(np.arange(N_CLASSES) == 1, 1.7e308, -1.7e308) + 0.0 * mixed)
    for a, b in zip(detector.state_, kept, strict=True):
        assert np.array_equal(a, b)


def test_a_row_costs_what_it_touches(kernels: _kernels.Backend) -> None:
    """One row at many classes: no copy of the classes' matrices, and no other class moves."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1200, 300)) + 6.0 * np.eye(300)[rng.integers(0, 300, 1200)]
    detector = fitted(rows)
    detector.stream(rows[:100])
    before = copied(detector.state_)
    tracemalloc.start()
    detector.stream(rows[100:101])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.25 * before.ood_mean.nbytes
    moved = np.flatnonzero((detector.state_.ood_mean != before.ood_mean).any(axis=1))
    assert moved.tolist() == [rows[100].argmax()]


def test_copies_and_files_do_not_move_with_the_stream(train: Any, mixed: Any) -> None:
    detector = fitted(train)
    detector.stream(mixed[:50])
    kept, twin = detector._pack(), copy.copy(detector)
    expected = copy.copy(detector).stream(mixed[50:])
    header, tensors = detector._stored()
    loaded = type(detector)._from_state(header, tensors)
    detector.stream(mixed[:90])
    assert twin._pack() == loaded._pack() == kept
    assert np.array_equal(twin.stream(mixed[50:]), expected)
    assert np.array_equal(loaded.stream(mixed[50:]), expected)
    assert np.array_equal(type(detector)._from_state(header, tensors).stream(mixed[50:]), expected)


def test_infinite_prior_weight_never_learns(train: Any, mixed: Any) -> None:
    frozen = fitted(train, prior_weight=math.inf)
    assert np.array_equal(frozen.stream(mixed), fitted(train).score(mixed))
    assert frozen.n_streamed_ == 0


def test_a_copy_streams_by_itself(train: Any, mixed: Any) -> None:
    detector = fitted(train)
    copy.copy(detector).stream(mixed)
    assert detector.n_streamed_ == 0
    detector.set_threshold(mixed, keep=0.8, stream=True)
    assert detector.n_streamed_ == 0
    assert detector.threshold_ is not None
    assert (detector.stream(mixed) <= detector.threshold_.value).mean() >= 0.8


def test_merging_is_refused_with_a_way_out(train: Any) -> None:
    with pytest.raises(ns.InvalidInput, match=r"order of its rows\. Stream all rows through one detector"):
        fitted(train).merge(fitted(train).start(), fitted(train).start())


def test_one_training_row_and_constant_classes_are_defined(kernels: _kernels.Backend) -> None:
    detector = ns.RobustNormScaling().fit([[1.0, 2.0, 3.0]])
    assert np.isfinite(detector.stream([[5.0, -1.0, 0.0], [0.0, 0.0, 0.0]])).all()
    constant = ns.RobustNormScaling().fit([[1.0, 0.0, 5.0], [0.0, 2.0, 5.0], [3.0, 7.0, 5.0]])
    assert np.isfinite(constant.stream([[9.0, 2.0, 5.0], [0.0, 2.0, 6.0]] * 50)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        ({"memory": 1.0}, "memory must be at least 2 rows; got 1.0"),
        ({"memory": math.inf}, "memory must be finite"),
        ({"prior_weight": 0.0}, "prior_weight must be greater than 0"),
        ({"tolerance": 80}, r"tolerance must lie in \(0, 1\]; got 80. For 80 % write 0.8"),
    ),
)
def test_parameters_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ns.InvalidInput, match=message):
        ns.RobustNormScaling(**arguments)


@pytest.mark.parametrize(
    ("name", "damage"),
    (
        ("state.ood_variance", lambda a: -a - 1.0),
        ("state.seen", lambda a: a[:-1]),
        ("fitted.profiles.mean", lambda a: a[:, :-1]),
        ("fitted.profiles.median", lambda a: a * np.nan),
    ),
)
def test_a_damaged_file_is_refused(train: Any, mixed: Any, tmp_path: Path, name: str, damage: Any) -> None:
    path = tmp_path / "guard.safetensors"
    detector = fitted(train)
    detector.stream(mixed)
    detector.save(path)
    header, tensors = load_state(path)
    save_state(path, header, {**tensors, name: damage(tensors[name])})
    with pytest.raises(ns.FileFormatError, match=f"damaged: {name.rpartition('.')[0]}[.a-z_]* must"):
        ns.load_detector(path)


def test_a_loaded_guard_goes_on_where_it_stopped(train: Any, mixed: Any, tmp_path: Path) -> None:
    guard = fitted(train, memory=30.0)
    guard.stream(mixed[:150])
    guard.save(tmp_path / "guard.safetensors")
    loaded = ns.load_detector(tmp_path / "guard.safetensors")
    assert np.array_equal(loaded.stream(mixed[150:]), guard.stream(mixed[150:]))
