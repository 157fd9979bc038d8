"""Scores of a formula in numpy: one prepared function for a detector, however many others it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from normscale import _kernels, _validate
from normscale._validate import FloatArray, Rows
from normscale.detectors.formula import (
    BoundaryFormula,
    FeatureFormula,
    Formula,
    LogitFormula,
    SumFormula,
    offered_formula,
)
from normscale.detectors.row_blocks import block_rows, lengths, unit_rows
from normscale.outputs import FEATURES, LOGITS, ModelOutputs

if TYPE_CHECKING:
    from normscale.detectors.base import Detector

Scorer = Callable[[ModelOutputs, int], FloatArray]
"""Scores (n,) of outputs of checked shape on so many threads; a row that is not finite raises."""

Part = Callable[[ModelOutputs], FloatArray]
"""Scores (n,) of a block of rows; not finite where a row is not."""

_COLUMN_BLOCKS, _ROWS = 8, 512


class FormulaScores:
    """The scores of a formula, block by block."""

    def __init__(self, part: Part, reads: tuple[str, ...]) -> None:
        self.part, self.reads = part, reads

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


class OwnScores:
    """The scores of a detector as it computes them itself."""

    def __init__(self, detector: Detector) -> None:
        self.detector = detector

    def __call__(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return self.detector._score(outputs.only(*self.detector.reads), threads)


def scorer_of(detector: Detector) -> Scorer:
    """What scores by a fitted detector as it is now: its formula, where it offers one that numpy has a form of."""
    formula = offered_formula(detector) if set(detector.reads) <= {LOGITS, FEATURES} else None
    part = None if formula is None else _part(formula)
    return OwnScores(detector) if part is None else FormulaScores(part, detector.reads)


def _part(formula: Formula) -> Part | None:
    """What scores a block of rows by a formula, not finite where a row is not; None where numpy has no form of it."""
    if isinstance(formula, LogitFormula):
        return LogitScores(formula)
    if isinstance(formula, FeatureFormula):
        return NearestMean(formula)
    if isinstance(formula, BoundaryFormula):
        return BoundaryScores(formula)
    if isinstance(formula, SumFormula) and formula.ood_position is None:
        terms = [(weight, _part(term)) for weight, term in formula.terms]
        known = [(weight, part) for weight, part in terms if part is not None]
        return SumScores(known, formula.class_offset) if len(known) == len(terms) else None
    return None


class LogitScores:
    """Of a :class:`LogitFormula`: one kernel."""

    def __init__(self, formula: LogitFormula) -> None:
        self.kind, self.weight, self.centred = _kernels.KINDS[formula.kind], formula.weight, formula.centred
        self.shift, self.factor = formula.shift, formula.factor

    def __call__(self, outputs: ModelOutputs) -> FloatArray:
        logits = outputs.logits
        width = logits.shape[1]
        if self.factor.size != width or self.shift.size != width:
            self.shift, self.factor = (np.broadcast_to(one, width).copy() for one in (self.shift, self.factor))
        rows = _kernels.less_row_means(logits) if self.centred else logits
        scores = _kernels.scores_of("frozen_scores", rows, self.shift, self.factor, self.kind)
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
