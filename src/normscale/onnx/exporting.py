"""From a model file and a guard file to a guarded model file that agrees with numpy."""

from __future__ import annotations

import copy
import os
from typing import NamedTuple

from normscale import _validate
from normscale.detectors.base import Detector
from normscale.detectors.decision import Threshold
from normscale.detectors.registry import load_detector
from normscale.errors import InvalidInput
from normscale.onnx._extra import require
from normscale.onnx.agreement import Agreement, compare
from normscale.onnx.files import check, read_model, written
from normscale.onnx.guarding import add_guard
from normscale.onnx.provenance import SHA256, note, sha256_of


class Exported(NamedTuple):
    """What was written and how it was checked."""

    path: str
    detector: Detector
    added: tuple[str, ...]
    """Names of the new outputs."""
    reads: tuple[str, ...]
    """Names of the tensors that the guard reads."""
    agreement: Agreement


def export_guarded(
    model: str | os.PathLike[str],
    guard: Detector | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    logits: str | None = None,
    features: str | None = None,
    stateful: bool = False,
    threshold: float | None = None,
) -> Exported:
    """Write a classifier with its guard inside; the file appears when onnx and onnxruntime have accepted it.

    Parameters
    ----------
    model : path of an ONNX classifier
    guard : Detector, or path of one that was saved
    output : path that ends in .onnx
    logits, features, stateful :
        As in :func:`add_guard`.
    threshold : float, optional
        Flag scores above this, whatever threshold the guard carries.

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
    detector = guard if isinstance(guard, Detector) else load_detector(guard)
    if threshold is not None:
        detector = copy.copy(detector)
        detector.threshold_ = Threshold(_validate.real(threshold, "threshold"))
    guarded = add_guard(read_model(source), detector, logits=logits, features=features, stateful=stateful)
    if not isinstance(guard, Detector):
        note(guarded.model, {SHA256: sha256_of(guard)})
    with written(guarded.model, source, target) as temporary:
        check(temporary)
        agreement = compare(temporary, guarded, detector)
    reads = tuple(tensor.name for tensor in guarded.sources)
    return Exported(target, detector, guarded.added, reads, agreement)
