"""A fitted detector as plain arrays, for graphs, and scores by them in numpy.

The formula is what anyone needs who computes the scores elsewhere, in an ONNX graph or in torch. There is one for
logits, one for features, one for both, and the sum of others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from normscale import _kernels, _validate
from normscale._kernels import BlockState
from normscale._kernels.mixture import REACH as REACH
from normscale._kernels.mixture import SHARED_COUNT as SHARED_COUNT
from normscale._kernels.mixture import SHARED_MOST as SHARED_MOST
from normscale._kernels.mixture import SHARED_REACH as SHARED_REACH
from normscale._validate import FloatArray, Rows
from normscale.detectors.row_blocks import block_rows, lengths, unit_rows
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs

if TYPE_CHECKING:
    from normscale.detectors.base import Detector

TIE = 1e-12
"""Scores this much above a threshold, relative to it, are equal to it: elsewhere exp and log round differently."""


class OodPosition(NamedTuple):
    """Whether a row lies where recent OoD rows of its predicted class c lay.

    With x = (z - mean(z) - mean_c) * inverse_deviation_c, cut off at -REACH and REACH, it is

        max(0, trust_c * (mean_j(x_j^2 - (x_j - ood_mean_cj)^2 * inverse_variance_cj) - log_variance_c))
    """

    mean: FloatArray  # (C, C)
    inverse_deviation: FloatArray  # (C, C)
    ood_mean: FloatArray  # (C, C)
    inverse_variance: FloatArray  # (C, C)
    log_variance: FloatArray  # (C,)
    trust: FloatArray  # (C,) 0 for a class without OoD rows


class SharedPosition(NamedTuple):
    """Whether a row's features lie where recent OoD rows of all classes lay.

    With y = (features of length one) @ directions - centre, cut off at -SHARED_REACH and SHARED_REACH, it is

        trusted * min(SHARED_MOST, max(0, SHARED_COUNT / 2 * trust
            * (mean_j(y_j^2 - (y_j - mean_j)^2 * inverse_variance_j) - log_variance)))
    """

    directions: FloatArray  # (d, k)
    centre: FloatArray  # (k,)
    mean: FloatArray  # (k,)
    inverse_variance: FloatArray  # (k,)
    log_variance: FloatArray  # (1,)
    trust: FloatArray  # (1,)
    trusted: FloatArray  # (1,)


class LogitFormula(NamedTuple):
    """``weight * kind((z - shift) * factor)`` with ``kind`` as in :mod:`normscale._kernels`.

    ``shift`` and ``factor`` have the shape (C,), or (1,) where all are the same.
    """

    kind: str
    shift: FloatArray
    factor: FloatArray
    weight: float = 1.0
    centred: bool = False
    """Whether z is the row of logits less its mean."""

    @property
    def is_plain(self) -> bool:
        """Whether it is ``weight * kind(factor * z)`` with one factor for all classes."""
        return not self.centred and not self.shift.any() and self.factor.size == 1


class FeatureFormula(NamedTuple):
    """Squared distance of (f - centre) @ whitening to the nearest of ``means``, never below 0."""

    centre: FloatArray  # (d,)
    whitening: FloatArray  # (d, r)
    means: FloatArray  # (k, r) of the classes, centred and whitened
    unit: bool = False
    """Whether f is a row of features divided by its length; a row of zeros stays one."""


class BoundaryFormula(NamedTuple):
    """``sum_k (z_k - z_c) closeness_ck / |f - mean|`` for a row predicted as class c."""

    closeness: FloatArray  # (C, C)
    mean: FloatArray  # (d,)
    shortest: float
    """Length that |f - mean| never falls below."""


class SumFormula(NamedTuple):
    """``sum_i weight_i formula_i - class_offset_c + ood_position_c(z) + shared_position(f)`` for a row of class c."""

    terms: tuple[tuple[float, Formula], ...]
    class_offset: FloatArray  # (C,), or (1,) where all are the same
    ood_position: OodPosition | None = None
    shared_position: SharedPosition | None = None


class RectifiedFormula(NamedTuple):
    """A formula of the logits that the last layer makes of features cut off above: min(f, limit) @ weight.T + bias."""

    limit: float
    weight: FloatArray  # (C, d)
    bias: FloatArray  # (C,)
    then: LogitFormula | SumFormula


Formula = LogitFormula | FeatureFormula | BoundaryFormula | RectifiedFormula | SumFormula
"""How a graph can compute scores."""


def arrays_of(formula: Formula) -> set[str]:
    """Which of logits and features a formula reads."""
    if isinstance(formula, SumFormula):
        by_class = formula.class_offset.size > 1 or formula.ood_position is not None
        features = {FEATURES} if formula.shared_position is not None else ()
        return set(features).union({LOGITS} if by_class else (), *(arrays_of(term) for _, term in formula.terms))
    if isinstance(formula, LogitFormula):
        return {LOGITS}
    return {LOGITS, FEATURES} if isinstance(formula, BoundaryFormula) else {FEATURES}


class MomentFormula(NamedTuple):
    """Running statistics that are nothing but moments of the logits, which take a row in before it is scored.

    With mean mu and deviation sigma of every logit, score = weight * kind((z - mu) / (temperature * sigma)).
    """

    kind: str
    temperature: float
    weight: float
    state: BlockState
    """The moments as they are now."""


def with_logit_terms(formula: Formula | None, change: Callable[[LogitFormula], LogitFormula]) -> Formula | None:
    """A formula with every term on logits changed; None where other terms are in it."""
    if isinstance(formula, LogitFormula):
        return change(formula)
    if not isinstance(formula, SumFormula):
        return None
    terms = [(weight, with_logit_terms(term, change)) for weight, term in formula.terms]
    known = tuple((weight, term) for weight, term in terms if term is not None)
    return formula._replace(terms=known) if len(known) == len(terms) else None


def plain_formula(kind: str, temperature: float = 1.0, weight: float = 1.0) -> LogitFormula:
    """The formula ``weight * kind(z / temperature)``."""
    return LogitFormula(kind, np.zeros(1), np.array([1.0 / temperature]), weight)


def formula_of(detector: Detector) -> Formula:
    """The formula that gives ``detector.score``, with the statistics as they are now."""
    detector._require_fitted()
    formula = offered_formula(detector)
    if formula is None:
        raise InvalidInput(
            f"{detector.name} ({type(detector).__name__}) has no formula that a graph could carry: its class offers "
            "none for these parameters. Score its outputs in Python, by detector.score."
        )
    return formula


def offered_formula(detector: Detector) -> Formula | None:
    """The formula that a fitted detector offers; None where it inherits one and scores otherwise."""
    return detector._formula() if _works_as_its_formula(type(detector), "_formula", "_score", "_score_at") else None


def moment_formula_of(detector: Detector) -> MomentFormula:
    """The moments that a graph can carry from batch to batch, and how it scores by them as ``detector.stream`` does."""
    detector._require_fitted()
    why = "it has no running statistics"
    if detector._runs:
        works = _works_as_its_formula(type(detector), "_moment_formula", "_step", "_prepare")
        if works and (formula := detector._moment_formula()) is not None:
            return formula
        why = "its running statistics are not just moments of the logits, and no fixed graph can move them"
    raise InvalidInput(
        f"stateful needs statistics that are moments of the logits and move; got {detector.name}: {why}. "
        "Leave stateful out (statistics are then frozen as they are), or stream in Python."
    )


def _works_as_its_formula(cls: type[Detector], offer: str, *ways: str) -> bool:
    """False for a subclass that scores in a way of its own and inherits the formula that it ``offers``."""
    for ancestor in cls.__mro__:
        if offer in vars(ancestor):
            return True
        if any(way in vars(ancestor) for way in (*ways, "_transform")):
            return False
    return False


def logit_limits_of(detector: Detector) -> tuple[float, float] | None:
    """The logits beyond which a row lies far outside of training; None where there are no such limits."""
    low, high = detector._logit_limits
    return (low, high) if detector._marks_far_rows and np.isfinite(low) else None


def limits_of(detector: Detector) -> FloatArray | None:
    """The scores above which a row is flagged, (1,) or one for each predicted class (C,); None without a threshold.

    They lie a rounding error (:data:`TIE`) above the threshold: it is itself the score of some row, and that row must
    be accepted also where its last bit comes out differently.
    """
    if detector.threshold_ is None:
        return None
    values = detector.threshold_.per_class
    limits = np.array([detector.threshold_.value] if values is None else values, dtype=np.float64)
    size = np.abs(np.where(np.isfinite(limits), limits, 0.0))
    formula = detector._formula()
    if isinstance(formula, RectifiedFormula):
        formula = formula.then
    if isinstance(formula, SumFormula):
        size = np.maximum(size, np.abs(formula.class_offset).max())  # the score is a difference of larger numbers
    return limits + TIE * np.maximum(1.0, size)


Scorer = Callable[[ModelOutputs, int], FloatArray]
"""Scores (n,) of outputs of checked shape on so many threads; a row that is not finite raises."""

Part = Callable[[ModelOutputs], FloatArray]
"""Scores (n,) of a block of rows; not finite where a row is not."""

_COLUMN_BLOCKS, _ROWS = 8, 512


class FormulaScores:
    """The scores of a formula, block by block."""

    def __init__(self, part: Part, reads: tuple[str, ...]) -> None:
        self.part, self.reads = part, reads

    @classmethod
    def of(cls, formula: Formula | None, reads: tuple[str, ...]) -> FormulaScores | None:
        """None where there is no formula, or numpy has no form of it."""
        if isinstance(formula, LogitFormula) and len(reads) == 1:
            return cls(LogitScores(formula, reads[0]), reads)
        part = None if formula is None or not set(reads) <= {LOGITS, FEATURES} else _part(formula)
        return None if part is None else cls(part, reads)

    def __call__(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        size = block_rows(max(outputs.array(name).shape[1] for name in self.reads))
        if len(outputs) <= size:
            scores = self.part(outputs)
        else:
            starts = range(0, len(outputs), size)
            scores = np.concatenate(_kernels.side_by_side(lambda a: self.part(outputs[a : a + size]), starts, threads))
        if not np.isfinite(scores).all():
            bad = (name for name in self.reads if not np.isfinite(outputs.array(name)).all())
            name = next(bad, self.reads[-1])
            raise _validate.invalid_row_error(outputs.array(name), name, can_skip=True)
        return scores


def scorer_of(detector: Detector) -> Scorer:
    """What scores by a fitted detector as it is now: its formula, where it offers one that numpy has a form of."""
    return FormulaScores.of(offered_formula(detector), detector.reads) or partial(_own_scores, detector)


def _own_scores(detector: Detector, outputs: ModelOutputs, threads: int) -> FloatArray:
    return detector._score(outputs.only(*detector.reads), threads)


def _part(formula: Formula) -> Part | None:
    """What scores a block of rows by a formula, not finite where a row is not; None where numpy has no form of it."""
    if isinstance(formula, LogitFormula):
        return LogitScores(formula)
    if isinstance(formula, FeatureFormula):
        return NearestMean(formula)
    if isinstance(formula, BoundaryFormula):
        return BoundaryScores(formula)
    if isinstance(formula, SumFormula) and formula.ood_position is None and formula.shared_position is None:
        terms = [(weight, _part(term)) for weight, term in formula.terms]
        known = [(weight, part) for weight, part in terms if part is not None]
        return SumScores(known, formula.class_offset) if len(known) == len(terms) else None
    return None


class LogitScores:
    """Of a :class:`LogitFormula`: one kernel; ``name`` is the array that has the logits."""

    def __init__(self, formula: LogitFormula, name: str = LOGITS) -> None:
        self.name = name
        self.kind, self.weight, self.centred = _kernels.KINDS[formula.kind], formula.weight, formula.centred
        self.shift, self.factor = formula.shift, formula.factor

    def __call__(self, outputs: ModelOutputs) -> FloatArray:
        logits = outputs.array(self.name)
        width = logits.shape[1]
        if self.factor.size != width or self.shift.size != width:
            self.shift, self.factor = (np.broadcast_to(one, width).copy() for one in (self.shift, self.factor))
        rows = _kernels.less_row_means(logits) if self.centred else logits
        scores = _kernels.frozen_scores(rows, self.shift, self.factor, self.kind)
        return np.full(len(logits), np.nan) if scores is None else self.weight * scores


class NearestMean:
    """Of a :class:`FeatureFormula`: squared distances to the nearest mean.

    Any rotation of the whitened space leaves distances as they are. The one that makes the whitening matrix lower
    triangular spares nearly half of the product: the j-th block of columns reads the features from j on.
    """

    def __init__(self, formula: FeatureFormula) -> None:
        rotation, upper = np.linalg.qr(formula.whitening.T)
        triangular, means = upper.T, formula.means @ rotation
        self.centre, self.unit = formula.centre, formula.unit
        self.squared_norms = np.einsum("ij,ij->i", means, means)
        step = -(-triangular.shape[1] // _COLUMN_BLOCKS)
        self.blocks = [
            (
                j,
                np.ascontiguousarray(triangular[j:, j : j + step]),
                np.ascontiguousarray(-2.0 * means[:, j : j + step].T),
            )
            for j in range(0, triangular.shape[1], step)
        ]

    def __call__(self, outputs: ModelOutputs) -> FloatArray:
        return self.squared(outputs.features)

    def squared(self, rows: Rows) -> FloatArray:
        """Squared distances (n,) of rows (n, d); not finite where a row is not."""
        found = np.empty(len(rows))
        for a in range(0, len(rows), _ROWS):
            with np.errstate(over="ignore", invalid="ignore"):
                block = np.array(rows[a : a + _ROWS], dtype=np.float64)
                block = unit_rows(block) if self.unit else block
                block -= self.centre
                norms, to_means = np.zeros(len(block)), np.tile(self.squared_norms, (len(block), 1))
                for j, whitening, means in self.blocks:
                    white = block[:, j:] @ whitening
                    to_means += white @ means
                    norms += np.einsum("ij,ij->i", white, white)
                np.add(norms, to_means.min(axis=1), out=found[a : a + _ROWS])
        return np.maximum(found, 0.0, out=found)


class BoundaryScores:
    """Of a :class:`BoundaryFormula`."""

    def __init__(self, formula: BoundaryFormula) -> None:
        self.formula = formula

    def __call__(self, outputs: ModelOutputs) -> FloatArray:
        closeness, mean, shortest = self.formula
        with np.errstate(over="ignore", invalid="ignore"):
            logits, features = outputs.logits.astype(np.float64), outputs.features - mean
            predicted = logits.argmax(axis=1)
            logits -= logits[np.arange(predicted.size), predicted][:, None]
            to_boundaries = np.einsum("ij,ij->i", logits, closeness[predicted])  # minus the distances
            return np.asarray(to_boundaries / np.maximum(lengths(features), shortest))


class SumScores:
    """Of a :class:`SumFormula`: those of its terms, weighted, less the offset of the predicted class."""

    def __init__(self, terms: list[tuple[float, Part]], offset: FloatArray) -> None:
        self.terms, self.offset = terms, offset

    def __call__(self, outputs: ModelOutputs) -> FloatArray:
        total = -self.offset if self.offset.size == 1 else -self.offset[outputs.predicted]
        for weight, score in self.terms:
            total = total + weight * score(outputs)
        return total
