"""Scores of a detector's formula, written once for torch tensors and for the tensors of an ONNX graph.

An ``Array`` is a torch.Tensor, or a tensor of a graph (``export/onnx/graph_array.py``) with the methods that are used
here. Scores are computed in float64 and in log space, so that no confident row saturates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from normscale._kernels import TINY_VARIANCE
from normscale.detectors.baseline import FAR_SCORE
from normscale.detectors.formula import (
    REACH,
    SHARED_COUNT,
    SHARED_MOST,
    SHARED_REACH,
    BoundaryFormula,
    FeatureFormula,
    LogitFormula,
    MomentFormula,
    OodPosition,
    RectifiedFormula,
    SharedPosition,
)
from normscale.outputs import FEATURES, LOGITS

Array: TypeAlias = Any
State: TypeAlias = tuple[Array, Array, Array]
"""Weight (1,), mean (C,) and sum of squared deviations (C,) of the logits so far."""
LogitLimits: TypeAlias = tuple[float, float] | None
"""The logits beyond which a row lies far outside of training."""


def with_numbers(formula: Any, replace: Callable[[str, Any], Any], name: str = "") -> Any:
    """A formula with every number and array in it replaced; ``replace`` takes the path to it and its value."""
    if isinstance(formula, (float, np.ndarray)) or type(formula) is int:
        return replace(name, formula)
    if not isinstance(formula, tuple):
        return formula
    fields = getattr(formula, "_fields", range(len(formula)))
    parts = [with_numbers(part, replace, f"{name}_{field}") for field, part in zip(fields, formula, strict=True)]
    return type(formula)(*parts) if hasattr(formula, "_fields") else tuple(parts)


def formula_scores(
    formula: Any, rows: Mapping[str, Array], reads: Iterable[str], logit_limits: LogitLimits = None
) -> Array:
    """Scores (n,) of float64 arrays (n, any width) by name; NaN where a row of an array in ``reads`` is not finite.

    A row with a logit beyond the limits gets the highest score.
    """
    scores = _scores(formula, rows)
    if logit_limits is not None:
        scores = scores.masked_fill(_far_rows(rows[LOGITS], logit_limits), FAR_SCORE)
    for name in reads:
        scores = scores.where(rows[name].isfinite().all(dim=1), math.nan)
    return scores


def stream_scores(
    formula: MomentFormula,
    logits: Array,
    state: State,
    concatenate: Callable[[list[Array]], Array],
    logit_limits: LogitLimits = None,
) -> tuple[Array, State]:
    """Scores of logits (n, C), each row by the moments that include it, and the moments after the last row.

    A row with NaN or infinity scores NaN, one with a logit beyond the limits gets the highest score; neither is taken
    in. Where a number is too large to be squared, all scores
    are NaN and the state stays.

    As in :mod:`normscale._kernels.reference` the first row is taken in by Welford's step. From then on the weight is
    at least 1, and running sums of deviations from the mean, and of their squares, lose no digits that matter. Line 0
    is the mean so far with weight 0, so there is a first line even without a good row.
    """
    weight, mean, m2 = state
    finite = good = logits.isfinite().all(dim=1)
    if logit_limits is not None:
        good = good & ~_far_rows(logits, logit_limits)
    lines = concatenate([mean.reshape(1, -1), logits.where(good.reshape(-1, 1), 0.0)])
    counted = concatenate([weight.reshape(1, 1) * 0.0, good.double().reshape(-1, 1)])
    taken = counted.cumsum(0)
    counts = taken + weight
    place = counted.argmax(dim=0)
    first, first_weight = lines[place], counted[place]
    start = mean + (first - mean) * (first_weight / (first_weight + weight))
    start_squares = m2 + (first - mean) * (first - start)
    deviation = lines - start
    later = deviation * counted * (taken > 1.5).double()
    moved = later.cumsum(0) / counts
    squares = ((later * later).cumsum(0) + start_squares - counts * moved * moved).clamp_min(0.0)
    scaled = (deviation - moved) / (squares / counts).clamp_min(TINY_VARIANCE).sqrt() / formula.temperature
    scores = _kind_scores(scaled[1:], formula.kind) * formula.weight
    after = counts[-1], (moved + start)[-1], squares[-1]
    fine = after[1].isfinite().all(dim=0) & after[2].isfinite().all(dim=0)
    kept = [new.where(fine, old) for new, old in zip(after, state, strict=True)]
    scores = scores.where(good, FAR_SCORE).where(finite & fine, math.nan)
    return scores, (kept[0], kept[1], kept[2])


def flags(scores: Array, limits: Array, logits: Array) -> Array:
    """Which rows are OoD (n,): a score above the limit (of the predicted class) or NaN.

    ``limits`` has the shape (1,) or (C,).
    """
    limit = limits if limits.shape[0] == 1 else limits[logits.argmax(dim=1)]
    return scores.isnan() | (scores > limit)


def _far_rows(logits: Array, logit_limits: tuple[float, float]) -> Array:
    """Which rows (n,) have a logit beyond the limits."""
    return (logits.amin(dim=1) < logit_limits[0]) | (logits.amax(dim=1) > logit_limits[1])


def _scores(formula: Any, rows: Mapping[str, Array]) -> Array:
    if isinstance(formula, LogitFormula):
        logits = _centred(rows[LOGITS]) if formula.centred else rows[LOGITS]
        return _kind_scores((logits - formula.shift) * formula.factor, formula.kind) * formula.weight
    if isinstance(formula, FeatureFormula):
        return _distances(formula, rows[FEATURES])
    if isinstance(formula, BoundaryFormula):
        return _boundary_distances(formula, rows[LOGITS], rows[FEATURES])
    if isinstance(formula, RectifiedFormula):
        logits = rows[FEATURES].clamp_max(formula.limit) @ formula.weight.T + formula.bias
        return formula_scores(formula.then, {LOGITS: logits}, (LOGITS,))
    total = 0.0
    for weight, term in formula.terms:
        total = _scores(term, rows) * weight + total
    if formula.class_offset.shape[0] == 1:
        return total - formula.class_offset
    predicted = rows[LOGITS].argmax(dim=1)
    total = total - formula.class_offset[predicted]
    if formula.ood_position is not None:
        total = total + _ood_evidence(formula.ood_position, _centred(rows[LOGITS]), predicted)
    if formula.shared_position is not None:
        total = total + _shared_evidence(formula.shared_position, rows[FEATURES])
    return total


def _kind_scores(scaled: Array, kind: str) -> Array:
    """Scores (n,) of scaled logits (n, C)."""
    top = scaled.amax(dim=1)
    if kind == "max":
        return -top
    if kind == "log_sum_exp":
        return -(top + (scaled - top.reshape(-1, 1)).exp().sum(dim=1).log())
    # log sum_{j != top} exp(z_j - z_top), relative to the second largest, so that the sum is at least 1
    others = scaled.scatter(1, scaled.argmax(dim=1, keepdim=True), -math.inf)
    second = others.amax(dim=1)
    return second - top + (others - second.reshape(-1, 1)).exp().sum(dim=1).log()


def _distances(formula: FeatureFormula, features: Array) -> Array:
    """Squared distances (n,) of features (n, d) to the nearest mean."""
    features = _unit_rows(features) if formula.unit else features
    means: Array = formula.means
    white = (features - formula.centre) @ formula.whitening
    to_means = (means * means).sum(dim=1) - white @ means.T * 2.0
    return ((white * white).sum(dim=1) + to_means.amin(dim=1)).clamp_min(0.0)


def _boundary_distances(formula: BoundaryFormula, logits: Array, features: Array) -> Array:
    """Minus the mean distance (n,) to the decision boundaries, over that of the features to their mean."""
    below = logits - logits.amax(dim=1, keepdim=True)
    apart = features - formula.mean
    length = (apart * apart).sum(dim=1).sqrt()
    return (below * formula.closeness[logits.argmax(dim=1)]).sum(dim=1) / length.clamp_min(formula.shortest)


def _ood_evidence(position: OodPosition, centred: Array, predicted: Array) -> Array:
    """Whether a row lies where recent OoD rows of its predicted class lay (n,)."""
    mean, inverse_deviation, ood_mean, inverse_variance, log_variance, trust = (part[predicted] for part in position)
    x = ((centred - mean) * inverse_deviation).clamp_min(-REACH).clamp_max(REACH)
    misfit = x - ood_mean
    ratio = (x * x - misfit * misfit * inverse_variance).mean(dim=1)
    return ((ratio - log_variance) * trust).clamp_min(0.0)


def _shared_evidence(position: SharedPosition, features: Array) -> Array:
    """Whether the features of a row lie where recent OoD rows of all classes lay (n,)."""
    y = _unit_rows(features) @ position.directions - position.centre
    y = y.clamp_min(-SHARED_REACH).clamp_max(SHARED_REACH)
    misfit = y - position.mean
    ratio = (y * y - misfit * misfit * position.inverse_variance).mean(dim=1)
    evidence = ((ratio - position.log_variance) * position.trust * (0.5 * SHARED_COUNT)).clamp_min(0.0)
    return evidence.clamp_max(SHARED_MOST) * position.trusted


def _unit_rows(rows: Array) -> Array:
    """Rows divided by their lengths; first by the largest number, so that no square under- or overflows."""
    largest = rows.abs().amax(dim=1, keepdim=True)
    rows = rows / largest.where(largest > 0.0, 1.0)
    length = (rows * rows).sum(dim=1, keepdim=True).sqrt()
    return rows / length.where(length > 0.0, 1.0)


def _centred(logits: Array) -> Array:
    return logits - logits.mean(dim=1, keepdim=True)
