"""The score of a detector as a torch layer: a formula as it is, or running moments that each row moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from normscale.detectors.formula import Formula, MomentFormula, arrays_of
from normscale.export.scoring import LogitLimits, State, formula_scores, stream_scores, with_numbers
from normscale.moments import RunningMoments
from normscale.outputs import FEATURES, LOGITS


class DoubleBuffers(nn.Module):
    """A module whose own buffers move to other devices as asked, but never to another precision."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            now = self._buffers[name]
            if buffer is not None and now is not None and now.dtype != torch.float64:
                self._buffers[name] = buffer.to(now.device)
        return self

    def _keep(self, name: str, value: Any) -> int:
        """Make a number or an array a buffer; what is left in its place is 0."""
        self.register_buffer(name, torch.from_numpy(np.atleast_1d(np.array(value, dtype=np.float64))))
        return 0


class FormulaScorer(DoubleBuffers):
    """Computes a :class:`~normscale.detectors.formula.Formula`; its arrays are float64 buffers.

    A row with NaN or infinity scores NaN, one with a logit beyond ``logit_limits`` gets the highest score; nothing
    raises, so that no device has to be waited for.
    """

    def __init__(self, formula: Formula, logit_limits: LogitLimits = None) -> None:
        super().__init__()
        self.logit_limits = logit_limits
        self.reads = tuple(sorted(arrays_of(formula)))
        self.formula = with_numbers(formula, self._keep)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Scores (n,), float64, of logits (n, C) and, where the formula reads them, features (n, d)."""
        rows = {LOGITS: logits.double()} | ({} if features is None else {FEATURES: features.double()})
        formula = with_numbers(self.formula, lambda name, _: getattr(self, name))
        scores: Tensor = formula_scores(formula, rows, self.reads, self.logit_limits)
        return scores


class MomentScorer(DoubleBuffers):
    """Takes each row of logits into the running moments, then scores it, as the numpy detector's ``stream`` does.

    ``count`` (1,), ``mean`` (C,) and ``m2`` (C,) are buffers, in float64 whatever ``to`` is asked for (devices without
    float64, such as MPS, cannot hold them). A row with NaN or infinity scores NaN and is not taken in. In
    ``DistributedDataParallel`` pass ``broadcast_buffers=False``, or rank 0's statistics replace the others'.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self, formula: MomentFormula, logit_limits: LogitLimits = None) -> None:
        super().__init__()
        self.logit_limits = logit_limits
        self.formula = formula._replace(state=None)  # type: ignore[arg-type]  # the buffers hold it
        for name, value in zip(("count", "mean", "m2"), formula.state, strict=True):
            self._keep(name, value)

    @property
    def moments(self) -> RunningMoments:
        """A copy of the statistics in numpy."""
        return RunningMoments.from_state(float(self.count[0]), self.mean.cpu().numpy(), self.m2.cpu().numpy())

    @torch.no_grad()
    def forward(self, logits: Tensor) -> Tensor:
        """Scores (n,), float64, of logits (n, C) of any float dtype; higher = more out-of-distribution."""
        before: State = (self.count, self.mean, self.m2)
        scores, after = stream_scores(self.formula, logits.double(), before, torch.cat, self.logit_limits)
        for buffer, value in zip(before, after, strict=True):
            buffer.copy_(value)
        result: Tensor = scores
        return result
