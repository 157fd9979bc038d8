"""A detector put into a model: nodes behind the logits, the outputs they give, and a note of where they came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from normscale.detectors.base import Detector
from normscale.detectors.formula import (
    MomentFormula,
    arrays_of,
    formula_of,
    limits_of,
    logit_limits_of,
    moment_formula_of,
)
from normscale.errors import InvalidInput
from normscale.export.onnx.nodes import Nodes
from normscale.export.onnx.opset import opset_of, raised
from normscale.export.onnx.packages import require
from normscale.export.onnx.provenance import note, provenance
from normscale.export.onnx.scores import flags, formula_scores
from normscale.export.onnx.stream import KEY, NEXT, STATE, state_document, stream_scores
from normscale.export.onnx.tensors import FoundTensor, find, require_free
from normscale.outputs import FEATURES, LOGITS

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

SCORE, FLAG = "ood_score", "is_ood"


class GraphWithDetector(NamedTuple):
    """A model with its detector, the tensors that are read, and the outputs that were added."""

    model: ModelProto
    logits: FoundTensor | None
    features: FoundTensor | None
    added: tuple[str, ...]
    stateful: bool

    @property
    def sources(self) -> list[FoundTensor]:
        """The tensors that the detector reads."""
        return [tensor for tensor in (self.logits, self.features) if tensor is not None]


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
        It is copied. An opset below 11 is raised to 11.
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
    formula, limits = formula_of(detector), limits_of(detector)
    moments = moment_formula_of(detector) if stateful else None
    copy = raised(model)
    require_free(copy.graph, (SCORE, FLAG, *(STATE + NEXT if stateful else ())))
    n_classes = None if limits is None or limits.size == 1 else limits.size
    reads, widths = arrays_of(formula), detector.widths_ or {}
    if FEATURES not in reads and features is not None:
        raise InvalidInput(f"{detector.name} reads logits alone; got features={features!r}. Leave it out.")
    only = widths.get(detector.reads[0]) if len(reads) == 1 else None  # one array may have any name in the detector
    found = found_features = None
    if LOGITS in reads or n_classes is not None:  # also for thresholds by predicted class
        own = only if LOGITS in reads else None
        found = find(copy, LOGITS, widths.get(LOGITS) or own or n_classes, logits)
    if FEATURES in reads:
        found_features = find(copy, FEATURES, widths.get(FEATURES) or only, features)

    nodes = Nodes(copy.graph, opset_of(copy))
    named = {LOGITS: found, FEATURES: found_features}
    rows = {name: nodes.cast(item.name, np.float64) for name, item in named.items() if item is not None}
    state: list[str] = []
    if moments is not None:
        scores, *state = stream_scores(nodes, rows[LOGITS], moments)
    else:
        scores = formula_scores(nodes, rows, formula)
    batch = next(item.rows for item in (found_features, found) if item is not None)
    _offer(copy, nodes, SCORE, scores, np.float64, batch)
    if limits is not None:
        _offer(
            copy,
            nodes,
            FLAG,
            flags(nodes, scores, limits, rows.get(LOGITS, ""), logit_limits_of(detector)),
            np.bool_,
            batch,
        )
    if moments is not None:
        _carry(copy, nodes, state, moments)
    note(copy, provenance(detector))
    added = tuple(info.name for info in copy.graph.output[len(model.graph.output) :])
    return GraphWithDetector(copy, found, found_features, added, stateful)


def _carry(model: ModelProto, nodes: Nodes, state: list[str], formula: MomentFormula) -> None:
    """The moments as inputs and outputs of the model, and what they begin with in its metadata."""
    n_classes = formula.state.mean.size
    for before, after, value, length in zip(STATE, NEXT, state, (1, n_classes, n_classes), strict=True):
        model.graph.input.append(_declaration(before, np.float64, length))
        _offer(model, nodes, after, value, np.float64, length)
    note(model, {KEY: state_document(formula.state)})


def _offer(
    model: ModelProto, nodes: Nodes, name: str, value: str, dtype: type[np.generic], length: int | str | None
) -> None:
    """Make a value an output of the model."""
    nodes.rename(value, name)
    model.graph.output.append(_declaration(name, dtype, length))


def _declaration(name: str, dtype: type[np.generic], length: int | str | None) -> ValueInfoProto:
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [length])
