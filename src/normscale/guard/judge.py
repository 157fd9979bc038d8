"""What becomes of a block of rows: whether the statistics may take it in, its scores, and whether the stream drifts.

Pure: nothing here is written or changed. Whoever asks writes the ruling down.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from normscale import _kernels
from normscale._kernels import BlockState, combine
from normscale._validate import BoolArray, FloatArray, IntArray, Rows
from normscale.guard.entries import ASIDE, ROWS, block_moments, glimpse
from normscale.guard.ledger import GuardState
from normscale.guard.monitor import Monitor, Yardstick
from normscale.guard.policy import FREEZE, IGNORE
from normscale.guard.statistics import Statistics
from normscale.guard.verdict import FROZEN, RUNNING, STATIC


class Part(NamedTuple):
    """Rows of a block that share a fate, in the form of a journal entry."""

    kind: str
    """Taken in, or set aside."""
    rows: Rows
    flagged: int
    predicted: IntArray
    """(C,) counts."""
    moments: BlockState
    """Of the rows."""
    heard: BlockState
    """What the monitor and the statistics hear of them: the moments; rows far out count as ones of training."""
    learned: bytes
    glimpse: bytes
    statistics: Statistics
    """After the part."""
    far: bool = False
    """Whether the rows lie too far out ever to be taken in."""


class Ruling(NamedTuple):
    """The judgement on one block."""

    mode: str
    thaw: str | None
    """Why a frozen guard thaws before these rows, if it does."""
    freeze: str | None
    """Why a running guard freezes before these rows, if it does."""
    alarms: list[tuple[str, float, float, str]]
    """Kind, value, limit and text of every reading beyond its limit."""
    taken: BoolArray | None
    """Which rows the statistics take in; None: all."""
    scores: FloatArray
    flags: BoolArray
    predicted: IntArray
    scaled: FloatArray | None
    parts: list[Part]


class Judge:
    """Applies a policy to blocks of rows.

    Parameters
    ----------
    start : GuardState
        That of an empty journal: frozen scores come from its statistics.
    yardstick : Yardstick
        Training, and the limits.
    class_names : names for people, or None
    """

    def __init__(self, start: GuardState, yardstick: Yardstick, class_names: tuple[str, ...] | None) -> None:
        """Store them."""
        self.start = start
        self.yardstick = yardstick
        self.policy = yardstick.policy
        self.class_names = class_names
        self.mode = RUNNING if start.statistics.running else STATIC

    def rule(
        self,
        state: GuardState,
        client: str,
        at: float,
        rows: Rows,
        beginnings: IntArray | None,
        *,
        scaled: bool = False,
    ) -> Ruling:
        """Judge the rows of one client, or refuse them (:class:`InvalidInput`).

        ``beginnings`` says where each request begins (None: each is one row).
        """
        thaw = self._thaws(state) if state.frozen is not None else None
        frozen = state.frozen is not None and thaw is None
        block = _Block(rows, block_moments(rows), _kernels.predicted(rows))
        outliers = self.yardstick.outliers(rows)
        nothing = np.zeros(len(rows), np.bool_)
        taken = nothing if frozen else self._may_take_in(state, client, at, rows, outliers)
        scored = self._score(state, block, taken, outliers, frozen)
        alarms = self._alarms(scored.monitor)
        freeze = None
        if alarms and not frozen and self.policy.on_drift == FREEZE and self.mode == RUNNING:
            freeze, frozen, taken = " ".join(text for *_, text in alarms), True, nothing
            # As if it had been frozen before these rows came.
            scored = self._score(state, block, taken, outliers, frozen)
        mode = FROZEN if frozen else self.mode
        return Ruling(
            mode,
            thaw,
            freeze,
            alarms,
            taken,
            scored.scores,
            scored.flags,
            block.predicted,
            self._scaled(state, rows, taken, frozen, scored.statistics) if scaled else None,
            list(self._parts(state, block, taken, outliers, scored, beginnings)),
        )

    def _thaws(self, state: GuardState) -> str | None:
        if state.frozen is not None and state.frozen.by_person:
            return None
        if self.policy.on_drift != FREEZE:
            return "drift is not acted on any more"
        return "the stream is calm again" if state.calm_rows >= self.policy.calm else None

    def _may_take_in(
        self, state: GuardState, client: str, at: float, rows: Rows, outliers: BoolArray | None
    ) -> BoolArray | None:
        """Which rows the statistics may take in; None: all."""
        n = rows.shape[0]
        may = None if outliers is None else ~outliers
        room = state.minute.room(at, client, self.policy.client_cap, self.policy.minute_cap)
        if room is not None and (n if may is None else int(may.sum())) > room:
            may = np.ones(n, np.bool_) if may is None else may
            may[np.flatnonzero(may)[room:]] = False
        return may

    def _score(
        self, state: GuardState, block: _Block, taken: BoolArray | None, outliers: BoolArray | None, frozen: bool
    ) -> _Scored:
        """Scores, flags, and what the monitor would say. What lies far out is flagged, however confident it looks."""
        rows, statistics, learned = block.rows, state.statistics, b""
        if taken is None:
            scores, statistics, learned = statistics.step(rows, block.moments)
        elif frozen:
            scores = self.start.statistics.score(rows)
        else:
            scores = np.empty(len(rows))
            if taken.any():
                part = block.of(taken)
                scores[taken], statistics, learned = statistics.step(part.rows, part.moments)
            scores[~taken] = statistics.score(rows[~taken])
        flags = state.threshold.flags(scores, block.predicted if state.threshold.per_class is not None else None)
        if outliers is not None:
            flags |= outliers
        heard = block.moments
        if outliers is not None:  # one row far out must not raise an alarm: it counts as one of training
            heard = combine(block.of(~outliers).moments, self.yardstick.as_in_training(int(np.count_nonzero(outliers))))
        counts = np.bincount(block.predicted, minlength=state.monitor.mean.size)
        flagged = int(np.count_nonzero(flags))
        monitor = state.monitor.after(flagged, counts, heard, self.policy.window)
        return _Scored(scores, flags, flagged, counts, statistics, learned, monitor)

    def _alarms(self, monitor: Monitor) -> list[tuple[str, float, float, str]]:
        if self.policy.on_drift == IGNORE:
            return []
        return [
            (
                reading.kind,
                reading.value,
                reading.limit,
                self.yardstick.explain(reading, monitor, self.class_names),
            )
            for reading in self.yardstick.readings(monitor)
            if reading.alarming
        ]

    def _parts(
        self,
        state: GuardState,
        block: _Block,
        taken: BoolArray | None,
        outliers: BoolArray | None,
        scored: _Scored,
        beginnings: IntArray | None,
    ) -> Iterator[Part]:
        """The rows taken in, then those set aside, then those that nobody may take in."""
        if taken is None:
            sample = glimpse(scored.scores, block.predicted, scored.flags, beginnings)
            moments = block.moments
            yield Part(
                ROWS,
                block.rows,
                scored.flagged,
                scored.counts,
                moments,
                moments,
                scored.learned,
                sample,
                scored.statistics,
            )
            return
        far = np.zeros_like(taken) if outliers is None else outliers
        for kind, mask, is_far in ((ROWS, taken, False), (ASIDE, ~(taken | far), False), (ASIDE, far, True)):
            if not mask.any():
                continue
            part = block.of(mask)
            flags = scored.flags[mask]
            sample = glimpse(scored.scores[mask], part.predicted, flags, beginnings, np.flatnonzero(mask))
            counts = np.bincount(part.predicted, minlength=state.monitor.mean.size)
            heard = self.yardstick.as_in_training(len(part.rows)) if is_far else part.moments
            learned = scored.learned if kind == ROWS else self.start.statistics.keepsake(part.rows)
            flagged = int(np.count_nonzero(flags))
            yield Part(
                kind, part.rows, flagged, counts, part.moments, heard, learned, sample, scored.statistics, is_far
            )

    def _scaled(
        self, state: GuardState, rows: Rows, taken: BoolArray | None, frozen: bool, after: Statistics
    ) -> FloatArray:
        """The scaled logits behind the scores."""
        if frozen:
            return self.start.statistics.scaled(rows, taking_in=False)
        if taken is None:
            return state.statistics.scaled(rows, taking_in=True)
        scaled = np.empty(rows.shape)
        if taken.any():
            scaled[taken] = state.statistics.scaled(rows[taken], taking_in=True)
        scaled[~taken] = after.scaled(rows[~taken], taking_in=False)
        return scaled


class _Block(NamedTuple):
    """Some rows, and what is known of them before they are scored."""

    rows: Rows
    moments: BlockState
    predicted: IntArray

    def of(self, mask: BoolArray) -> _Block:
        if mask.all():
            return self
        rows = self.rows[mask]
        return _Block(rows, block_moments(rows), self.predicted[mask])


class _Scored(NamedTuple):
    scores: FloatArray
    flags: BoolArray
    flagged: int
    counts: IntArray
    statistics: Statistics
    learned: bytes
    monitor: Monitor
