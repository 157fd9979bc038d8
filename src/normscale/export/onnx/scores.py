"""The formulas of :mod:`normscale.detectors.formula` as ONNX nodes, in float64 whatever the model computes in."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.formula import (
    REACH,
    BoundaryFormula,
    FeatureFormula,
    Formula,
    LogitFormula,
    OodPosition,
    RectifiedFormula,
    arrays_of,
)
from normscale.export.onnx.nodes import Nodes
from normscale.outputs import FEATURES, LOGITS


def formula_scores(nodes: Nodes, rows: Mapping[str, str], formula: Formula) -> str:
    """Scores (n,) of float64 arrays by name, each (n, any width); NaN for a row that is not finite.

    Parameters
    ----------
    nodes : Nodes
    rows : mapping
        The tensors that hold the logits and the features, as far as the formula reads them.
    formula : Formula
    """
    scores = _scores(nodes, rows, formula)
    for name in sorted(arrays_of(formula)):
        scores = nan_unless(nodes, flag_finite_rows(nodes, rows[name]), scores)
    return scores


def _scores(nodes: Nodes, rows: Mapping[str, str], formula: Formula) -> str:
    if isinstance(formula, LogitFormula):
        return _logit_scores(nodes, rows[LOGITS], formula)
    if isinstance(formula, FeatureFormula):
        return _distances(nodes, rows[FEATURES], formula)
    if isinstance(formula, BoundaryFormula):
        return _boundary_distances(nodes, rows[LOGITS], rows[FEATURES], formula)
    if isinstance(formula, RectifiedFormula):
        made = nodes("MatMul", nodes("Min", rows[FEATURES], formula.limit), formula.weight.T)
        return formula_scores(nodes, {LOGITS: nodes("Add", made, formula.bias)}, formula.then)
    total = ""
    for weight, term in formula.terms:
        part = nodes("Mul", _scores(nodes, rows, term), weight)
        total = nodes("Add", total, part) if total else part
    if formula.class_offset.size == 1:
        return nodes("Sub", total, formula.class_offset)
    own = predicted(nodes, rows[LOGITS])
    total = nodes("Sub", total, nodes("Gather", nodes.constant(formula.class_offset), own))
    if formula.ood_position is None:
        return total
    return nodes("Add", total, _ood_position(nodes, _centred(nodes, rows[LOGITS]), own, formula.ood_position))


def _centred(nodes: Nodes, rows: str) -> str:
    return nodes("Sub", rows, nodes.reduce("ReduceMean", rows, 1, keepdims=True))


def _logit_scores(nodes: Nodes, rows: str, formula: LogitFormula) -> str:
    scaled = _centred(nodes, rows) if formula.centred else rows
    if formula.shift.any():
        scaled = nodes("Sub", scaled, formula.shift)
    if (formula.factor != 1.0).any():
        scaled = nodes("Mul", scaled, formula.factor)
    scores = reduce_rows(nodes, scaled, formula.kind)
    return scores if formula.weight == 1.0 else nodes("Mul", scores, formula.weight)


def reduce_rows(nodes: Nodes, scaled: str, kind: str) -> str:
    """Scores (n,) of scaled logits (n, C), in log space: nothing saturates however confident a row is."""
    if kind == "max":
        return nodes("Neg", nodes.reduce("ReduceMax", scaled, 1))
    if kind == "log_sum_exp":
        above = nodes("Sub", scaled, nodes.reduce("ReduceMax", scaled, 1, keepdims=True))
        log_total = nodes("Log", nodes.reduce("ReduceSum", nodes("Exp", above), 1))
        return nodes("Neg", nodes("Add", nodes.reduce("ReduceMax", scaled, 1), log_total))
    # log sum_{j != top} exp(z_j - z_top), relative to the second largest, so that the sum is at least 1
    is_top = _is_top(nodes, scaled)
    others = nodes("Where", is_top, float(np.finfo(np.float64).min), scaled)
    above = nodes("Sub", scaled, nodes.reduce("ReduceMax", others, 1, keepdims=True))
    total = nodes.reduce("ReduceSum", nodes("Where", is_top, 0.0, nodes("Exp", above)), 1)
    lead = nodes("Sub", nodes.reduce("ReduceMax", others, 1), nodes.reduce("ReduceMax", scaled, 1))
    return nodes("Add", lead, nodes("Log", total))


def _distances(nodes: Nodes, rows: str, formula: FeatureFormula) -> str:
    """Squared distances (n,) of features (n, d) to the nearest mean."""
    used = nodes("Div", *_scaled_and_length(nodes, rows)) if formula.unit else rows
    white = nodes("MatMul", nodes("Sub", used, formula.centre), formula.whitening)
    norms = nodes.reduce("ReduceSum", nodes("Mul", white, white), 1)
    squared_norms: FloatArray = np.einsum("ij,ij->i", formula.means, formula.means)
    to_means = nodes("Add", nodes("MatMul", white, -2.0 * formula.means.T), squared_norms)
    return not_below_zero(nodes, nodes("Add", norms, nodes.reduce("ReduceMin", to_means, 1)))


def _boundary_distances(nodes: Nodes, logits: str, features: str, formula: BoundaryFormula) -> str:
    """Minus the mean distance (n,) to the decision boundaries, over that of the features to their mean."""
    below = nodes("Sub", logits, nodes.reduce("ReduceMax", logits, 1, keepdims=True))
    closeness = nodes("Gather", nodes.constant(formula.closeness), predicted(nodes, logits))
    to_boundaries = nodes.reduce("ReduceSum", nodes("Mul", below, closeness), 1)
    apart = nodes("Sub", features, formula.mean)
    length = nodes("Sqrt", nodes.reduce("ReduceSum", nodes("Mul", apart, apart), 1))
    return nodes("Div", to_boundaries, nodes("Max", length, formula.shortest))


def _scaled_and_length(nodes: Nodes, rows: str) -> tuple[str, str]:
    """Rows (n, d) over their largest number, and their lengths (n, 1) then, of which no square under- or overflows.

    The length of a row of zeros is 1.
    """
    largest = nodes.reduce("ReduceMax", nodes("Abs", rows), 1, keepdims=True)
    scaled = nodes("Div", rows, nodes("Where", nodes("Greater", largest, 0.0), largest, 1.0))
    length = nodes("Sqrt", nodes.reduce("ReduceSum", nodes("Mul", scaled, scaled), 1, keepdims=True))
    return scaled, nodes("Where", nodes("Greater", length, 0.0), length, 1.0)


def flags(
    nodes: Nodes, scores: str, limits: FloatArray, rows: str, logit_limits: tuple[float, float] | None = None
) -> str:
    """Which rows are out-of-distribution (n,): a score above the limit (of the predicted class), or NaN.

    With ``logit_limits``, rows with a logit beyond these are, too.
    """
    limit = nodes.constant(limits)
    if limits.size > 1 and rows:
        limit = nodes("Gather", limit, predicted(nodes, rows))
    flagged = nodes("Or", nodes("IsNaN", scores), nodes("Greater", scores, limit))
    if logit_limits is None or not rows:
        return flagged
    above = nodes("Greater", nodes.reduce("ReduceMax", rows, 1), logit_limits[1])
    below = nodes("Less", nodes.reduce("ReduceMin", rows, 1), logit_limits[0])
    return nodes("Or", flagged, nodes("Or", above, below))


def predicted(nodes: Nodes, rows: str) -> str:
    """The class of the largest logit (n,), the first of equals."""
    return nodes("ArgMax", rows, axis=1, keepdims=0)


def flag_finite_rows(nodes: Nodes, rows: str) -> str:
    """1.0 for a row of finite numbers, 0.0 for one with NaN or infinity; shape (n,)."""
    finite = nodes("Less", nodes("Abs", rows), math.inf)
    return nodes.reduce("ReduceMin", nodes.cast(finite, np.float64), 1)


def nan_unless(nodes: Nodes, good: str, scores: str) -> str:
    """The scores where ``good`` is 1.0, else NaN."""
    return nodes("Where", nodes("Greater", good, 0.5), scores, math.nan)


def not_below_zero(nodes: Nodes, value: str) -> str:
    """The value, cut at 0; NaN stays NaN, which Max need not respect."""
    return nodes("Where", nodes("Less", value, 0.0), 0.0, value)


def _is_top(nodes: Nodes, scaled: str) -> str:
    """Whether an entry is the largest of its row, the first of equals; (n, C)."""
    top = nodes("ArgMax", scaled, axis=1, keepdims=1)
    columns = nodes("Range", 0, nodes("Gather", nodes("Shape", scaled), 1), 1)
    return nodes("Equal", columns, top)


def _ood_position(nodes: Nodes, centred: str, own: str, position: OodPosition) -> str:
    """Whether a row lies where recent OoD rows of its predicted class lay (n,)."""

    def of_class(table: FloatArray) -> str:
        return nodes("Gather", nodes.constant(table), own)

    x = nodes("Mul", nodes("Sub", centred, of_class(position.mean)), of_class(position.inverse_deviation))
    x = nodes("Max", nodes("Min", x, REACH), -REACH)
    misfit = nodes("Sub", x, of_class(position.ood_mean))
    explained = nodes("Mul", nodes("Mul", misfit, misfit), of_class(position.inverse_variance))
    ratio = nodes.reduce("ReduceMean", nodes("Sub", nodes("Mul", x, x), explained), 1)
    evidence = nodes("Mul", nodes("Sub", ratio, of_class(position.log_variance)), of_class(position.trust))
    return not_below_zero(nodes, evidence)
