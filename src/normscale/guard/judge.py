"""What becomes of a block of rows: whether the statistics may take it in, its scores, and whether the stream drifts.

Pure: nothing here is written or changed. The caller writes the ruling to the journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from normscale import _kernels
from normscale._kernels import BlockState
from normscale._validate import BoolArray, FloatArray, IntArray
from normscale.guard.display_sample import sample_for_display
from normscale.guard.drift import DriftMonitor, RecentRows
from normscale.guard.entries import Event, block_moments
from normscale.guard.guard_state import GuardState, Known
from normscale.guard.policy import OnDrift
from normscale.guard.statistics import Statistics
from normscale.guard.verdict import Mode
from normscale.outputs import ModelOutputs


class Part(NamedTuple):
    """Rows of a block that share a fate, in the form of a journal entry."""

    event: Event
    """Taken in, or quarantined."""
    rows: int
    flagged: int
    predicted: IntArray
    """(C,) counts."""
    moments: BlockState
    """Of the rows' logits."""
    monitored: BlockState
    """What drift readings and statistics take of them: the moments; outliers count as rows of training."""
    replay_rows: bytes
    display_sample: bytes
    known: Known
    """The state after the part, as far as it was computed here."""
    outlier: bool = False
    """Whether the rows lie too far out ever to be taken in."""


class Ruling(NamedTuple):
    """The judgement on one block."""

    mode: Mode
    thaw: str | None
    """Why a frozen guard thaws before these rows, if it does."""
    freeze: str | None
    """Why a running guard freezes before these rows, if it does."""
    alarms: list[tuple[str, float, float, str]]
    """Name, value, limit and text of every drift reading beyond its limit."""
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
    drift : DriftMonitor
        Training, and the limits.
    class_names : names for people, or None
    """

    def __init__(self, start: GuardState, drift: DriftMonitor, class_names: tuple[str, ...] | None) -> None:
        self.start = start
        self.drift = drift
        self.policy = drift.policy
        self.class_names = class_names
        self.mode = Mode.RUNNING if start.statistics.running else Mode.STATIC

    def rule(
        self,
        state: GuardState,
        client: str,
        at: float,
        outputs: ModelOutputs,
        request_starts: IntArray | None,
        *,
        scaled: bool = False,
    ) -> Ruling:
        """Judge the rows of one client, or refuse them (:class:`InvalidInput`).

        ``request_starts`` says where each request begins (None: each is one row).
        """
        thaw = self._thaws(state) if state.frozen is not None else None
        frozen = state.frozen is not None and thaw is None
        logits = outputs.logits
        block = _Block(outputs, block_moments(logits), _kernels.predicted(logits), self.drift.outliers(outputs))
        nothing = np.zeros(len(outputs), np.bool_)
        taken = nothing if frozen else self._may_take_in(state, client, at, block)
        scored = self._score(state, block, taken, frozen)
        alarms = self._alarms(scored.groups[-1].recent)
        freeze = None
        if alarms and not frozen and self.policy.on_drift == OnDrift.FREEZE and self.mode == Mode.RUNNING:
            freeze, frozen, taken = " ".join(text for *_, text in alarms), True, nothing
            # As if it had been frozen before these rows came.
            scored = self._score(state, block, taken, frozen)
        return Ruling(
            Mode.FROZEN if frozen else self.mode,
            thaw,
            freeze,
            alarms,
            taken,
            scored.scores,
            scored.flags,
            block.predicted,
            self._scaled(state, outputs, taken, frozen, scored.statistics) if scaled else None,
            list(self._parts(scored, request_starts)),
        )

    def _thaws(self, state: GuardState) -> str | None:
        if state.frozen is not None and state.frozen.by_person:
            return None
        if self.policy.on_drift != OnDrift.FREEZE:
            return "drift is not acted on any more"
        return "the stream is calm again" if state.calm_rows >= self.policy.calm else None

    def _may_take_in(self, state: GuardState, client: str, at: float, block: _Block) -> BoolArray | None:
        """Which rows the statistics may take in; None: all."""
        n = len(block.outputs)
        may = None if block.outliers is None else ~block.outliers
        room = state.this_minute.room(at, client, self.policy.client_cap, self.policy.minute_cap)
        if room is not None and (n if may is None else int(may.sum())) > room:
            may = np.ones(n, np.bool_) if may is None else may
            may[np.flatnonzero(may)[room:]] = False
        return may

    def _score(self, state: GuardState, block: _Block, taken: BoolArray | None, frozen: bool) -> _Scored:
        """Score and flag a block, and count it into the recent rows. Outliers are flagged, whatever their score."""
        outputs, statistics, replay_rows = block.outputs, state.statistics, b""
        if taken is None:
            scores, statistics, replay_rows = statistics.step(outputs, block.moments)
        elif frozen:
            scores = self.start.statistics.score(outputs)
        else:
            scores = np.empty(len(outputs))
            if taken.any():
                part = block.of(taken)
                scores[taken], statistics, replay_rows = statistics.step(part.outputs, part.moments)
            if not taken.all():
                scores[~taken] = statistics.score(outputs[~taken])
        flags = state.threshold.flags(scores, block.predicted if state.threshold.per_class is not None else None)
        if block.outliers is not None:
            flags |= block.outliers
        groups = list(self._groups(state, block, taken, flags))
        return _Scored(scores, flags, statistics, replay_rows, groups)

    def _groups(self, state: GuardState, block: _Block, taken: BoolArray | None, flags: BoolArray) -> Iterator[_Group]:
        """The rows taken in, then the quarantined, then the outliers, each counted into the recent rows."""
        recent = state.recent
        for event, mask, outlier in _fates(taken, block.outliers):
            if mask is not None and not mask.any():
                continue
            part = block if mask is None else block.of(mask)
            # One row far out must not raise an alarm: it counts as one of training.
            monitored = self.drift.training_like(len(part.outputs)) if outlier else part.moments
            counts = np.bincount(part.predicted, minlength=recent.mean.size)
            flagged = int(np.count_nonzero(flags if mask is None else flags[mask]))
            recent = recent.after(flagged, counts, monitored, self.policy.window)
            yield _Group(event, mask, part, outlier, flagged, counts, monitored, recent)

    def _alarms(self, recent: RecentRows) -> list[tuple[str, float, float, str]]:
        if self.policy.on_drift == OnDrift.IGNORE:
            return []
        return [
            (reading.name, reading.value, reading.limit, self.drift.explain(reading, recent, self.class_names))
            for reading in self.drift.readings(recent)
            if reading.alarming
        ]

    def _parts(self, scored: _Scored, request_starts: IntArray | None) -> Iterator[Part]:
        for group in scored.groups:
            mask, block = group.mask, group.block
            if mask is None:
                sample = sample_for_display(scored.scores, block.predicted, scored.flags, request_starts)
            else:
                places = np.flatnonzero(mask)
                sample = sample_for_display(
                    scored.scores[mask], block.predicted, scored.flags[mask], request_starts, places
                )
            taken = group.event == Event.ROWS
            yield Part(
                group.event,
                len(block.outputs),
                group.flagged,
                group.counts,
                block.moments,
                group.monitored,
                scored.replay_rows if taken else self.start.statistics.pack_rows(block.outputs),
                sample,
                Known(scored.statistics, group.recent),
                group.outlier,
            )

    def _scaled(
        self, state: GuardState, outputs: ModelOutputs, taken: BoolArray | None, frozen: bool, after: Statistics
    ) -> FloatArray:
        """The scaled logits behind the scores."""
        logits = outputs.logits
        if frozen:
            return self.start.statistics.scaled(logits, taking_in=False)
        if taken is None:
            return state.statistics.scaled(logits, taking_in=True)
        scaled = np.empty(logits.shape)
        if taken.any():
            scaled[taken] = state.statistics.scaled(logits[taken], taking_in=True)
        if not taken.all():
            scaled[~taken] = after.scaled(logits[~taken], taking_in=False)
        return scaled


def _fates(taken: BoolArray | None, outliers: BoolArray | None) -> Iterator[tuple[Event, BoolArray | None, bool]]:
    """What becomes of which rows (None: all), and whether these are outliers."""
    if taken is None:
        yield Event.ROWS, None, False
        return
    far = np.zeros_like(taken) if outliers is None else outliers
    yield Event.ROWS, taken, False
    yield Event.QUARANTINE, ~(taken | far), False
    yield Event.QUARANTINE, far, True


class _Block(NamedTuple):
    """Some rows, and what is known of them before they are scored."""

    outputs: ModelOutputs
    moments: BlockState
    predicted: IntArray
    outliers: BoolArray | None
    """Which rows lie too far out ever to be taken in; None: none."""

    def of(self, mask: BoolArray) -> _Block:
        if mask.all():
            return self
        outputs = self.outputs[mask]
        outliers = None if self.outliers is None else self.outliers[mask]
        return _Block(outputs, block_moments(outputs.logits), self.predicted[mask], outliers)


class _Group(NamedTuple):
    """Rows of a block that share a fate."""

    event: Event
    mask: BoolArray | None
    block: _Block
    outlier: bool
    flagged: int
    counts: IntArray
    monitored: BlockState
    recent: RecentRows
    """With these rows, and those of the groups before them, counted in."""


class _Scored(NamedTuple):
    scores: FloatArray
    flags: BoolArray
    statistics: Statistics
    replay_rows: bytes
    groups: list[_Group]
