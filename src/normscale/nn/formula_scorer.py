"""Any detector of logits as a layer, with its statistics as they are."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from normscale._validate import FloatArray
from normscale.detectors.formula import LogitFormula, Position
from normscale.nn._double import DoubleBuffers
from normscale.nn.head import score_rows


class FormulaHead(DoubleBuffers):
    """What :class:`normscale.detectors.formula.LogitFormula` says, in torch; its arrays are float64 buffers.

    A row with NaN or infinity scores NaN; nothing raises, so that no device has to be waited for.
    """

    def __init__(self, formula: LogitFormula) -> None:
        """Copy the arrays into buffers."""
        super().__init__()
        self.kind = formula.kind
        self._keep("times", np.array([formula.times]))
        self._keep("size", np.array([formula.size]) if formula.size else None)
        self._keep("shift", formula.shift)
        self._keep("factor", formula.factor)
        self._keep("less", formula.less)
        self.has_position = formula.position is not None
        for name, table in (formula.position._asdict() if formula.position is not None else {}).items():
            self._keep(name, table)

    def forward(self, logits: Tensor) -> Tensor:
        """Scores (n,), float64, of logits (n, C)."""
        rows = logits.to(torch.float64)
        scores = self._of("times") * score_rows((rows - self._of("shift")) * self._of("factor"), self.kind)
        top, predicted = rows.max(dim=1)
        if self.size is not None:
            scores = scores - self._of("size") * top
        if self.less is not None:
            scores = scores - self._of("less")[predicted]
        if self.has_position:
            scores = scores + self._position(rows, predicted)
        return torch.where(rows.isfinite().all(dim=1), scores, math.nan)

    def _position(self, rows: Tensor, predicted: Tensor) -> Tensor:
        mean, inverse_deviation, outside_mean, inverse_variance, log_variance, trust = (
            self._of(name)[predicted] for name in Position._fields
        )
        x = (rows - mean) * inverse_deviation
        misfit = x - outside_mean
        ratio = (x * x - misfit * misfit * inverse_variance).mean(dim=1)
        return (trust * (ratio - log_variance)).clamp_min(0.0)

    def _keep(self, name: str, values: FloatArray | None) -> None:
        self.register_buffer(name, None if values is None else torch.from_numpy(values.copy()))

    def _of(self, name: str) -> Tensor:
        buffer: Tensor = getattr(self, name)
        return buffer
