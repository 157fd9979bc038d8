"""A guard put into a model: nodes after the logits, outputs that they give, and a note of where they came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.formula import LogitFormula, formula_of, limits_of
from normscale.detectors.norm_scaling import NormScaling
from normscale.errors import InvalidInput
from normscale.onnx._extra import require
from normscale.onnx.nodes import Nodes
from normscale.onnx.opset import opset_of, raised
from normscale.onnx.provenance import note, provenance
from normscale.onnx.scores import feature_scores, flags, logit_scores
from normscale.onnx.stream import KEY, NEXT, STATE, running_detector, state_document, stream_scores
from normscale.onnx.tensors import Found, find, require_free

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

SCORE, FLAG = "ood_score", "is_ood"


class Guarded(NamedTuple):
    """A model with its guard, what the guard reads, and the outputs it added."""

    model: ModelProto
    logits: Found | None
    features: Found | None
    added: tuple[str, ...]
    stateful: bool

    @property
    def sources(self) -> list[Found]:
        """The tensors that the guard reads."""
        return [tensor for tensor in (self.logits, self.features) if tensor is not None]


def add_guard(
    model: ModelProto,
    detector: Detector,
    *,
    logits: str | None = None,
    features: str | None = None,
    stateful: bool = False,
) -> Guarded:
    """Put a fitted detector into a classifier.

    All inputs and outputs stay. New are ``ood_score`` (n,), float64, higher = more out-of-distribution, and, when the
    detector has a threshold, ``is_ood`` (n,). A row with NaN or infinity scores NaN and is flagged.

    Parameters
    ----------
    model : onnx.ModelProto
        It is copied. An opset below 11 is raised to 11.
    detector : Detector
        Any that comes with normscale; Mahalanobis reads ``features``.
    logits, features : str, optional
        Name of the tensor, also of one inside the model; by default the only output of the right shape.
    stateful : bool
        Norm-scaling only: the statistics move with each row. They are the inputs ``guard_weight`` (1,), ``guard_mean``
        (C,) and ``guard_m2`` (C,), and outputs of these names with ``_next``; :func:`initial_state` tells the first.

    Examples
    --------
    >>> from onnx import parser
    >>> from normscale import Energy
    >>> network = parser.parse_model('''<ir_version: 8, opset_import: ["" : 17]>
    ...     tiny (float[n, 3] image) => (float[n, 3] logits) { logits = Relu(image) }''')
    >>> add_guard(network, Energy()).added
    ('ood_score',)
    """
    require("onnx")
    formula, limits = formula_of(detector), limits_of(detector)
    running = running_detector(detector) if stateful else None
    copy = raised(model)
    require_free(copy.graph, (SCORE, FLAG, *(STATE + NEXT if stateful else ())))
    found, found_features = _sources(copy, detector, limits, logits, features)

    nodes = Nodes(copy.graph, opset_of(copy))
    rows = "" if found is None else nodes.cast(found.name, np.float64)
    state: list[str] = []
    if running is not None:
        scores, *state = stream_scores(nodes, rows, running.score_kind, 1.0 / running.temperature)
    elif isinstance(formula, LogitFormula):
        scores = logit_scores(nodes, rows, formula)
    elif found_features is not None:
        scores = feature_scores(nodes, nodes.cast(found_features.name, np.float64), formula)
    batch = next(item.rows for item in (found_features, found) if item is not None)
    _offer(copy, nodes, SCORE, scores, np.float64, batch)
    if limits is not None:
        _offer(copy, nodes, FLAG, flags(nodes, scores, limits, rows), np.bool_, batch)
    if running is not None:
        _carry(copy, nodes, state, running)
    note(copy, provenance(detector))
    added = tuple(info.name for info in copy.graph.output[len(model.graph.output) :])
    return Guarded(copy, found, found_features, added, stateful)


def _sources(
    model: ModelProto, detector: Detector, limits: FloatArray | None, logits: str | None, features: str | None
) -> tuple[Found | None, Found | None]:
    """The tensors that the guard reads: its logits, its features, or both where each class has a threshold."""
    n_classes = None if limits is None or limits.size == 1 else limits.size
    if detector.reads == "logits":
        if features is not None:
            raise InvalidInput(f"{detector.name} reads logits alone; got features={features!r}. Leave it out.")
        return find(model, "logits", detector.width_ or n_classes, logits), None
    found = find(model, "features", detector.width_, features)
    return None if n_classes is None else find(model, "logits", n_classes, logits), found


def _carry(model: ModelProto, nodes: Nodes, state: list[str], detector: NormScaling) -> None:
    """The moments as inputs and outputs of the model, and what they begin with in its metadata."""
    for before, after, value, length in zip(STATE, NEXT, state, (1, detector.width_, detector.width_), strict=True):
        model.graph.input.append(_declaration(before, np.float64, length))
        _offer(model, nodes, after, value, np.float64, length)
    note(model, {KEY: state_document(detector.running_)})


def _offer(
    model: ModelProto, nodes: Nodes, name: str, value: str, dtype: type[np.generic], length: int | str | None
) -> None:
    """Make a value an output of the model."""
    nodes.rename(value, name)
    model.graph.output.append(_declaration(name, dtype, length))


def _declaration(name: str, dtype: type[np.generic], length: int | str | None) -> ValueInfoProto:
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [length])
