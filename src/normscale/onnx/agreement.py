"""The guarded model beside numpy: it is run in onnxruntime, and its scores compared with the detector's own."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.detectors.base import Detector
from normscale.detectors.formula import LogitFormula, formula_of
from normscale.detectors.mahalanobis import Mahalanobis
from normscale.errors import NormscaleError
from normscale.onnx.guarding import FLAG, SCORE, Guarded, add_guard
from normscale.onnx.stream import STATE, read_state
from normscale.outputs import ModelOutputs

if TYPE_CHECKING:
    from onnx import ModelProto

TOLERANCE = 1e-5
_ROWS = 16
_TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


class Agreement(NamedTuple):
    """How far the graph's scores are from numpy's, relative to 1 or to the score, whichever is larger."""

    difference: float
    rows: int
    of: str
    """What was run: "the model on random inputs", or "the guard alone on random rows" where the model cannot be."""


class _CannotRunError(Exception):
    """The model as a whole cannot be run on made-up inputs."""


def compare(path: str, guarded: Guarded, detector: Detector) -> Agreement:
    """Run the model file, or the guard alone where an input's shape is not known; raise when it differs from numpy."""
    try:
        found = _of_the_model(path, guarded, detector)
    except _CannotRunError:
        found = _of_the_guard(guarded, detector)
    if not found.difference <= TOLERANCE:
        raise NormscaleError(
            f"the guarded model's scores differ from numpy's by {found.difference:.3g} ({found.of}); nothing was "
            "written. Please report this, with the model if you can."
        )
    return found


def _of_the_model(path: str, guarded: Guarded, detector: Detector) -> Agreement:
    hidden = [tensor.name for tensor in guarded.sources if not tensor.is_output]
    with _showing(path, guarded.model, hidden) as shown:
        try:
            session = _session(shown)
            rng = np.random.default_rng(0)
            feed = {item.name: _random(item, rng) for item in session.get_inputs() if item.name not in STATE}
            result = _run(session, {**feed, **_state(guarded)})
        except _CannotRunError:
            raise
        except Exception as error:  # whatever onnxruntime finds wrong with inputs that mean nothing
            raise _CannotRunError from error
    if any(result[tensor.name].ndim != 2 for tensor in guarded.sources):
        raise _CannotRunError
    return _agreement(result, guarded, detector, "the model on random inputs")


def _of_the_guard(guarded: Guarded, detector: Detector) -> Agreement:
    """The same guard on a model that does nothing: its inputs are the logits and features."""
    from onnx import TensorProto, helper

    rng, formula = np.random.default_rng(0), formula_of(detector)
    feed: dict[str, NDArray[Any]] = {}
    if guarded.logits is not None:
        width = detector.width_ if detector.reads == "logits" and detector.width_ else guarded.logits.width or 10
        feed["logits"] = rng.normal(scale=4.0, size=(_ROWS, width))
        if isinstance(formula, LogitFormula):
            feed["logits"] /= np.where(formula.factor > 0.0, formula.factor, 1.0)
            feed["logits"] += formula.shift
    if isinstance(detector, Mahalanobis):
        spread = np.sqrt(np.diagonal(detector.covariance_))
        feed["features"] = detector.means_[0] + 3.0 * spread * rng.normal(size=(_ROWS, spread.size))
    shapes = {name: ["n", rows.shape[1]] for name, rows in feed.items()}
    inputs = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name, shape in shapes.items()]
    empty = helper.make_model(
        helper.make_graph([], "guard", inputs, []),
        opset_imports=list(guarded.model.opset_import),
        ir_version=guarded.model.ir_version,
    )
    logits, features = (name if name in feed else None for name in ("logits", "features"))
    alone = add_guard(empty, detector, logits=logits, features=features, stateful=guarded.stateful)
    result = _run(_session(alone.model.SerializeToString()), {**feed, **_state(alone)})
    return _agreement({**feed, **result}, alone, detector, "the guard alone on random rows")


def _agreement(result: dict[str, NDArray[Any]], guarded: Guarded, detector: Detector, of: str) -> Agreement:
    features = None if guarded.features is None else result[guarded.features.name]
    logits = np.zeros((len(result[SCORE]), 2)) if guarded.logits is None else result[guarded.logits.name]
    outputs = ModelOutputs(logits, features)
    score = copy.copy(detector).stream if guarded.stateful else detector.score
    expected = score(outputs, on_invalid="skip")
    good = np.isfinite(expected)
    if not good.any():
        raise _CannotRunError
    got = result[SCORE]
    difference = np.abs(got - expected)[good] / np.maximum(1.0, np.abs(expected[good]))
    worst = float(difference.max()) if np.array_equal(np.isfinite(got), good) else np.inf
    if FLAG in result:
        nearly = 1e-9 * np.maximum(1.0, np.abs(expected))  # so close to the threshold either answer is right
        either = [detector.decide(expected + sign * nearly, outputs) for sign in (-1.0, 1.0)]
        if not ((result[FLAG] == either[0]) | (result[FLAG] == either[1])).all():
            worst = np.inf
    return Agreement(worst, int(good.sum()), of)


def _session(model: str | bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # what it cannot do is raised, and answered here
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _run(session: Any, feed: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(None, feed), strict=True))


def _state(guarded: Guarded) -> dict[str, NDArray[Any]]:
    return dict(read_state(guarded.model)) if guarded.stateful else {}


def _random(item: Any, rng: np.random.Generator) -> NDArray[Any]:
    """Numbers of the shape and type that an input wants; a free first dimension is the batch."""
    if item.type not in _TYPES or not item.shape:
        raise _CannotRunError
    shape = [_ROWS if axis == 0 and not isinstance(size, int) else size for axis, size in enumerate(item.shape)]
    if any(not isinstance(size, int) or size < 1 for size in shape):
        raise _CannotRunError
    dtype = _TYPES[item.type]
    if np.issubdtype(dtype, np.floating):
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


@contextmanager
def _showing(path: str, model: ModelProto, hidden: list[str]) -> Iterator[str]:
    """A file of the model with inner tensors among its outputs, in the same folder, where its weights are."""
    if not hidden:
        yield path
        return
    from onnx import ValueInfoProto

    shown = type(model)()
    shown.CopyFrom(model)
    shown.graph.output.extend(ValueInfoProto(name=name) for name in hidden)
    probe = f"{path}.probe"
    try:
        with open(probe, "wb") as file:
            file.write(shown.SerializeToString())
        yield probe
    finally:
        os.unlink(probe)
