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
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from normscale import _kernels
from normscale._validate import BoolArray, FloatArray, IntArray
from normscale.detectors.base import Detector
from normscale.detectors.baseline import FAR_SCORE
from normscale.guard.drift import DriftMonitor, Reading, RecentRows, Seen
from normscale.guard.guard_state import Alarm, Frozen, GuardState, Statistics, Stream
from normscale.guard.policy import OnDrift
from normscale.guard.stores.store import Event
from normscale.metrics.thresholds import Threshold
from normscale.outputs import LOGITS, ModelOutputs
from normscale.state import Kind, pack_state, unpack_state

_STORED = Kind("normscale_verdict", "verdict", "", "it is of no use any more.")
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


class Verdict(NamedTuple):
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
        facts = self._asdict()
        arrays = {name: facts.pop(name) for name in _ARRAYS}
        return pack_state(facts, arrays, _STORED)

    @classmethod
    def unpack(cls, data: bytes) -> Verdict:
        """Read the verdict of an earlier request, marked as repeated."""
        facts, arrays = unpack_state(data, _STORED)
        scores, is_ood, predicted = (arrays[name] for name in _ARRAYS)
        alarms = tuple(facts["alarms"])
        return cls(scores, is_ood, predicted, facts["mode"], facts["taken_in"], alarms, facts["rows"], repeated=True)


class Block(NamedTuple):
    """Some rows, and what is known of them before they are scored."""

    outputs: ModelOutputs
    predicted: IntArray
    far: BoolArray
    """(n,) too far from training to be taken in ..."""
    outliers: BoolArray
    """(n,) ... or so far that they are flagged, whatever their score."""
    outside: BoolArray | None
    """(n,) ... and rows that the detector gives the highest score: their logits lie outside of training; None: none."""

    @classmethod
    def of(cls, outputs: ModelOutputs, drift: DriftMonitor, detector: Detector) -> Block:
        """Look at rows that were checked."""
        logits, (low, high) = outputs.logits, detector._logit_limits
        inside = low <= float(logits.min()) and float(logits.max()) <= high
        distances, outside = drift.distances(outputs), None if inside else detector._far_rows(outputs, warn=False)
        if distances is None:
            distances = np.zeros(len(outputs))
        far, outliers = distances > drift.far, distances > drift.policy.outlier
        if outside is not None:
            far, outliers = far | outside, outliers | outside
        return cls(outputs, _kernels.predicted(logits), far, outliers, outside)

    def flags(self, threshold: Threshold, scores: FloatArray) -> BoolArray:
        """Which rows are out-of-distribution."""
        return threshold.flags(scores, None if threshold.per_class is None else self.predicted) | self.outliers


LogLine = tuple[Event, dict[str, Any], dict[str, Any]]
"""What happened, a note, and further fields of the entry."""


class Ruling(NamedTuple):
    """The judgement on one block."""

    verdict: Verdict
    taken: BoolArray
    log: list[LogLine]
    """Alarms, freeze, thaw, and rows that share a fate."""
    after: GuardState
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
    """Applies a policy to blocks of rows; ``start`` is a stream that nothing was taken into."""

    def __init__(self, start: Stream, drift: DriftMonitor, class_names: tuple[str, ...] | None) -> None:
        self.start = start
        self.drift = drift
        self.policy = drift.policy
        self._trusting = drift.policy.trusting
        self.class_names = class_names
        self.mode = Mode.RUNNING if start.statistics.running else Mode.STATIC
        self._may_freeze = self.policy.on_drift == OnDrift.FREEZE and self.mode == Mode.RUNNING
        kept = {} if drift.baseline is None else drift.baseline.kept
        self._reference: Block | None = None
        self._reference_scores = np.zeros(0)
        if self.mode == Mode.RUNNING and not self._trusting and len(kept.get(LOGITS, ())):
            self._reference = self.block(ModelOutputs._trusted(dict(kept)))
            self._reference_scores = start.statistics.score(self._reference.outputs)

    def block(self, outputs: ModelOutputs) -> Block:
        """Some rows, with what is known of them."""
        return Block.of(outputs, self.drift, self.start.statistics.detector)

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
        state, own = state._replace(at=at), state.stream if stream is None else stream
        held = None if stream is None else state.stream.frozen  # a person freezes all streams at once
        block = self.block(outputs)
        scored, seen, own, readings, log = self._learn(own if held is None else own._replace(frozen=held), state, block)
        mode, every, n, taken = self.mode_of(own).value, own, len(outputs), int(np.count_nonzero(scored.taken))
        if stream is not None:
            own = own if held is None else own._replace(frozen=stream.frozen)
            log = [(event, note, {"client": client}) for event, note, _ in log]
            recent = state.stream.recent.after(seen, self.policy.window)
            every = state.stream._replace(recent=recent, rows=state.stream.rows + taken)
            every, more = self._watched(every, () if self._trusting else self.drift.readings(recent), at, n)
            log = more + log
        names = tuple(dict.fromkeys(alarm.name for alarm in (*own.alarms, *every.alarms)))
        verdict = Verdict(scored.scores, scored.flags, block.predicted, mode, taken, names, own.rows)
        after = state._replace(stream=every, scored=state.scored + n, kept_out=state.kept_out + n - taken)
        log += _fates(client, block, scored, request_starts)
        return Ruling(verdict, scored.taken, log, after, readings, None if stream is None else own)

    def _learn(
        self, stream: Stream, state: GuardState, block: Block
    ) -> tuple[_Scored, Seen, Stream, tuple[Reading, ...], list[LogLine]]:
        """Take rows into a stream, and look at what has become of it."""
        log: list[LogLine] = []
        if stream.frozen is not None and (why := self._thaws(stream)):
            stream = stream._replace(frozen=None)
            log.append((Event.THAW, {"because": why}, {}))
        scored, seen, after = self._taken_in(stream, state.threshold, block)
        if after.rows // _LOOK_EVERY != stream.rows // _LOOK_EVERY and after.rows >= after.statistics.probation:
            after = after._replace(recent=self._with_reference(state.threshold, after))
        readings = () if self._trusting else self.readings(after)
        after, more = self._watched(after, readings, state.at, len(block.far))
        log += more
        if after.frozen is None and self._may_freeze and any(reading.freezing for reading in readings):
            because = " ".join(alarm.text for alarm in after.alarms)
            log.append((Event.FREEZE, {"because": because}, {}))
            stream = stream.froze(Frozen(state.at, because, alarms=after.alarms), self.start)
            scored, seen, after = self._taken_in(stream, state.threshold, block)  # as if frozen before they came
        return scored, seen, after, readings, log

    def _taken_in(self, stream: Stream, threshold: Threshold, block: Block) -> tuple[_Scored, Seen, Stream]:
        scored = self._score(stream, threshold, block, ~block.far)
        if block.outside is not None:
            scored.scores[block.outside] = FAR_SCORE
        seen, taken = self._seen(stream, block, scored), int(np.count_nonzero(scored.taken))
        after = stream._replace(
            statistics=scored.statistics,
            recent=stream.recent.after(seen, self.policy.window),
            rows=stream.rows + taken,
            counted=stream.counted + (0 if self._trusting else taken),
        )
        return scored, seen, after

    def _watched(
        self, stream: Stream, readings: tuple[Reading, ...], at: float, rows: int
    ) -> tuple[Stream, list[LogLine]]:
        """The stream with the alarms that stand after some rows, and what is to be said of them."""
        alarms, known = tuple(self._alarms(stream, readings, at, rows)), {alarm.name for alarm in stream.alarms}
        log: list[LogLine] = []
        if new := [alarm for alarm in alarms if alarm.name not in known]:
            log.append((Event.ALARM, {"alarms": [alarm._asdict() for alarm in new]}, {}))
        elif stream.alarms and not alarms:
            log.append((Event.CALM, {}, {}))
        return stream._replace(alarms=alarms), log

    def readings(self, stream: Stream) -> tuple[Reading, ...]:
        """The drift readings, of the running statistics too where they are moments and not frozen."""
        running = stream.statistics.moments if stream.frozen is None else None
        return self.drift.readings(stream.recent, None if running is None else running.state)

    def mode_of(self, stream: Stream) -> Mode:
        """How rows are scored in a stream."""
        return Mode.FROZEN if stream.frozen is not None else self.mode

    def probation_left(self, stream: Stream) -> int:
        """Rows to be taken in before answers are more than the detector file's."""
        return max(0, math.ceil(self.start.statistics.probation) - stream.counted)

    def calm_rows(self, stream: Stream) -> int:
        """Rows for which every reading has been well below its limit; all that are needed when no alarm stands."""
        return min((alarm.calm_rows for alarm in stream.alarms), default=math.ceil(self.policy.calm))

    def _thaws(self, stream: Stream) -> str | None:
        if stream.frozen is not None and stream.frozen.by_person:
            return None
        if self.policy.on_drift != OnDrift.FREEZE:
            return "drift is not acted on any more"
        return None if stream.alarms else "the stream is calm again"

    def _alarms(self, stream: Stream, readings: tuple[Reading, ...], at: float, rows: int) -> Iterator[Alarm]:
        """The alarms that stand after some rows: new ones, and earlier ones that have not been calm for long."""
        earlier = {alarm.name: alarm for alarm in stream.alarms}
        by_name = {reading.name.value: reading for reading in readings}
        for name in dict.fromkeys((*by_name, *earlier)):
            reading, alarm = by_name.get(name), earlier.get(name)
            if reading is not None and reading.alarming:
                text = reading.explained(self.class_names)
                yield Alarm(name, alarm.since if alarm else at, reading.value, reading.limit, text)
            elif alarm is not None:
                calm_rows = alarm.calm_rows + rows if reading is None or reading.calm else 0
                if calm_rows < self.policy.calm:
                    yield alarm._replace(calm_rows=calm_rows)

    def _score(self, stream: Stream, threshold: Threshold, block: Block, may: BoolArray) -> _Scored:
        file, none = self.start.statistics, np.zeros_like(may)
        if stream.frozen is not None:
            scores = file.score(block.outputs)
            return _Scored(scores, block.flags(threshold, scores), none, none, stream.statistics)
        scores, statistics = _stepped(stream.statistics, block.outputs, may)
        if self._trusting or self.mode == Mode.STATIC:
            return _Scored(scores, block.flags(threshold, scores), none, may, statistics)
        by_file = file.score(block.outputs)
        scores = np.maximum(by_file, scores)
        flags, flagged_by_file = block.flags(threshold, scores), block.flags(threshold, by_file)
        stream_only = flags & ~flagged_by_file
        early = stream.counted + np.cumsum(may) - may < file.probation
        scores, flags = np.where(early, by_file, scores), np.where(early, flagged_by_file, flags)
        return _Scored(scores, flags, stream_only, may, statistics)

    def _seen(self, stream: Stream, block: Block, scored: _Scored) -> Seen:
        """Count the answers to all rows, and the rows that were taken in, or would be if the guard were not frozen."""
        may, alone = ~block.far, int(np.count_nonzero(scored.stream_only)) if stream.frozen is None else None
        predicted = np.bincount(block.predicted[may], minlength=stream.recent.predicted.size)
        logits = block.outputs.logits if may.all() else block.outputs.logits[may]
        moments = _kernels.absorb(logits, 0.0, *np.zeros((2, logits.shape[1]))) if len(logits) else None
        return Seen(may.size, int(np.count_nonzero(scored.flags)), alone, predicted, moments)

    def _with_reference(self, threshold: Threshold, stream: Stream) -> RecentRows:
        """Look which of the training rows that are kept the running statistics alone would flag."""
        recent, block, by_file = stream.recent, self._reference, self._reference_scores
        if block is None:
            return recent
        scores = np.maximum(by_file, stream.statistics.score(block.outputs))
        alone = block.flags(threshold, scores) & ~block.flags(threshold, by_file)
        n_classes = recent.predicted.size
        rows = np.bincount(block.predicted, minlength=n_classes).astype(np.float64)
        flagged = np.maximum(np.bincount(block.predicted[alone], minlength=n_classes) - _FEW_REFERENCE, 0)
        shares = np.where(rows >= _FEWEST_OF_A_CLASS, flagged / np.maximum(rows, 1.0), 0.0)
        worst, of_all = int(shares.argmax()), max(0, int(np.count_nonzero(alone)) - _FEW_REFERENCE) / alone.size
        if of_all >= shares[worst]:
            return recent._replace(reference=of_all, reference_class=-1)
        return recent._replace(reference=float(shares[worst]), reference_class=worst)


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
