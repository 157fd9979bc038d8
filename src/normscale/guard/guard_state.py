"""The state of a guard and of its streams, with the running statistics, and the form in which the store keeps it.

A state is never changed: a block of rows makes a new one, so a transaction that fails is undone by forgetting it.
Nothing here knows a detector.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.errors import FileFormatError
from normscale.guard.drift import RecentRows
from normscale.guard.policy import Policy
from normscale.metrics.thresholds import Threshold
from normscale.moments import RunningMoments
from normscale.outputs import ModelOutputs
from normscale.state import Kind, copied, pack_state, record_arrays, record_of, unpack_state

STORED = Kind("normscale_guard", "state of a guard", "", "restore the store from a copy, or start with a new one.")
_STATISTICS, _RECENT = "statistics", "recent"


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics at one moment.

    Where a detector's state is moments of the logits, training counts as ``prior`` rows in it. Once it weighs twice as
    much, that is halved: so the past is forgotten again. Other states cannot be made to weigh less, and what they learn
    from a stream's first rows may count for much: so those rows are on probation.
    """

    detector: Detector
    running: bool = False
    state: Any = None
    prior: float = math.inf
    probation: float = 0.0
    """How many rows the stream must have taught before its scores are answered; until then they are only counted."""

    def step(self, outputs: ModelOutputs) -> tuple[FloatArray, Statistics]:
        """Scores of rows as they are taken in one by one, and the statistics after them."""
        rows, state, scores = outputs.only(*self.detector.reads), self.state, []
        for part in self._parts(len(rows)):
            own = copied(state) if self.detector._in_place else state
            prepared = self.detector._prepare(rows if part is None else rows[part], 1)
            some, state = self.detector._step(own, prepared, 1)
            scores.append(some)
            state = self._halved(state)
        return scores[0] if len(scores) == 1 else np.concatenate(scores), replace(self, state=state)

    def _parts(self, n_rows: int) -> Iterator[slice | None]:
        """Rows up to each one that makes it due to forget, so that any split of a stream gives the same; None: all."""
        if math.isinf(self.prior):
            yield None
            return
        weight, first = self._of(self.state).weight, 0
        while first < n_rows:
            room = 2.0 * self.prior - weight
            last = n_rows if room >= n_rows - first else first + max(1, math.ceil(room))
            yield None if last - first == n_rows else slice(first, last)
            weight, first = self.prior if last - first >= room else weight + last - first, last

    def _halved(self, state: Any) -> Any:
        if math.isinf(self.prior) or self._of(state).weight < 2.0 * self.prior:
            return state
        return self.detector._of_moments(self._of(state).reweighted(self.prior).state)

    def score(self, outputs: ModelOutputs) -> FloatArray:
        """Score rows by the statistics as they are."""
        rows = outputs.only(*self.detector.reads)
        return self.detector._score_at(self.state, rows, 1) if self.running else self.detector._score(rows, 1)

    def _of(self, state: Any) -> RunningMoments:
        moments = self.detector._moments(state)
        assert moments is not None
        return RunningMoments.wrap(moments)

    @property
    def moments(self) -> RunningMoments | None:
        """Running moments of the logits, where these are what is kept."""
        known = self.running and self.detector._moments(self.state) is not None
        return self._of(self.state) if known else None

    def restored(self, tensors: Mapping[str, NDArray[Any]]) -> Statistics:
        """Read what the store kept; where training counted as fewer rows then, it gets the rest."""
        state = self.detector._read_state(tensors, _STATISTICS)
        missing = 0.0 if math.isinf(self.prior) else self.prior - self._of(state).weight
        if missing > 0.0:
            training = self._of(self.state).reweighted(missing)
            state = self.detector._of_moments(training.merge(self._of(state)).state)
        return replace(self, state=state)


def statistics_of(detector: Detector, policy: Policy) -> Statistics:
    """The statistics that a detector starts with; where the stream is not trusted, its first rows decide nothing."""
    own = copy.copy(detector)
    if not own._runs:
        return Statistics(own)
    at_start = Statistics(own, True, own._current())
    if policy.trusting:
        return at_start
    if at_start.moments is None:
        return replace(at_start, probation=policy.evidence)
    training = at_start.moments.reweighted(policy.prior).state
    return replace(at_start, state=own._of_moments(training), prior=policy.prior)


class Alarm(NamedTuple):
    """A reading that passed its limit, and has not stayed well below it for long since."""

    name: str
    since: float
    value: float
    """When it was last beyond the limit, as the text."""
    limit: float
    text: str
    calm_rows: int = 0


class Frozen(NamedTuple):
    """Since when, and why, nothing is taken in."""

    since: float
    because: str
    by_person: bool = False
    """Then only a person ends it."""
    alarms: tuple[Alarm, ...] = ()


class Stream(NamedTuple):
    """What some rows have taught, and what they look like."""

    statistics: Statistics
    recent: RecentRows
    rows: int = 0
    counted: int = 0
    """Rows in them of which it was counted what the stream alone flags; probation lasts so long."""
    frozen: Frozen | None = None
    alarms: tuple[Alarm, ...] = ()

    def froze(self, frozen: Frozen, start: Stream) -> Stream:
        """After an alarm: what was taken in since the start may be what raised it, so none of it is believed."""
        recent = self.recent._replace(stream_only=0.0, reference=-1.0, reference_class=-1)
        return Stream(start.statistics, recent, frozen=frozen, alarms=frozen.alarms)


class GuardState(NamedTuple):
    """All that a guard knows.

    Where every client has a stream of its own, those are kept beside it. Then its stream watches the rows of all: its
    statistics stay those of the start, and only a person freezes it.
    """

    seq: int
    """The last entry of the log that it includes."""
    at: float
    stream: Stream
    threshold: Threshold
    scored: int = 0
    kept_out: int = 0
    """Rows answered but not taken in, since the store began."""
    threshold_decided: bool = False
    """Whether a person drew the threshold; else it is the detector file's, or that of the command line, of today."""


Kept = TypeVar("Kept", GuardState, Stream)


def pack(state: GuardState | Stream, *, with_statistics: bool = True) -> bytes:
    """Write a state as bytes."""
    plain = state._asdict()
    plain |= plain.pop("stream", state)._asdict()
    statistics, tensors = plain.pop("statistics"), record_arrays(plain.pop("recent"), _RECENT)
    if with_statistics and statistics.running:
        tensors |= record_arrays(statistics.state, _STATISTICS)
    return pack_state(plain, tensors, STORED)


def unpack(start: Kept, data: bytes) -> Kept:
    """Read a state from bytes; ``start`` is that of an empty store."""
    parts, tensors = unpack_state(data, STORED)
    stream = start.stream if isinstance(start, GuardState) else start
    try:
        statistics, frozen = stream.statistics, None
        if any(name.startswith(_STATISTICS) for name in tensors):
            statistics = statistics.restored(tensors)
        if parts["frozen"] is not None:
            since, because, by_person, alarms = parts["frozen"]
            frozen = Frozen(since, because, by_person, _alarms(alarms))
        recent, rows, counted = record_of(RecentRows, tensors, _RECENT), parts["rows"], parts["counted"]
        stream = Stream(statistics, recent, rows, counted, frozen, _alarms(parts["alarms"]))
        if isinstance(start, Stream):
            return stream
        value, per_class, *rest = parts["threshold"]
        stored = Threshold(value, None if per_class is None else tuple(per_class), *rest)
        threshold = stored if parts["threshold_decided"] else start.threshold
        facts = {name: parts[name] for name in GuardState._fields if name not in ("stream", "threshold")}
        return GuardState(stream=stream, threshold=threshold, **facts)
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"the state of the guard is damaged ({error!r}); {STORED.when_damaged}") from error


def _alarms(parts: list[list[Any]]) -> tuple[Alarm, ...]:
    return tuple(Alarm(*one) for one in parts)
