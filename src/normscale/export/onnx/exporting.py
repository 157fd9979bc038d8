"""From a model file and a detector file to one model file that agrees with numpy."""

from __future__ import annotations

import copy
import hashlib
import os
from typing import NamedTuple

from normscale import _validate
from normscale.detectors.base import Detector
from normscale.detectors.registry import load_detector
from normscale.detectors.threshold import Threshold
from normscale.errors import FileFormatError, InvalidInput
from normscale.export.onnx.agreement import Agreement, compare
from normscale.export.onnx.attaching import SHA256, attach_detector, note
from normscale.export.onnx.files import check, read_model, require, written


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
    notes = tuple(tensor.note for tensor in graph.sources if tensor.note)
    return Exported(target, fitted, graph.added, tuple(tensor.name for tensor in graph.sources), agreement, notes)
