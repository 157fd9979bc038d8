"""State is a value: records in files, streams as states, and detectors of somebody else."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest

import normscale as ns
from normscale._validate import FloatArray
from normscale.conformance import check_detector
from normscale.detectors.partial_fit import second_half
from normscale.state import Numbers, load_state, record_arrays, record_of, same_records, save_state
from running_norm import RunningNorm, Shifted

SAMPLE = ns.load_sample()


class Line(NamedTuple):
    slope: Annotated[float, Numbers(above=0.0)]
    offset: float | None


class Lines(NamedTuple):
    weights: Annotated[FloatArray, Numbers("lines", "columns", least=0.0)]
    named: dict[str, Line]
    listed: tuple[Line, ...]


def test_a_record_becomes_arrays_and_back() -> None:
    record = Lines(np.ones((2, 3)), {"a": Line(2.0, None)}, (Line(1.0, 5.0), Line(3.0, None)))
    arrays = record_arrays(record, "lines")
    assert sorted(arrays) == [
        "lines.listed.0.offset", "lines.listed.0.slope", "lines.listed.1.slope", "lines.named.a.slope", "lines.weights",
    ]  # fmt: skip
    assert same_records(record_of(Lines, arrays, "lines", {"columns": 3}.get), record)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    (
        ("weights", np.ones((2, 4)), r"weights must have the shape \(lines, 3\); got \(2, 4\)"),
        ("weights", np.full((2, 3), np.nan), "weights must be finite"),
        ("weights", np.full((2, 3), -1.0), "weights must be at least 0; got -1"),
        ("weights", np.full((2, 3), "x"), "weights must be numbers"),
        ("named.a.slope", np.array(0.0), "named.a.slope must be above 0"),
        ("named.a.slope", np.ones(2), "named.a.slope must be a number"),
    ),
)
def test_what_is_not_as_declared_is_named(name: str, value: Any, message: str) -> None:
    arrays = record_arrays(Lines(np.ones((2, 3)), {"a": Line(2.0, None)}, ()))
    with pytest.raises(ns.InvalidInput, match=message):
        record_of(Lines, {**arrays, name: value}, sizes={"columns": 3}.get)
    del arrays["weights"]
    with pytest.raises(ns.InvalidInput, match="weights is missing"):
        record_of(Lines, arrays)


@pytest.mark.parametrize("make", (RunningNorm, Shifted, ns.NormScaling))
def test_detectors_of_somebody_else_keep_every_promise(make: Any) -> None:
    checks = ["steps_purely", "merges_its_streams", "survives_a_file", "streams_any_split", "keeps_its_parameters"]
    assert check_detector(make, checks=checks) == checks


def test_the_detector_of_the_house_s_own_example_passes() -> None:
    class FeatureNorm(ns.Detector):
        """Minus the length of the features."""

        name, reads, reads_in_fit = "feature_norm", ("features",), None
        about = ns.About("Feature norm", "an example", parameters={"order": "of the norm"})

        def __init__(self, order: float = 2.0) -> None:
            self.order = order

        def _score(self, outputs: ns.ModelOutputs, threads: int) -> Any:
            if not np.isfinite(outputs.features).all():
                raise ns.InvalidInput("a row of the features is not finite.")
            return -np.linalg.norm(outputs.features.astype(float), self.order, axis=1)

    check_detector(FeatureNorm)


@pytest.mark.parametrize("name", ns.list_detectors())
def test_unknown_arguments_raise_and_signatures_are_right(name: str) -> None:
    cls = type(ns.make_detector(name))
    assert list(inspect.signature(cls).parameters) == list(cls.about.parameters)
    with pytest.raises(TypeError):
        cls(no_such_parameter=3)  # type: ignore[call-arg]


def test_msp_has_a_temperature() -> None:
    rows = SAMPLE.test.logits
    assert np.array_equal(ns.MSP(temperature=2.0).score(rows), ns.msp_score(rows, 2.0))


@pytest.mark.parametrize("name", [*ns.list_detectors(), "react+norm_scaling"])
def test_clone_and_set_params(name: str) -> None:
    clone = pytest.importorskip("sklearn.base").clone
    detector = ns.make_detector(name)
    assert clone(detector).get_params() == detector.get_params(deep=False)
    assert clone(detector) is not detector


def test_set_params_forgets_what_was_learned() -> None:
    detector = ns.NormScaling().fit(SAMPLE.train)
    assert detector.set_params(temperature=2.0) is detector
    assert (detector.temperature, detector._is_fitted) == (2.0, False)
    assert detector.__dict__.get("state_") is None
    with pytest.raises(ns.InvalidInput, match="norm_scaling has no parameter 'temprature'"):
        detector.set_params(temprature=1.0)


def test_a_stream_begins_more_calmly_once_a_threshold_is_set() -> None:
    detector = ns.NormScaling().fit(SAMPLE.train)
    assert detector.start().training == 1.0
    detector.stream(SAMPLE.test[:10])
    detector.set_threshold(SAMPLE.validation)
    assert detector.start().training == 80.0
    assert (detector.n_streamed_, detector.running_.weight) == (10, 90.0)
    again = copy.copy(detector).set_threshold(SAMPLE.validation)
    assert again.running_.weight == 90.0, "training is not counted twice"


@pytest.mark.parametrize("name", ("robust_norm_scaling", "rtl+norm_scaling"))
def test_held_out_halves_do_not_depend_on_the_order_of_the_rows(name: str) -> None:
    train = SAMPLE.train
    order = np.random.default_rng(0).permutation(len(train))
    half = second_half(train)
    np.testing.assert_array_equal(second_half(train[order]), half[order])
    shares = np.bincount(train.predicted, half) / np.bincount(train.predicted)
    assert (np.abs(shares - 0.5) < 0.25).all(), "each class is about halved"
    one, two = (ns.make_detector(name).fit(rows).score(SAMPLE.test) for rows in (train, train[order]))
    np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)


def test_a_foreign_running_detector_survives_a_file_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    detector = RunningNorm().fit(SAMPLE.train)
    detector.stream(SAMPLE.test[:50])
    detector.save(tmp_path / "d.safetensors")
    loaded = ns.load_detector(tmp_path / "d.safetensors")
    assert np.array_equal(loaded.stream(SAMPLE.test[50:]), detector.stream(SAMPLE.test[50:]))
    header, tensors = load_state(tmp_path / "d.safetensors")
    save_state(tmp_path / "d.safetensors", header, {**tensors, "fitted.variance": np.array(-1.0)})
    with pytest.raises(ns.FileFormatError, match=r"damaged: fitted\.variance must be above 0; got -1"):
        ns.load_detector(tmp_path / "d.safetensors")
