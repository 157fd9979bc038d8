"""The formula of a detector as a torch layer, with its statistics as they are."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from normscale._validate import FloatArray
from normscale.detectors.formula import (
    REACH,
    BoundaryFormula,
    FeatureFormula,
    Formula,
    LogitFormula,
    OodPosition,
    SumFormula,
    arrays_of,
)
from normscale.errors import InvalidInput
from normscale.export.torch.double_buffers import DoubleBuffers
from normscale.export.torch.moment_scorer import score_rows
from normscale.outputs import FEATURES, LOGITS


class FormulaScorer(nn.Module):
    """Computes a :class:`~normscale.detectors.formula.Formula`; its arrays are float64 buffers.

    A row with NaN or infinity scores NaN; nothing raises, so that no device has to be waited for.
    """

    def __init__(self, formula: Formula) -> None:
        """Copy the arrays into buffers."""
        super().__init__()
        self.reads = tuple(sorted(arrays_of(formula)))
        self.term = _term(formula)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Scores (n,), float64, of logits (n, C) and, where the formula reads them, features (n, d)."""
        rows = logits.to(torch.float64)
        inner = rows if features is None else features.to(torch.float64)
        scores: Tensor = self.term(rows, inner)
        for name in self.reads:
            scores = torch.where((rows if name == LOGITS else inner).isfinite().all(dim=1), scores, math.nan)
        return scores


class _Term(DoubleBuffers):
    """A part of a formula: logits and features in, scores out, all float64."""

    def _keep(self, **arrays: FloatArray | float) -> None:
        for name, values in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.atleast_1d(np.array(values, dtype=np.float64))))

    def _of(self, name: str) -> Tensor:
        buffer: Tensor = getattr(self, name)
        return buffer


class _Logits(_Term):
    def __init__(self, formula: LogitFormula) -> None:
        super().__init__()
        self.kind, self.centred = formula.kind, formula.centred
        self._keep(weight=formula.weight, shift=formula.shift, factor=formula.factor)

    def forward(self, logits: Tensor, features: Tensor) -> Tensor:
        used = logits - logits.mean(dim=1, keepdim=True) if self.centred else logits
        return self._of("weight") * score_rows((used - self._of("shift")) * self._of("factor"), self.kind)


class _Features(_Term):
    def __init__(self, formula: FeatureFormula) -> None:
        super().__init__()
        self.unit = formula.unit
        self._keep(centre=formula.centre, whitening=formula.whitening, means=formula.means)

    def forward(self, logits: Tensor, features: Tensor) -> Tensor:
        if self.unit:
            largest = features.abs().amax(dim=1, keepdim=True)
            features = features / torch.where(largest > 0.0, largest, 1.0)
            length = features.square().sum(dim=1, keepdim=True).sqrt()
            features = features / torch.where(length > 0.0, length, 1.0)
        white = (features - self._of("centre")) @ self._of("whitening")
        means = self._of("means")
        to_means = (means.square().sum(dim=1) - 2.0 * white @ means.T).amin(dim=1)
        return (white.square().sum(dim=1) + to_means).clamp_min(0.0)


class _Boundaries(_Term):
    def __init__(self, formula: BoundaryFormula) -> None:
        super().__init__()
        self.shortest = formula.shortest
        self._keep(closeness=formula.closeness, mean=formula.mean)

    def forward(self, logits: Tensor, features: Tensor) -> Tensor:
        below = logits - logits.amax(dim=1, keepdim=True)
        to_boundaries = (below * self._of("closeness")[logits.argmax(dim=1)]).sum(dim=1)
        length = (features - self._of("mean")).square().sum(dim=1).sqrt()
        return to_boundaries / length.clamp_min(self.shortest)


class _Sum(_Term):
    def __init__(self, formula: SumFormula) -> None:
        super().__init__()
        self.terms = nn.ModuleList(_term(term) for _, term in formula.terms)
        self._keep(weights=np.array([weight for weight, _ in formula.terms]), class_offset=formula.class_offset)
        self.has_ood_position = formula.ood_position is not None
        if formula.ood_position is not None:
            self._keep(**formula.ood_position._asdict())

    def forward(self, logits: Tensor, features: Tensor) -> Tensor:
        parts = [term(logits, features) for term in self.terms]
        scores: Tensor = (self._of("weights")[:, None] * torch.stack(parts)).sum(dim=0)
        if self._of("class_offset").numel() == 1:
            return scores - self._of("class_offset")
        predicted = logits.argmax(dim=1)
        scores = scores - self._of("class_offset")[predicted]
        return scores + self._ood_position(logits, predicted) if self.has_ood_position else scores

    def _ood_position(self, logits: Tensor, predicted: Tensor) -> Tensor:
        mean, inverse_deviation, ood_mean, inverse_variance, log_variance, trust = (
            self._of(name)[predicted] for name in OodPosition._fields
        )
        centred = logits - logits.mean(dim=1, keepdim=True)
        x = ((centred - mean) * inverse_deviation).clamp(-REACH, REACH)
        misfit = x - ood_mean
        ratio = (x * x - misfit * misfit * inverse_variance).mean(dim=1)
        return (trust * (ratio - log_variance)).clamp_min(0.0)


def _term(formula: Formula) -> _Term:
    if isinstance(formula, LogitFormula):
        return _Logits(formula)
    if isinstance(formula, FeatureFormula):
        return _Features(formula)
    if isinstance(formula, BoundaryFormula):
        return _Boundaries(formula)
    if isinstance(formula, SumFormula):
        return _Sum(formula)
    raise InvalidInput(
        f"a torch module has no layer for {type(formula).__name__}; score in Python, or use normscale export."
    )


def reads_features(scorer: nn.Module) -> bool:
    """Whether a scorer needs features besides logits."""
    return isinstance(scorer, FormulaScorer) and FEATURES in scorer.reads
