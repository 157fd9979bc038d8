"""A model with its detector beside numpy: run in onnxruntime, its scores are compared with the detector's own."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.detectors.base import Detector
from normscale.detectors.formula import (
    FeatureFormula,
    LogitFormula,
    RectifiedFormula,
    SumFormula,
    formula_of,
    limits_of,
)
from normscale.errors import NormscaleError, NumericalWarning
from normscale.export.onnx.attaching import FLAG, SCORE, GraphWithDetector, attach_detector
from normscale.export.onnx.stream import read_state
from normscale.export.onnx.trial import (
    TRIAL_ROWS,
    CannotRunError,
    open_session,
    refuse_probabilities,
    run_session,
    try_out,
)
from normscale.outputs import FEATURES, LOGITS, ModelOutputs

if TYPE_CHECKING:
    from onnx import ModelProto

TOLERANCE = 1e-5
_DEFAULT_WIDTH = 10


class Agreement(NamedTuple):
    """How far the graph's scores are from numpy's, relative to 1 or to the score, whichever is larger."""

    difference: float
    rows: int
    of: str
    """What was run: "the model on random inputs", or "the detector alone on random rows" where the model cannot be."""


def compare(path: str, graph: GraphWithDetector, detector: Detector) -> Agreement:
    """Run the model file, or the detector alone where an input's shape is not known; raise when numpy differs."""
    try:
        found = _of_the_model(path, graph, detector)
    except CannotRunError:
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
            session = open_session(shown)
        except Exception as error:  # onnxruntime's errors have no common class
            raise CannotRunError from error
        result = try_out(session, _state(graph))
    if any(result[tensor.name].ndim != 2 for tensor in graph.sources):
        raise CannotRunError
    if graph.logits is not None and not graph.logits.is_asked_for:
        refuse_probabilities(result[graph.logits.name], graph.logits.name, "Nothing was written. ")
    return _agreement(result, graph, detector, "the model on random inputs")


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
    result = run_session(open_session(alone.model.SerializeToString()), {**feed, **_state(alone)})
    return _agreement({**feed, **result}, alone, detector, "the detector alone on random rows")


def _random_rows(graph: GraphWithDetector, detector: Detector, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Logits and features of the size that the detector's own numbers have."""
    limits = limits_of(detector)
    per_class = 0 if limits is None or limits.size == 1 else limits.size
    widths = detector.widths_ or {}
    rows: dict[str, NDArray[Any]] = {}
    for name, tensor, other in ((LOGITS, graph.logits, per_class), (FEATURES, graph.features, 0)):
        if tensor is not None:
            width = tensor.width or widths.get(name) or other or widths.get(detector.reads[0]) or _DEFAULT_WIDTH
            rows[name] = rng.normal(scale=4.0, size=(TRIAL_ROWS, width))
    one = formula_of(detector)
    while isinstance(one, SumFormula):
        one = one.terms[0][1]
    if isinstance(one, LogitFormula):
        rows[LOGITS] /= np.where(one.factor > 0.0, one.factor, 1.0)
        rows[LOGITS] += one.shift
    elif isinstance(one, FeatureFormula) and not one.unit:
        spread = 3.0 * rng.normal(size=(TRIAL_ROWS, one.whitening.shape[1]))
        rows[FEATURES] = one.centre + (one.means[0] + spread) @ np.linalg.pinv(one.whitening)
    elif isinstance(one, RectifiedFormula):
        rows[FEATURES] = 2.0 * one.limit * rng.uniform(size=(TRIAL_ROWS, one.weight.shape[1]))
    return rows


def _agreement(result: dict[str, NDArray[Any]], graph: GraphWithDetector, detector: Detector, of: str) -> Agreement:
    arrays = {} if graph.logits is None else {LOGITS: result[graph.logits.name]}
    if graph.features is not None:
        arrays[FEATURES] = result[graph.features.name]
    if len(detector.reads) == 1:
        arrays[detector.reads[0]] = result[graph.sources[-1].name]
    outputs = ModelOutputs(**arrays)
    score = copy.copy(detector).stream if graph.stateful else detector.score
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # random inputs are like nothing in training
        expected = score(outputs, on_invalid="skip")
    good = np.isfinite(expected)
    if not good.any():
        raise CannotRunError
    got = result[SCORE]
    difference = np.abs(got - expected)[good] / np.maximum(1.0, np.abs(expected[good]))
    worst = float(difference.max()) if np.array_equal(np.isfinite(got), good) else np.inf
    if FLAG in result:
        nearly = 1e-9 * np.maximum(1.0, np.abs(expected))  # so close to the threshold either answer is right
        either = [detector.decide(expected + sign * nearly, outputs) for sign in (-1.0, 1.0)]
        if not ((result[FLAG] == either[0]) | (result[FLAG] == either[1])).all():
            worst = np.inf
    return Agreement(worst, int(good.sum()), of)


def _state(graph: GraphWithDetector) -> dict[str, NDArray[Any]]:
    return dict(read_state(graph.model)) if graph.stateful else {}


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
