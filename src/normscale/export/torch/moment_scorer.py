"""Running moments of logits as a torch layer: the statistics are buffers, a block of logits one vectorised step."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor, distributed

from normscale import _validate
from normscale._kernels.kinds import KINDS, TINY_VARIANCE
from normscale.detectors.formula import MomentFormula
from normscale.errors import InvalidInput, NotFitted
from normscale.export.torch.double_buffers import DoubleBuffers
from normscale.moments import RunningMoments

_BLOCK_ROWS = 1 << 14  # bounds the memory of a call, and the digits that a running sum of squares can lose

Moments = tuple[Tensor, Tensor, Tensor]
"""Count (1,), mean (C,) and M2 (C,).

The count has an axis because torch.compile (2.13) loses in-place changes of float64 tensors without one.
"""


class MomentScorer(DoubleBuffers):
    """What a detector with a :class:`~normscale.detectors.formula.MomentFormula` does, on a network's own device.

    ``scorer(logits)`` scores with the statistics as they are; ``scorer.stream(logits)``, or ``scorer(logits,
    update=True)``, takes each row in, then scores it. The two never mix: ``train()`` and ``eval()`` change nothing.
    Scores are those of the numpy detector, for any split of the rows into calls.

    Parameters
    ----------
    n_classes : int
    kind, temperature, weight :
        As in the formula.
    moves : bool
        False: ``stream`` scores with the statistics as they are, too.
    check : bool
        Raise :class:`~normscale.errors.InvalidInput` on NaN or infinity, which on a GPU waits for the result. With
        False, and always in compiled code, a bad block is not taken in either, but scores NaN (all of it when
        streaming, the bad rows otherwise).

    Attributes
    ----------
    count, mean, m2 : buffers (1,), (C,), (C,)
        Of the prior and every streamed row, in float64 whatever ``to`` is asked for (devices without float64, such
        as MPS, cannot hold them).

    Notes
    -----
    ``torch.compile(scorer)`` compiles the frozen scores, ``torch.compile(scorer.stream)`` the streamed ones. In
    ``DistributedDataParallel`` pass ``broadcast_buffers=False``, or rank 0's statistics replace the others'; to join
    them call :meth:`synchronise`.

    References
    ----------
    Chan, Golub & LeVeque, "Algorithms for Computing the Sample Variance", 1983.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(
        self,
        n_classes: int,
        kind: str,
        temperature: float = 1.0,
        weight: float = 1.0,
        *,
        moves: bool = True,
        check: bool = True,
    ) -> None:
        """Make an empty one; :meth:`from_formula` or ``load_state_dict`` fills it."""
        super().__init__()
        _validate.at_least(n_classes, "n_classes", 2)
        self.kind = _validate.one_of(kind, "kind", KINDS)
        self.temperature = _validate.positive(temperature, "temperature")
        self.weight = weight
        self.moves = moves
        self.check = check
        for part in ("", "shared_"):  # shared: where all ranks stood when they last synchronised
            self.register_buffer(f"{part}count", torch.zeros(1, dtype=torch.float64))
            self.register_buffer(f"{part}mean", torch.zeros(n_classes, dtype=torch.float64))
            self.register_buffer(f"{part}m2", torch.zeros(n_classes, dtype=torch.float64))

    @staticmethod
    def from_formula(formula: MomentFormula, *, check: bool = True) -> MomentScorer:
        """A scorer with the statistics that the formula has now."""
        scorer = MomentScorer(formula.state.mean.size, formula.kind, formula.temperature, formula.weight, check=check)
        scorer._start_at(RunningMoments.wrap(formula.state))
        return scorer

    @property
    def moments(self) -> RunningMoments:
        """A copy of the statistics in numpy."""
        self._require_fitted()
        count, mean, m2 = (tensor.detach().cpu().numpy() for tensor in self._get(""))
        return RunningMoments.from_state(float(count[0]), mean, m2)

    def forward(self, logits: Tensor, update: bool = False) -> Tensor:
        """Scores (n,), float64, of logits (n, C) of any float dtype; higher = more out-of-distribution.

        Parameters
        ----------
        logits : tensor of shape (n, C)
        update : bool
            Take each row into the statistics before it is scored.
        """
        self._require_logits(logits)
        if not update or not self.moves:
            return self._frozen(logits.to(torch.float64))
        with torch.no_grad():
            if torch.compiler.is_compiling() or len(logits) <= _BLOCK_ROWS:
                return self._streamed([logits])
            return self._streamed([logits[a : a + _BLOCK_ROWS] for a in range(0, len(logits), _BLOCK_ROWS)])

    def stream(self, logits: Tensor) -> Tensor:
        """Take each row in, then score it; goes on where the last call stopped."""
        scores: Tensor = self(logits, update=True)
        return scores

    def _frozen(self, rows: Tensor) -> Tensor:
        std = (self.m2 / self.count).sqrt()
        factor = torch.where(std > 0.0, 1.0 / (self.temperature * std), 0.0)
        scores = self._weighted(score_rows((rows - self.mean) * factor, self.kind))
        good = rows.isfinite().all(dim=1)
        if self._may_raise() and not bool(good.all()):
            raise _validate.invalid_row_error(_validate.to_numpy(rows, "logits"), "logits")
        return torch.where(good, scores, math.nan)

    def _streamed(self, blocks: list[Tensor]) -> Tensor:
        """Scores of all blocks; the statistics move only if every number stayed finite."""
        moments = self._get("")
        scores = []
        for block in blocks:
            if block.shape[0]:  # not len, which would tie an exported program to this number of rows
                some, moments = _stream_block(block.to(torch.float64), moments, self.kind, self.temperature)
                scores.append(self._weighted(some))
        if not scores:
            return torch.empty(0, dtype=torch.float64, device=self.mean.device)
        good = moments[1].isfinite().all() & moments[2].isfinite().all()
        if self._may_raise() and not bool(good):
            rows = np.concatenate([_validate.to_numpy(block, "logits") for block in blocks])
            raise _validate.invalid_row_error(rows, "logits")
        for buffer, value in zip(self._get(""), moments, strict=True):  # no branch: compiled code comes here too
            buffer.copy_(torch.where(good, value, buffer))
        return torch.where(good, torch.cat(scores), math.nan)

    @torch.no_grad()
    def synchronise(self, group: distributed.ProcessGroup | None = None) -> Self:
        """Join the streams of all ranks: each ends with the statistics of every row, the prior counted once.

        Every rank must call it. Rows since the last call are exchanged, so it may be called as often as one likes.
        Without a process group, or with statistics that never move, there is nothing to do.
        """
        if not (distributed.is_available() and distributed.is_initialized()) or not self.moves:
            return self
        width = len(self.mean)
        own = torch.cat([tensor for part in ("", "shared_") for tensor in self._get(part)])
        gathered = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(gathered, own, group=group)
        starts = (0, 1, 1 + width, 1 + 2 * width, 2 + 2 * width, 2 + 3 * width, 2 + 4 * width)
        states = [[state[a:b] for a, b in pairwise(starts)] for state in gathered]
        shared = self._get("shared_")
        for rank, state in enumerate(states):
            if any(not torch.equal(a, b) for a, b in zip(shared, state[3:], strict=True)):
                raise InvalidInput(
                    f"rank {rank} started from other statistics than this one; load the same statistics in every rank, "
                    "and let all ranks synchronise together."
                )
        total = shared
        for count, mean, m2, *_ in states:  # in the order of the ranks, so that all end with the same bits
            total = _merge(total, _without((count, mean, m2), shared))
        self._set("", total)
        self._set("shared_", total)
        return self

    def extra_repr(self) -> str:
        return f"n_classes={len(self.mean)}, kind={self.kind!r}, temperature={self.temperature:g}"

    def _start_at(self, moments: RunningMoments) -> None:
        self._set("", moment_tensors(moments))
        self._set("shared_", moment_tensors(moments))

    def _weighted(self, scores: Tensor) -> Tensor:
        return scores if self.weight == 1.0 else self.weight * scores

    def _get(self, part: str) -> Moments:
        return self._buffer(f"{part}count"), self._buffer(f"{part}mean"), self._buffer(f"{part}m2")

    def _buffer(self, name: str) -> Tensor:
        buffer: Tensor = getattr(self, name)
        return buffer

    def _set(self, part: str, moments: Moments) -> None:
        for buffer, value in zip(self._get(part), moments, strict=True):
            buffer.copy_(value)

    def _may_raise(self) -> bool:
        return self.check and not torch.compiler.is_compiling()

    def _require_logits(self, logits: Tensor) -> None:
        if logits.ndim != 2 or logits.shape[1] != len(self.mean):
            raise InvalidInput(f"logits must have shape (n, {len(self.mean)}); got {tuple(logits.shape)}.")
        if self._may_raise():
            self._require_fitted()

    def _require_fitted(self) -> None:
        if not bool(self.count > 0.0):
            raise NotFitted("no statistics are there yet; start from a fitted detector, or call load_state_dict first.")


def moment_tensors(moments: RunningMoments) -> Moments:
    """Moments as float64 tensors of their own."""
    count = torch.tensor([moments.weight], dtype=torch.float64)
    return count, torch.from_numpy(moments.mean.copy()), torch.from_numpy(moments.m2.copy())


def _stream_block(rows: Tensor, before: Moments, kind: str, temperature: float) -> tuple[Tensor, Moments]:
    """Scores of a block, each row by the statistics that include it, and the statistics after the last.

    The first row is taken in by Welford's step. What follows starts from a count of at least 1, and then running sums
    of deviations from the mean, and of their squares, lose no digits that matter.
    """
    count, mean, m2 = before
    first = rows[:1]
    taken = torch.ones_like(rows[:, :1]).cumsum(0)
    counts = count + taken
    mean1 = mean + (first - mean) / counts[0]
    m2_1 = m2 + (first - mean) * (first - mean1)
    deviation = rows - mean1  # (n, C)
    later = deviation * (taken > 1.0)
    moved = later.cumsum(0) / counts
    squares = m2_1 + (later * later).cumsum(0) - counts * moved * moved
    squares = squares.clamp_min(0.0)
    scaled = (deviation - moved) / (squares / counts).clamp_min(TINY_VARIANCE).sqrt() / temperature
    return score_rows(scaled, kind), (counts[-1], mean1[0] + moved[-1], squares[-1])


def score_rows(scaled: Tensor, kind: str) -> Tensor:
    """Scores (n,) of scaled logits (n, C)."""
    if kind == "max":
        return -scaled.amax(dim=1)
    if kind == "log_sum_exp":
        return -scaled.logsumexp(dim=1)
    top, index = scaled.max(dim=1, keepdim=True)
    return (scaled - top).scatter(1, index, -math.inf).logsumexp(dim=1)


def _merge(a: Moments, b: Moments) -> Moments:
    """The moments of both sets of rows; ``a`` is not empty."""
    count = a[0] + b[0]
    delta = b[1] - a[1]
    return count, a[1] + delta * (b[0] / count), a[2] + b[2] + delta * delta * (a[0] * (b[0] / count))


def _without(whole: Moments, part: Moments) -> Moments:
    """Undo a merge; of no rows, the mean of ``part`` with count 0."""
    count = whole[0] - part[0]
    if not bool(count > 0.0):
        return torch.zeros_like(count), part[1], torch.zeros_like(part[2])
    mean = whole[1] + (whole[1] - part[1]) * (part[0] / count)
    delta = mean - part[1]
    m2 = whole[2] - part[2] - delta * delta * (part[0] * (count / whole[0]))
    return count, mean, m2.clamp_min(0.0)
