"""A detector put into a model: nodes behind the logits, the outputs they give, and what is noted in the metadata."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale._version import __version__
from normscale.detectors.base import Detector
from normscale.detectors.formula import arrays_of, formula_of, limits_of, logit_limits_of, moment_formula_of
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import FileFormatError, InvalidInput
from normscale.export.onnx.files import require
from normscale.export.onnx.graph_array import GraphWriter, names_in
from normscale.export.onnx.tensors import GraphTensor, find
from normscale.export.scoring import Array, flags, formula_scores, stream_scores, with_numbers
from normscale.moments import RunningMoments
from normscale.outputs import FEATURES, LOGITS
from normscale.state import DETECTOR, packed_metadata

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

SCORE, FLAG = "ood_score", "is_ood"
STATE = ("detector_weight", "detector_mean", "detector_m2")
"""The inputs that hold the moments."""
NEXT = tuple(f"{name}_next" for name in STATE)
"""The outputs that hold them after the batch."""
SHA256 = "normscale.detector_sha256"
_INITIAL_STATE = "normscale.initial_state"
_LEAST_OPSET = 11
"""CumSum, and comparisons in float64, came with it; what else is added is older."""


class GraphWithDetector(NamedTuple):
    """A model with its detector, the tensors that are read, and the names of the outputs that were added."""

    model: ModelProto
    read: dict[str, GraphTensor]
    """Which tensors are the logits and the features."""
    added: tuple[str, ...]
    stateful: bool


def attach_detector(
    model: ModelProto,
    detector: Detector,
    *,
    logits: str | None = None,
    features: str | None = None,
    stateful: bool = False,
) -> GraphWithDetector:
    """Put a fitted detector into a classifier.

    All inputs and outputs stay. New are ``ood_score`` (n,), float64, higher = more out-of-distribution, and, when the
    detector has a threshold, ``is_ood`` (n,). A row with NaN or infinity scores NaN and is flagged.

    Parameters
    ----------
    model : onnx.ModelProto
        It is copied. Its opset must be 11 or later.
    detector : Detector
        Any that offers a formula, as nearly all of normscale do.
    logits, features : str, optional
        Name of the tensor, also of one inside the model; by default the only output of the right shape. A formula of
        one array reads it whatever the detector calls it.
    stateful : bool
        The statistics move with each row, for a detector whose statistics are moments of the logits, such as
        norm-scaling. They are the inputs ``detector_weight`` (1,), ``detector_mean`` (C,) and ``detector_m2`` (C,),
        and outputs of these names with ``_next``; :func:`initial_state` tells the first.

    Examples
    --------
    >>> from onnx import parser
    >>> from normscale import Energy
    >>> network = parser.parse_model('''<ir_version: 8, opset_import: ["" : 17]>
    ...     tiny (float[n, 3] image) => (float[n, 3] logits) { logits = Relu(image) }''')
    >>> attach_detector(network, Energy()).added
    ('ood_score',)
    """
    require("onnx")
    formula, limits, logit_limits = formula_of(detector), limits_of(detector), logit_limits_of(detector)
    moments = moment_formula_of(detector) if stateful else None
    copy, opset = _copied(model)
    taken = sorted({SCORE, FLAG, *(STATE + NEXT if stateful else ())} & names_in(copy.graph))
    if taken:
        raise InvalidInput(
            f"the model already has {', '.join(map(repr, taken))}, which would be added. Does it carry a detector "
            "already? Then export from the model without one; otherwise rename that tensor."
        )
    n_classes = None if limits is None or limits.size == 1 else limits.size
    reads, widths = arrays_of(formula), detector._widths or {}
    if FEATURES not in reads and features is not None:
        raise InvalidInput(f"{detector.name} reads logits alone; got features={features!r}. Leave it out.")
    only = widths.get(detector.reads[0]) if len(reads) == 1 else None  # one array may have any name in the detector
    found: dict[str, GraphTensor] = {}
    if LOGITS in reads or n_classes is not None:  # also for thresholds by predicted class
        own = only if LOGITS in reads else None
        found[LOGITS] = find(copy, LOGITS, widths.get(LOGITS) or own or n_classes, logits)
    if FEATURES in reads:
        found[FEATURES] = find(copy, FEATURES, widths.get(FEATURES) or only, features)

    write = GraphWriter(copy.graph, opset)
    rows = {name: write.tensor(tensor.name).double() for name, tensor in found.items()}
    length = next((tensor.rows for tensor in reversed(found.values())), None)
    if moments is None:
        given = with_numbers(formula, lambda _, value: write.constant(np.atleast_1d(value)))
        scores = formula_scores(given, rows, sorted(reads), logit_limits)
    else:
        weight, mean, m2 = (write.tensor(name) for name in STATE)
        scores, after = stream_scores(
            moments, rows[LOGITS], (weight, mean, m2), lambda parts: write("Concat", *parts, axis=0), logit_limits
        )
    _offer(copy, SCORE, scores, np.float64, length)
    if limits is not None:
        flagged = flags(scores, write.constant(limits), rows.get(LOGITS))
        _offer(copy, FLAG, flagged, np.bool_, length)
    if moments is not None:
        values = [np.array([moments.state.weight]), moments.state.mean, moments.state.m2]
        for name, next_name, array, value in zip(STATE, NEXT, after, values, strict=True):
            copy.graph.input.append(_declaration(name, np.float64, value.size))
            _offer(copy, next_name, array, np.float64, value.size)
        note(copy, {_INITIAL_STATE: write_json({n: v.tolist() for n, v in zip(STATE, values, strict=True)})})
    packed = detector._pack()
    header = packed_metadata(packed)[DETECTOR.key]
    provenance = {
        "normscale.version": __version__,
        "normscale.detector": header,
        "normscale.threshold": write_json(read_json(header)["threshold"]),
        SHA256: hashlib.sha256(packed).hexdigest(),
    }
    note(copy, provenance)
    added = tuple(info.name for info in copy.graph.output[len(model.graph.output) :])
    return GraphWithDetector(copy, found, added, stateful)


def note(model: ModelProto, entries: dict[str, str]) -> None:
    """Set entries of a model's metadata."""
    known = {entry.key: entry for entry in model.metadata_props}
    for key, value in entries.items():
        entry = known.get(key) or model.metadata_props.add()
        entry.key, entry.value = key, value


def read_state(model: ModelProto) -> dict[str, FloatArray]:
    """The moments that a stateful model starts from, out of its metadata."""
    text = next((entry.value for entry in model.metadata_props if entry.key == _INITIAL_STATE), None)
    if text is None:
        raise InvalidInput(
            "the model carries no running statistics. Make it with `normscale export --stateful`, or "
            "export_with_detector(..., stateful=True)."
        )
    try:
        document = read_json(text)
        state = RunningMoments.from_state(document[STATE[0]][0], document[STATE[1]], document[STATE[2]]).state
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise FileFormatError(f"the state in the model's metadata is damaged ({error}); export it again.") from error
    return dict(zip(STATE, (np.array([state.weight]), state.mean, state.m2), strict=True))


def _offer(model: ModelProto, name: str, array: Array, dtype: type[np.generic], length: int | str | None) -> None:
    """Make an array an output of the model."""
    array.write.rename(array, name)
    model.graph.output.append(_declaration(name, dtype, length))


def _declaration(name: str, dtype: type[np.generic], length: int | str | None) -> ValueInfoProto:
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [length])


def _copied(model: ModelProto) -> tuple[ModelProto, int]:
    """A copy of the model, and its opset, which must be 11 at least."""
    copy = type(model)()
    copy.CopyFrom(model)
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset == 0:  # it uses nothing of the default domain
        copy.opset_import.add(domain="", version=_LEAST_OPSET)
    elif opset < _LEAST_OPSET:
        raise InvalidInput(
            f"the model has opset {opset}; a detector needs {_LEAST_OPSET} or later. Export it again, or "
            f"convert it: onnx.version_converter.convert_version(model, {_LEAST_OPSET})."
        )
    return copy, opset or _LEAST_OPSET
