"""The formula of a detector of logits as a torch layer, with its statistics as they are."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from normscale._validate import FloatArray
from normscale.detectors.formula import REACH, LogitFormula, OodPosition
from normscale.export.torch.double_buffers import DoubleBuffers
from normscale.export.torch.moment_scorer import score_rows


class FormulaScorer(DoubleBuffers):
    """Computes a :class:`normscale.detectors.formula.LogitFormula`; its arrays are float64 buffers.

    A row with NaN or infinity scores NaN; nothing raises, so that no device has to be waited for.
    """

    def __init__(self, formula: LogitFormula) -> None:
        """Copy the arrays into buffers."""
        super().__init__()
        self.kind = formula.kind
        self.centred = formula.centred
        self._keep("weight", np.array([formula.weight]))
        self._keep("largest_weight", np.array([formula.largest_weight]) if formula.largest_weight else None)
        self._keep("shift", formula.shift)
        self._keep("factor", formula.factor)
        self._keep("class_offset", formula.class_offset)
        position = formula.ood_position
        self.has_ood_position = position is not None
        for name, table in ({} if position is None else position._asdict()).items():
            self._keep(name, table)

    def forward(self, logits: Tensor) -> Tensor:
        """Scores (n,), float64, of logits (n, C)."""
        rows = logits.to(torch.float64)
        centred = rows - rows.mean(dim=1, keepdim=True)
        used = centred if self.centred else rows
        scores = self._of("weight") * score_rows((used - self._of("shift")) * self._of("factor"), self.kind)
        predicted = rows.argmax(dim=1)
        if self.largest_weight is not None:
            scores = scores - self._of("largest_weight") * used.max(dim=1).values
        if self.class_offset is not None:
            scores = scores - self._of("class_offset")[predicted]
        if self.has_ood_position:
            scores = scores + self._ood_position(centred, predicted)
        return torch.where(rows.isfinite().all(dim=1), scores, math.nan)

    def _ood_position(self, centred: Tensor, predicted: Tensor) -> Tensor:
        mean, inverse_deviation, ood_mean, inverse_variance, log_variance, trust = (
            self._of(name)[predicted] for name in OodPosition._fields
        )
        x = ((centred - mean) * inverse_deviation).clamp(-REACH, REACH)
        misfit = x - ood_mean
        ratio = (x * x - misfit * misfit * inverse_variance).mean(dim=1)
        return (trust * (ratio - log_variance)).clamp_min(0.0)

    def _keep(self, name: str, values: FloatArray | None) -> None:
        self.register_buffer(name, None if values is None else torch.from_numpy(values.copy()))

    def _of(self, name: str) -> Tensor:
        buffer: Tensor = getattr(self, name)
        return buffer
