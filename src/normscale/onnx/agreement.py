"""A model with its detector beside numpy: run in onnxruntime, its scores are compared with the detector's own."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.detectors.base import Detector
from normscale.detectors.formula import FeatureFormula, LogitFormula, formula_of, limits_of
from normscale.errors import InvalidInput, NormscaleError
from normscale.input_checks.softmaxed import Squashed, squashed
from normscale.onnx.attaching import FLAG, SCORE, GraphWithDetector, attach_detector
from normscale.onnx.stream import STATE, read_state
from normscale.outputs import LOGITS, ModelOutputs

if TYPE_CHECKING:
    from onnx import ModelProto

TOLERANCE = 1e-5
_ROWS = 16
_DEFAULT_WIDTH = 10
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
    """What was run: "the model on random inputs", or "the detector alone on random rows" where the model cannot be."""


class _CannotRunError(Exception):
    """The model as a whole cannot be run on made-up inputs."""


def compare(path: str, graph: GraphWithDetector, detector: Detector) -> Agreement:
    """Run the model file, or the detector alone where an input's shape is not known; raise when numpy differs."""
    try:
        found = _of_the_model(path, graph, detector)
    except _CannotRunError:
        found = _of_the_detector(graph, detector)
    if not found.difference <= TOLERANCE:
        raise NormscaleError(
            f"the new model's scores differ from numpy's by {found.difference:.3g} ({found.of}); nothing was "
            "written. Please report this, with the model if you can."
        )
    return found


def _of_the_model(path: str, graph: GraphWithDetector, detector: Detector) -> Agreement:
    hidden = [tensor.name for tensor in graph.sources if not tensor.is_output]
    with _showing(path, graph.model, hidden) as shown:
        try:
            session = _session(shown)
            rng = np.random.default_rng(0)
            feed = {item.name: _random(item, rng) for item in session.get_inputs() if item.name not in STATE}
            result = _run(session, {**feed, **_state(graph)})
        except _CannotRunError:
            raise
        except Exception as error:  # whatever onnxruntime finds wrong with inputs that mean nothing
            raise _CannotRunError from error
    if any(result[tensor.name].ndim != 2 for tensor in graph.sources):
        raise _CannotRunError
    if graph.logits is not None and not graph.logits.is_asked_for:
        _refuse_probabilities(result[graph.logits.name], graph.logits.name)
    return _agreement(result, graph, detector, "the model on random inputs")


def _refuse_probabilities(rows: NDArray[Any], name: str) -> None:
    """A model may make probabilities in a way that no look at its nodes tells; its outputs do."""
    found = squashed(rows)
    if found is not None and found.kind is not Squashed.SIGMOIDS:
        raise InvalidInput(
            f"the tensor {name!r} holds {found.kind}, not logits: on random inputs {found.sign}. Nothing was written. "
            f"Pass logits=NAME (--logits NAME) with the tensor before the softmax; or logits={name!r}, if the "
            "detector was fitted on such numbers."
        )


def _of_the_detector(graph: GraphWithDetector, detector: Detector) -> Agreement:
    """The same detector in a model that does nothing: its inputs are the logits and features."""
    from onnx import TensorProto, helper

    feed = _random_rows(graph, detector, np.random.default_rng(0))
    shapes = {name: ["n", rows.shape[1]] for name, rows in feed.items()}
    inputs = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name, shape in shapes.items()]
    empty = helper.make_model(
        helper.make_graph([], "detector", inputs, []),
        opset_imports=list(graph.model.opset_import),
        ir_version=graph.model.ir_version,
    )
    logits, features = (name if name in feed else None for name in ("logits", "features"))
    alone = attach_detector(empty, detector, logits=logits, features=features, stateful=graph.stateful)
    result = _run(_session(alone.model.SerializeToString()), {**feed, **_state(alone)})
    return _agreement({**feed, **result}, alone, detector, "the detector alone on random rows")


def _random_rows(graph: GraphWithDetector, detector: Detector, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Logits and features of the size that the detector's own numbers have."""
    formula = formula_of(detector)
    rows: dict[str, NDArray[Any]] = {}
    if graph.logits is not None:
        limits = limits_of(detector)
        per_class = 0 if limits is None or limits.size == 1 else limits.size
        width = graph.logits.width or per_class or (detector.widths_ or {}).get(detector.reads[0]) or _DEFAULT_WIDTH
        rows["logits"] = rng.normal(scale=4.0, size=(_ROWS, width))
    if isinstance(formula, LogitFormula):
        rows["logits"] /= np.where(formula.factor > 0.0, formula.factor, 1.0)
        rows["logits"] += formula.shift
    elif isinstance(formula, FeatureFormula):
        spread = 3.0 * rng.normal(size=(_ROWS, formula.whitening.shape[1]))
        rows["features"] = formula.centre + (formula.means[0] + spread) @ np.linalg.pinv(formula.whitening)
    else:
        rows["features"] = 2.0 * formula.limit * rng.uniform(size=(_ROWS, formula.weight.shape[1]))
    return rows


def _agreement(result: dict[str, NDArray[Any]], graph: GraphWithDetector, detector: Detector, of: str) -> Agreement:
    arrays = {} if graph.logits is None else {LOGITS: result[graph.logits.name]}
    arrays[detector.reads[0]] = result[graph.sources[-1].name]
    outputs = ModelOutputs(**arrays)
    score = copy.copy(detector).stream if graph.stateful else detector.score
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


def _state(graph: GraphWithDetector) -> dict[str, NDArray[Any]]:
    return dict(read_state(graph.model)) if graph.stateful else {}


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
