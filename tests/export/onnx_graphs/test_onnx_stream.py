"""The stateful form: any split of a stream into batches gives what the detector gives row by row."""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import normscale as ns
from export.onnx_graphs.classifiers import CLASSES, logits, passing, training
from normscale._kernels import BlockState
from normscale.export.onnx import DetectorSession, attach_detector, export_with_detector, initial_state
from oracles import streamed

SCORES = {"msp": "log_odds", "max_logit": "max", "energy": "log_sum_exp"}
STATE = ("detector_weight", "detector_mean", "detector_m2")

pytestmark = pytest.mark.filterwarnings("ignore:.*far outside of what training showed")  # made-up rows are


def state_of(detector: ns.NormScaling) -> dict[str, np.ndarray]:
    weight, mean, m2 = detector.running_.state
    return dict(zip(STATE, (np.array([weight]), mean, m2), strict=True))


class Runner:
    """The plain protocol: whoever runs the model carries the state from call to call."""

    def __init__(self, detector: ns.NormScaling) -> None:
        model = attach_detector(passing(np.float64), detector, stateful=True).model
        onnx.checker.check_model(model, full_check=True)
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.state = initial_state(model)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        names = ["ood_score", *(f"{name}_next" for name in STATE)]
        scores, *after = self.session.run(names, {"image": rows, **self.state})
        self.state = dict(zip(STATE, after, strict=True))
        return np.asarray(scores)

    def agrees_with(self, detector: ns.NormScaling, rtol: float = 1e-12) -> None:
        for name, expected in state_of(detector).items():
            np.testing.assert_allclose(self.state[name], expected, rtol=rtol)


RUNNERS = {
    (score, prior): (detector, Runner(detector))
    for score in SCORES
    for prior in (1e-3, 1.0, 200.0)
    for detector in [ns.NormScaling(score, prior, 0.7).fit(training())]
}


@settings(max_examples=60)
@given(
    which=st.sampled_from(sorted(RUNNERS)),
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    offset=st.sampled_from((0.0, -50.0, 1e4)),
    bad=st.lists(st.integers(0, 40), max_size=4),
    seed=st.integers(0, 1000),
)
def test_any_split_streams_as_the_detector_does(
    which: tuple[str, float], sizes: list[int], offset: float, bad: list[int], seed: int
) -> None:
    start, runner = RUNNERS[which]
    detector = copy.copy(start)
    runner.state = state_of(detector)
    stream = logits(sum(sizes), seed=seed) + offset
    for row in bad:
        stream[row : row + 1, row % CLASSES] = (np.nan, np.inf)[row % 2]
    got = [runner(part) for part in np.split(stream, np.cumsum(sizes)[:-1])]
    expected = detector.stream(stream, on_invalid="skip")
    np.testing.assert_allclose(np.concatenate(got), expected, rtol=1e-9, atol=1e-9)
    runner.agrees_with(detector, rtol=1e-10)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("size", (200, 1))
def test_agrees_with_the_textbook_where_digits_are_scarce(score: str, size: int) -> None:
    """Large, nearly equal numbers, far from where a light prior stands."""
    detector = ns.NormScaling(score, 0.01).fit(training())
    detector._marks_far_rows = False
    stream = 1e5 + 1e-2 * np.random.default_rng(0).normal(size=(200, CLASSES))
    runner = Runner(detector)
    got = np.concatenate([runner(stream[a : a + size]) for a in range(0, 200, size)])
    expected, mean, m2 = streamed(stream, 0.01, detector.running_.mean, detector.running_.m2, SCORES[score])
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_allclose(runner.state["detector_mean"], mean, rtol=1e-14)
    np.testing.assert_allclose(runner.state["detector_m2"], m2, rtol=1e-9)


def test_near_equal_numbers_around_a_prior_of_the_same_kind() -> None:
    """Judged by the same numbers less their common part, which is exact; numpy itself is 4e-5 away here."""
    rng = np.random.default_rng(1)
    train, stream = (1e7 + 1e-3 * rng.normal(size=(n, CLASSES)) for n in (50, 5000))
    detector = ns.NormScaling("max_logit").fit(train)
    detector._marks_far_rows = False
    runner = Runner(detector)
    weight, mean, m2 = detector.state_.moments
    detector.state_ = detector.state_._replace(moments=BlockState(weight, mean - 1e7, m2))
    np.testing.assert_allclose(runner(stream), detector.stream(stream - 1e7), atol=2e-6)
    np.testing.assert_allclose(runner.state["detector_m2"], detector.running_.m2, rtol=1e-6)


def test_constant_classes_scale_to_zero() -> None:
    train = training().logits.copy()
    train[:, 1] = 0.1
    detector = ns.NormScaling().fit(train)
    runner = Runner(detector)
    stream = logits(20)
    stream[:10, 1] = 0.1
    np.testing.assert_allclose(runner(stream), detector.stream(stream), rtol=1e-9)
    runner.agrees_with(detector)


def test_bad_rows_leave_no_trace_not_even_alone() -> None:
    detector = ns.NormScaling(prior_weight=0.1).fit(training())
    detector._marks_far_rows = False
    runner = Runner(detector)
    before = {name: value.copy() for name, value in runner.state.items()}
    assert np.isnan(runner(np.full((3, CLASSES), np.nan))).all()
    assert runner(np.zeros((0, CLASSES))).shape == (0,)
    huge = logits(4)
    huge[2] = 1e200  # finite, but its square is not: numpy refuses the whole block
    assert np.isnan(runner(huge)).all()
    assert all(np.array_equal(runner.state[name], value) for name, value in before.items())
    rows = logits(5)
    rows[0, 0] = np.nan
    np.testing.assert_allclose(runner(rows), detector.stream(rows, on_invalid="skip"), rtol=1e-11)
    runner.agrees_with(detector)


def test_a_state_of_no_weight_starts_with_the_first_row() -> None:
    runner = Runner(ns.NormScaling().fit(training()))
    runner.state = {
        "detector_weight": np.zeros(1),
        "detector_mean": np.zeros(CLASSES),
        "detector_m2": np.zeros(CLASSES),
    }
    rows = logits(30)
    runner(np.full((2, CLASSES), np.nan))
    runner(rows)
    np.testing.assert_allclose(runner.state["detector_mean"], rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(runner.state["detector_m2"] / 30, rows.var(axis=0), rtol=1e-12)


def written(folder: Path, detector: ns.Detector, *, stateful: bool = True) -> Path:
    source, target = folder / "classifier.onnx", folder / "with_detector.onnx"
    onnx.save(passing(), source)
    export_with_detector(source, detector, target, stateful=stateful)
    return target


def test_a_session_goes_on_where_it_stopped(tmp_path: Path) -> None:
    detector = ns.NormScaling().fit(training()).set_threshold(training(300, seed=5), 0.7)
    detector.stream(logits(11, seed=3))  # a stream that is under way
    path = written(tmp_path, detector)
    session = DetectorSession(path)
    rows = logits(40, np.float32)
    start = copy.copy(detector)
    for part in np.split(rows, [1, 1, 17]):
        result = session.run({"image": part})
        assert sorted(result) == ["is_ood", "logits", "ood_score"]
        expected = detector.stream(part)
        np.testing.assert_allclose(result["ood_score"], expected, rtol=1e-11)
        assert np.array_equal(result["is_ood"], detector.predict(part, scores=expected))
    assert session.state["detector_weight"] == pytest.approx(detector.running_.weight)
    kept = session.state
    with pytest.raises(Exception, match="image"):
        session.run({})
    assert session.state is kept
    session.reset()
    np.testing.assert_allclose(session.run({"image": rows})["ood_score"], start.stream(rows), rtol=1e-11)


def test_threads_share_a_session_without_losing_rows(tmp_path: Path) -> None:
    session = DetectorSession(written(tmp_path, ns.NormScaling().fit(training())))
    rows = logits(20, np.float32)
    threads = [
        threading.Thread(target=lambda: [session.run({"image": rows[i : i + 1]}) for i in range(20)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.state["detector_weight"] == 1.0 + 80
    mean = (training().logits.mean(axis=0) + 4 * rows.astype(np.float64).sum(axis=0)) / 81
    np.testing.assert_allclose(session.state["detector_mean"], mean, rtol=1e-9)


def test_a_frozen_model_in_a_session_has_no_state(tmp_path: Path) -> None:
    detector = ns.NormScaling().fit(training())
    path = written(tmp_path, detector, stateful=False)
    session = DetectorSession(path)
    rows = logits(6, np.float32)
    for _ in range(2):
        np.testing.assert_allclose(session.run({"image": rows})["ood_score"], detector.score(rows), rtol=1e-12)
    assert session.state == {}
    with pytest.raises(ns.InvalidInput, match=r"carries no running statistics.* export --stateful"):
        initial_state(path)


def test_the_initial_state_keeps_every_bit(tmp_path: Path) -> None:
    detector = ns.NormScaling(prior_weight=1 / 3).fit(training())
    state = initial_state(written(tmp_path, detector))
    for name, expected in state_of(detector).items():
        assert np.array_equal(state[name], expected)
    model = onnx.load(tmp_path / "with_detector.onnx")
    entry = next(entry for entry in model.metadata_props if entry.key == "normscale.initial_state")
    entry.value = json.dumps({"detector_weight": [1.0]})
    with pytest.raises(ns.FileFormatError, match="state in the model's metadata is damaged"):
        initial_state(model)


@pytest.mark.parametrize(
    ("detector", "says"),
    (
        (ns.Energy(), "got energy: it has no running statistics"),
        (ns.RobustNormScaling(), "got robust_norm_scaling: its running statistics are not just moments of the logits"),
        (ns.NormScaling(prior_weight=float("inf")), "got norm_scaling: it has no running statistics"),
    ),
)
def test_what_has_no_moving_moments_is_refused(detector: ns.Detector, says: str) -> None:
    with pytest.raises(ns.InvalidInput, match=f"{says}.*Leave stateful out"):
        attach_detector(passing(), detector.fit(training()), stateful=True)
