"""What becomes of a block of rows: its scores, whether the statistics may take it in, and whether the stream drifts.

Two rules keep a stream from being steered. A row's score is the larger of the detector file's and the running
statistics': whatever the stream teaches, a row that the file flags is flagged. And what the running statistics flag
alone is counted (*stream-only flags*), whether those rows are taken in or not: more than a few per cent raise an
alarm, many freeze the guard.

Pure: nothing here is written or changed. The caller writes the ruling to the store.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from normscale import _kernels
from normscale._validate import BoolArray, FloatArray, IntArray
from normscale.guard.drift import DriftMonitor, Reading, RecentRows, Seen
from normscale.guard.guard_state import Alarm, GuardState, Statistics, Stream
from normscale.guard.policy import OnDrift
from normscale.guard.stores.store import Event
from normscale.outputs import LOGITS, ModelOutputs
from normscale.state import Kind, pack_state, unpack_state

_STORED = Kind("normscale_verdict", "verdict", "", "it is of no use any more.")
_FACTS = ("mode", "taken_in", "alarms", "rows")
_ARRAYS = ("scores", "is_ood", "predicted")
_LOOK_EVERY = 50  # rows that are taken in between two looks at what has become of the training rows
_FEW_REFERENCE, _FEWEST_OF_A_CLASS = 2, 25
"""Training rows that may be flagged before their share counts, and how many of a class there must be."""


SHOWN = np.dtype([("score", "<f4"), ("predicted", "<i4"), ("row", "<i4"), ("flagged", "?"), ("sampled", "?")])
"""What the log keeps of a row: ``sampled`` says whether it was chosen without regard to whether it was flagged."""
_MOST_SHOWN, _MOST_FLAGGED_SHOWN = 48, 8  # rows of a block that the log keeps, and how many flagged ones besides
_LARGEST_SINGLE = 3e38


class Mode(StrEnum):
    """By which statistics rows are scored."""

    RUNNING = "running"
    FROZEN = "frozen"
    """The detector file's, while nothing is taken in."""
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one request, row by row in its order."""

    scores: FloatArray
    """(n,) higher = more out-of-distribution."""
    is_ood: BoolArray
    predicted: IntArray
    """(n,) the class with the largest logit."""
    mode: str
    taken_in: int
    """How many of the rows are in the running statistics now; the others were kept out."""
    alarms: tuple[str, ...] = ()
    rows: int = 0
    """How many rows are in the statistics after this request's group of requests."""
    repeated: bool = False
    """Whether this was the answer to an earlier request with the same key."""

    def pack(self) -> bytes:
        """Write it as bytes, for a retry of the same request."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return pack_state({name: getattr(self, name) for name in _FACTS}, arrays, _STORED)

    @classmethod
    def unpack(cls, data: bytes) -> Verdict:
        """Read the verdict of an earlier request, marked as repeated."""
        header, tensors = unpack_state(data, _STORED)
        fields: dict[str, Any] = {name: header[name] for name in _FACTS} | tensors
        fields |= {"is_ood": tensors["is_ood"].astype(np.bool_, copy=False), "alarms": tuple(header["alarms"])}
        return cls(**fields, repeated=True)


class Block(NamedTuple):
    """Some rows, and what is known of them before they are scored."""

    outputs: ModelOutputs
    predicted: IntArray
    far: BoolArray
    """(n,) too far from training to be taken in ..."""
    outliers: BoolArray
    """(n,) ... or so far that they are flagged, whatever their score."""

    @classmethod
    def of(cls, outputs: ModelOutputs, drift: DriftMonitor) -> Block:
        """Look at rows that were checked."""
        distances = drift.distances(outputs)
        if distances is None:
            distances = np.zeros(len(outputs))
        far, outliers = distances > drift.far, distances > drift.policy.outlier
        return cls(outputs, _kernels.predicted(outputs.logits), far, outliers)


LogLine = tuple[Event, dict[str, Any], dict[str, Any]]
"""What happened, a note, and further fields of the entry."""


class Ruling(NamedTuple):
    """The judgement on one block."""

    verdict: Verdict
    taken: BoolArray
    log: list[LogLine]
    """Alarms, freeze, thaw, and rows that share a fate."""
    after: GuardState
    seen: Seen
    readings: tuple[Reading, ...]
    stream: Stream | None = None
    """After the rows, where the client has a stream of its own."""


class _Scored(NamedTuple):
    scores: FloatArray
    flags: BoolArray
    stream_only: BoolArray
    """Which rows the running statistics flag alone; during their probation they are not answered so."""
    taken: BoolArray
    statistics: Statistics


class Judge:
    """Applies a policy to blocks of rows; ``start`` is the state of an empty store."""

    def __init__(self, start: GuardState, drift: DriftMonitor, class_names: tuple[str, ...] | None) -> None:
        self.start = start
        self.drift = drift
        self.policy = drift.policy
        self._trusting = drift.policy.trusting
        self.class_names = class_names
        self.mode = Mode.RUNNING if start.statistics.running else Mode.STATIC
        self._may_freeze = self.policy.on_drift == OnDrift.FREEZE and self.mode == Mode.RUNNING
        kept = {} if drift.baseline is None else drift.baseline.kept
        self._has_moments = start.statistics.moments is not None
        self._reference: Block | None = None
        if self.mode == Mode.RUNNING and not self._trusting and len(kept.get(LOGITS, ())):
            self._reference = Block.of(ModelOutputs._trusted(dict(kept)), drift)
            self._reference_scores = start.statistics.score(self._reference.outputs)

    def rule(
        self,
        state: GuardState,
        client: str,
        at: float,
        outputs: ModelOutputs,
        request_starts: IntArray,
        stream: Stream | None = None,
    ) -> Ruling:
        """Judge the rows of one client, or refuse them (:class:`InvalidInput`); each request begins at a start.

        Where the client has a ``stream`` of its own, that one learns, and may freeze. The stream of the state then only
        watches the rows of all clients.
        """
        state = state._replace(at=at)
        if stream is None:
            return self._rule(state, client, outputs, request_starts)
        by_person = state.frozen
        alone = state.with_stream(stream if by_person is None else stream._replace(frozen=by_person))
        ruling = self._rule(alone, client, outputs, request_starts)
        own, all_rows = ruling.after.stream, state.stream
        recent, rows = all_rows.recent.after(ruling.seen, self.policy.window), state.rows + ruling.verdict.taken_in
        after = ruling.after.with_stream(all_rows._replace(recent=recent, rows=rows))
        after, log = self._watched(after, () if self._trusting else self.drift.readings(recent), len(outputs))
        names = dict.fromkeys((*ruling.verdict.alarms, *(alarm.name for alarm in after.alarms)))
        log += [(event, note, {"client": client, **fields}) for event, note, fields in ruling.log]
        own = own if by_person is None else own._replace(frozen=stream.frozen)
        return ruling._replace(verdict=replace(ruling.verdict, alarms=tuple(names)), log=log, after=after, stream=own)

    def _rule(self, state: GuardState, client: str, outputs: ModelOutputs, request_starts: IntArray) -> Ruling:
        log: list[LogLine] = []
        if state.frozen is not None and (why := self._thaws(state)):
            state = state._replace(frozen=None)
            log.append((Event.THAW, {"because": why}, {}))
        block = Block.of(outputs, self.drift)
        may = ~block.far
        scored = self._score(state, block, may)
        seen = self._seen(state, block, may, scored)
        recent = state.recent.after(seen, self.policy.window)
        rows = state.rows + int(np.count_nonzero(scored.taken))
        if rows // _LOOK_EVERY != state.rows // _LOOK_EVERY and rows >= self.start.statistics.probation:
            recent = self._with_reference(state, recent, scored.statistics)
        readings = () if self._trusting else self.readings(state._replace(recent=recent), scored.statistics)
        state, more = self._watched(state, readings, len(outputs))
        log += more
        if state.frozen is None and self._may_freeze and any(reading.freezing for reading in readings):
            because = " ".join(alarm.text for alarm in state.alarms)
            log.append((Event.FREEZE, {"because": because}, {}))
            state = state.froze(because, state.alarms, self.start)
            scored = self._score(state, block, may)  # as if it had been frozen before these rows came
            seen = self._seen(state, block, may, scored)
            recent = state.recent.after(seen, self.policy.window)
        after = self._after(state._replace(recent=recent), scored)
        taken, names = int(np.count_nonzero(scored.taken)), tuple(alarm.name for alarm in after.alarms)
        mode = self.mode_of(after).value
        verdict = Verdict(scored.scores, scored.flags, block.predicted, mode, taken, names, after.rows)
        log += _fates(client, block, scored, request_starts)
        return Ruling(verdict, scored.taken, log, after, seen, readings)

    def _watched(self, state: GuardState, readings: tuple[Reading, ...], rows: int) -> tuple[GuardState, list[LogLine]]:
        """The state with the alarms that stand after some rows, and what is to be said of them."""
        alarms, known = tuple(self._alarms(state, readings, rows)), {alarm.name for alarm in state.alarms}
        log: list[LogLine] = []
        if new := [alarm for alarm in alarms if alarm.name not in known]:
            log.append((Event.ALARM, {"alarms": [alarm._asdict() for alarm in new]}, {}))
        elif state.alarms and not alarms:
            log.append((Event.CALM, {}, {}))
        return state._replace(alarms=alarms, alarms_raised=state.alarms_raised + len(new)), log

    def readings(self, state: GuardState, statistics: Statistics) -> tuple[Reading, ...]:
        """The drift readings, of the running statistics too where they are moments and not frozen."""
        running = statistics.block_state() if self._has_moments and state.frozen is None else None
        return self.drift.readings(state.recent, running)

    def mode_of(self, state: GuardState) -> Mode:
        """How rows are scored in a state."""
        return Mode.FROZEN if state.frozen is not None else self.mode

    def probation_left(self, state: GuardState) -> int:
        """Rows to be taken in before answers are more than the detector file's."""
        return max(0, math.ceil(self.start.statistics.probation) - state.counted)

    def calm_rows(self, state: GuardState) -> int:
        """Rows for which every reading has been well below its limit; all that are needed when no alarm stands."""
        return min((alarm.calm_rows for alarm in state.alarms), default=math.ceil(self.policy.calm))

    def _thaws(self, state: GuardState) -> str | None:
        if state.frozen is not None and state.frozen.by_person:
            return None
        if self.policy.on_drift != OnDrift.FREEZE:
            return "drift is not acted on any more"
        return None if state.alarms else "the stream is calm again"

    def _alarms(self, state: GuardState, readings: tuple[Reading, ...], rows: int) -> Iterator[Alarm]:
        """The alarms that stand after some rows: new ones, and earlier ones that have not been calm for long."""
        earlier = {alarm.name: alarm for alarm in state.alarms}
        by_name = {reading.name.value: reading for reading in readings}
        for name in dict.fromkeys((*by_name, *earlier)):
            reading, alarm = by_name.get(name), earlier.get(name)
            if reading is not None and reading.alarming:
                text = reading.explained(self.class_names)
                yield Alarm(name, alarm.since if alarm else state.at, reading.value, reading.limit, text)
            elif alarm is not None:
                calm_rows = alarm.calm_rows + rows if reading is None or reading.calm else 0
                if calm_rows < self.policy.calm:
                    yield alarm._replace(calm_rows=calm_rows)

    def _score(self, state: GuardState, block: Block, may: BoolArray) -> _Scored:
        file, none = self.start.statistics, np.zeros_like(may)
        if state.frozen is not None:
            scores = file.score(block.outputs)
            return _Scored(scores, self._flags(state, scores, block), none, none, state.statistics)
        scores, statistics = _stepped(state.statistics, block.outputs, may)
        if self._trusting or self.mode == Mode.STATIC:
            return _Scored(scores, self._flags(state, scores, block), none, may, statistics)
        by_file = file.score(block.outputs)
        scores = np.maximum(by_file, scores)
        flags, flagged_by_file = self._flags(state, scores, block), self._flags(state, by_file, block)
        stream_only = flags & ~flagged_by_file
        early = state.counted + np.cumsum(may) - may < file.probation
        scores, flags = np.where(early, by_file, scores), np.where(early, flagged_by_file, flags)
        return _Scored(scores, flags, stream_only, may, statistics)

    def _flags(self, state: GuardState, scores: FloatArray, block: Block) -> BoolArray:
        flags = state.threshold.flags(scores, block.predicted if state.threshold.per_class is not None else None)
        return flags | block.outliers

    def _seen(self, state: GuardState, block: Block, may: BoolArray, scored: _Scored) -> Seen:
        """Count the answers to all rows, and the rows that were taken in, or would be if the guard were not frozen."""
        alone = int(np.count_nonzero(scored.stream_only)) if state.frozen is None else None
        predicted = np.bincount(block.predicted[may], minlength=state.recent.mean.size)
        logits = block.outputs.logits if may.all() else block.outputs.logits[may]
        moments = _kernels.absorb(logits, 0.0, *np.zeros((2, logits.shape[1]))) if len(logits) else None
        return Seen(may.size, int(np.count_nonzero(scored.flags)), alone, predicted, moments)

    def _with_reference(self, state: GuardState, recent: RecentRows, statistics: Statistics) -> RecentRows:
        """Look which of the training rows that are kept the running statistics alone would flag."""
        if self._reference is None:
            return recent
        block, by_file = self._reference, self._reference_scores
        scores = np.maximum(by_file, statistics.score(block.outputs))
        alone = self._flags(state, scores, block) & ~self._flags(state, by_file, block)
        n_classes = recent.mean.size
        rows = np.bincount(block.predicted, minlength=n_classes).astype(np.float64)
        flagged = np.maximum(np.bincount(block.predicted[alone], minlength=n_classes) - _FEW_REFERENCE, 0)
        shares = np.where(rows >= _FEWEST_OF_A_CLASS, flagged / np.maximum(rows, 1.0), 0.0)
        worst, of_all = int(shares.argmax()), max(0, int(np.count_nonzero(alone)) - _FEW_REFERENCE) / alone.size
        if of_all >= shares[worst]:
            return recent._replace(reference=of_all, reference_class=-1)
        return recent._replace(reference=float(shares[worst]), reference_class=worst)

    def _after(self, state: GuardState, scored: _Scored) -> GuardState:
        n, taken = scored.taken.size, int(np.count_nonzero(scored.taken))
        return state._replace(
            statistics=scored.statistics,
            rows=state.rows + taken,
            counted=state.counted + (0 if self._trusting else taken),
            scored=state.scored + n,
            kept_out=state.kept_out + n - taken,
        )


def _fates(client: str, block: Block, scored: _Scored, request_starts: IntArray) -> Iterator[LogLine]:
    far, taken = block.far, scored.taken
    masks = {"": taken, "frozen": ~far & ~taken, "outlier": far}  # by why they were not taken in
    for cause, mask in masks.items():
        if mask.any():
            flags, places = scored.flags[mask], np.flatnonzero(mask)
            sample = sample_for_display(scored.scores[mask], block.predicted[mask], flags, request_starts, places)
            fields = {"client": client, "rows": places.size, "flagged": int(np.count_nonzero(flags))}
            event, note = (Event.KEPT_OUT, {"cause": cause}) if cause else (Event.ROWS, {})
            yield event, note, {**fields, "display_sample": sample}


def _stepped(statistics: Statistics, outputs: ModelOutputs, taken: BoolArray) -> tuple[FloatArray, Statistics]:
    """Scores of rows of which some are taken in, and the statistics after them."""
    if taken.all():
        return statistics.step(outputs)
    scores = np.empty(len(outputs))
    if taken.any():
        scores[taken], statistics = statistics.step(outputs[taken])
    scores[~taken] = statistics.score(outputs[~taken])
    return scores, statistics


def sample_for_display(
    scores: FloatArray, predicted: IntArray, flagged: BoolArray, request_starts: IntArray, places: IntArray
) -> bytes:
    """Choose evenly spread rows and the first flagged ones; all rows of a small block.

    ``request_starts`` says where in the block each request begins, ``places`` which of the block's rows these are.
    """
    n, even = scores.size, min(scores.size, _MOST_SHOWN)
    chosen = np.arange(even)
    if n > even:
        chosen = np.concatenate([chosen * (n - 1) // (even - 1), np.flatnonzero(flagged)[:_MOST_FLAGGED_SHOWN]])
    records, place = np.zeros(chosen.size, SHOWN), places[chosen]
    records["score"] = np.clip(scores[chosen], -_LARGEST_SINGLE, _LARGEST_SINGLE)
    records["predicted"], records["flagged"] = predicted[chosen], flagged[chosen]
    records["row"] = place - request_starts[np.searchsorted(request_starts, place, side="right") - 1]
    records["sampled"][:even] = True
    return records.tobytes()
