"""From a model file and a detector file to one model file, whose scores in onnxruntime agree with numpy's."""

from __future__ import annotations

import copy
import hashlib
import os
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale.detectors.base import Detector
from normscale.detectors.registry import load_detector
from normscale.errors import FileFormatError, InvalidInput, NormscaleError, NumericalWarning
from normscale.export.onnx.attaching import FLAG, SCORE, SHA256, GraphWithDetector, attach_detector, note, read_state
from normscale.export.onnx.files import check, read_model, require, with_outputs, written
from normscale.export.onnx.running import (
    TRIAL_ROWS,
    CannotRunError,
    open_session,
    refuse_probabilities,
    run_session,
    try_out,
)
from normscale.metrics.thresholds import Threshold
from normscale.outputs import LOGITS, ModelOutputs

TOLERANCE = 1e-5
_DEFAULT_WIDTH = 10


class Agreement(NamedTuple):
    """How far the graph's scores are from numpy's, relative to 1 or to the score, whichever is larger."""

    difference: float
    rows: int
    of: str
    """What was run: "the model on random inputs", or "the detector alone on random rows" where the model cannot be."""


class Exported(NamedTuple):
    """What was written and how it was checked."""

    path: str
    detector: Detector
    added: tuple[str, ...]
    """Names of the new outputs."""
    reads: tuple[str, ...]
    """Names of the tensors that the detector reads."""
    agreement: Agreement
    notes: tuple[str, ...] = ()
    """What a person should know about the choice of tensors."""


def export_with_detector(
    model: str | os.PathLike[str],
    detector: Detector | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    logits: str | None = None,
    features: str | None = None,
    stateful: bool = False,
    threshold: float | None = None,
) -> Exported:
    """Write a classifier with its detector inside; the file appears when onnx and onnxruntime have accepted it.

    Parameters
    ----------
    model : path of an ONNX classifier
    detector : Detector, or path of one that was saved
    output : path that ends in .onnx
    logits, features, stateful :
        As in :func:`attach_detector`.
    threshold : float, optional
        Flag scores above this, whatever threshold the detector carries.

    Returns
    -------
    Exported
        ``agreement.difference`` is the largest difference between the scores of the file in onnxruntime and those of
        numpy; more than 1e-5 is an error, and nothing is written.
    """
    require("onnx", "onnxruntime")
    source, target = os.fspath(model), os.fspath(output)
    if not target.endswith(".onnx"):
        raise InvalidInput(f"a model file ends in .onnx; got {target!r}.")
    if not os.path.isdir(os.path.dirname(os.path.realpath(target))):
        raise FileFormatError(f"cannot write {target}: there is no folder {os.path.dirname(target)!r}; make it first.")
    fitted = detector if isinstance(detector, Detector) else load_detector(detector)
    if threshold is not None:
        fitted = copy.copy(fitted)
        fitted.threshold_ = Threshold(_validate.real(threshold, "threshold"))
    graph = attach_detector(read_model(source), fitted, logits=logits, features=features, stateful=stateful)
    if not isinstance(detector, Detector):
        with open(detector, "rb") as file:
            note(graph.model, {SHA256: hashlib.file_digest(file, "sha256").hexdigest()})
    with written(graph.model, source, target) as temporary:
        check(temporary)
        agreement = compare(temporary, graph, fitted)
    notes = tuple(tensor.note for tensor in graph.read.values() if tensor.note)
    return Exported(target, fitted, graph.added, tuple(tensor.name for tensor in graph.read.values()), agreement, notes)


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
    try:
        session = open_session(with_outputs(path, graph.model, [tensor.name for tensor in graph.read.values()]))
    except Exception as error:  # onnxruntime's errors have no common class
        raise CannotRunError from error
    result = try_out(session, _state(graph))
    if any(result[tensor.name].ndim != 2 for tensor in graph.read.values()):
        raise CannotRunError
    logits = graph.read.get(LOGITS)
    if logits is not None and not logits.is_asked_for:
        refuse_probabilities(result[logits.name], logits.name, "Nothing was written. ")
    return _agreement(result, graph, detector, "the model on random inputs")


def _of_the_detector(graph: GraphWithDetector, detector: Detector) -> Agreement:
    """The same detector in a model that does nothing: its inputs are the logits and features."""
    from onnx import TensorProto, helper

    rng, widths = np.random.default_rng(0), detector._widths or {}
    feed = {}
    for name, tensor in graph.read.items():
        width = tensor.width or widths.get(name) or widths.get(detector.reads[0]) or _DEFAULT_WIDTH
        feed[name] = rng.normal(scale=4.0, size=(TRIAL_ROWS, width))
    inputs = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, ["n", rows.shape[1]]) for n, rows in feed.items()]
    empty = helper.make_model(
        helper.make_graph([], "detector", inputs, []),
        opset_imports=list(graph.model.opset_import),
        ir_version=graph.model.ir_version,
    )
    alone = attach_detector(empty, detector, stateful=graph.stateful, **{name: name for name in feed})
    result = run_session(open_session(alone.model.SerializeToString()), {**feed, **_state(alone)})
    return _agreement({**feed, **result}, alone, detector, "the detector alone on random rows")


def _agreement(result: dict[str, NDArray[Any]], graph: GraphWithDetector, detector: Detector, of: str) -> Agreement:
    arrays = {name: result[tensor.name] for name, tensor in graph.read.items()}
    if len(detector.reads) == 1:
        arrays[detector.reads[0]] = list(arrays.values())[-1]
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
        either = [detector.predict(outputs, scores=expected + sign * nearly) for sign in (-1.0, 1.0)]
        if not ((result[FLAG] == either[0]) | (result[FLAG] == either[1])).all():
            worst = np.inf
    return Agreement(worst, int(good.sum()), of)


def _state(graph: GraphWithDetector) -> dict[str, NDArray[Any]]:
    return dict(read_state(graph.model)) if graph.stateful else {}
