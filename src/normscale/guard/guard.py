"""The guard itself: answers groups of requests, carries out what a person decides, and keeps its state in a store.

Every transaction of the store reads the state, makes a new one and writes it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from normscale import _validate
from normscale._validate import Rows
from normscale.detectors.base import Detector
from normscale.encoding.json_text import write_json
from normscale.errors import InvalidInput, MissingOutput, NotFitted, StoreUnavailable
from normscale.guard.drift import DriftMonitor, Reading, RecentRows
from normscale.guard.guard_state import Frozen, GuardState, Stream, pack, statistics_of, unpack
from normscale.guard.judge import Judge, Mode, Ruling, Verdict
from normscale.guard.policy import Expect, Policy, StreamBy
from normscale.guard.stores import Entry, Event, Standing, Store, StoredStream, Transaction, open_store
from normscale.guard.stores.store import owner_of
from normscale.input_checks import TOLERANCE, ProbabilityForm, detect_probabilities, probabilities_message
from normscale.metrics.thresholds import Threshold
from normscale.outputs import LOGITS, ModelOutputs, as_outputs

_FAR_AWAY = 30.0  # deviations from training, as far as rows are looked at for the highest score
LARGEST = 1e100  # no number may be larger: its square, summed over any number of rows, must stay finite
KEEP = 2000  # entries that stay in the log
FORGET_EVERY = 500  # ... and after how many more the older ones are dropped
REMEMBER = 24 * 3600.0  # seconds that the answer to a request with a key is kept
MOST_BYTES = 512 << 20  # ... and how many bytes of such answers of one client
MOST_STREAMS, MOST_STREAM_BYTES = 10_000, 1 << 30
"""Where every client has a stream of its own, so many are kept in the store: those that were used last."""
SHOWN_STREAMS = 20


class Clock:
    """Seconds since 1970, counted from the start by the monotonic clock: setting the machine's clock moves nothing."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._offset + self._monotonic()

    def catch_up(self, at: float) -> None:
        """Go on from ``at`` if that is later: another process on the same store has a clock ahead of this one."""
        self._offset += max(0.0, at - self.now())


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Rows of one client, to be taken in together."""

    outputs: ModelOutputs
    """At least one row; :meth:`Guard.acceptable` says what else."""
    client: str = "local"
    key: str | None = None
    """A retry with the same key is answered as the first time, and counted once."""
    digest: bytes = b""
    """Of what the client sent: the same key with other rows is an error."""


class Guard:
    """A detector in production. One thread at a time may use it.

    The ``detector`` is fitted, with a threshold, and left as it is. The ``store`` is of this detector alone. Other
    processes may use it, too.

    Examples
    --------
    >>> import normscale as ns
    >>> from normscale.guard import Guard, open_store
    >>> sample = ns.load_sample()
    >>> detector = ns.NormScaling().fit(sample.train).set_threshold(sample.validation)
    >>> guard = Guard(detector, open_store(":memory:"))
    >>> verdict = guard.score(sample.ood["unseen_digits"][:3], client="camera-7")
    >>> verdict.is_ood.tolist(), verdict.mode, guard.state.stream.rows
    ([True, True, True], 'running', 3)
    >>> guard.store.close()
    """

    def __init__(self, detector: Detector, store: Store, policy: Policy | None = None) -> None:
        self.policy = Policy() if policy is None else policy
        self.detector = detector
        self.store = store
        self.widths = required_widths(detector)
        self.n_classes = self.widths[LOGITS]
        assert detector.threshold_ is not None
        survives = detector._survives_unbalanced_stream
        if self.policy.expect == Expect.UNBALANCED and detector._runs and not survives:
            raise InvalidInput(
                f"{detector.name} follows the class balance of its stream, and flags in-distribution rows where one "
                "class dominates. For an unbalanced stream use robust_norm_scaling or stream_aware+..., or leave out "
                "--expect: then the guard freezes, and the detector file answers."
            )
        self.by_client = self.policy.stream_by == StreamBy.CLIENT
        if self.by_client and not detector._runs:
            raise InvalidInput(
                f"{detector.name} has no running statistics, so no client teaches another; leave out --stream-by."
            )
        self.drift = DriftMonitor(detector._baseline, self.policy, survives_unbalanced=survives)
        training = detector._baseline  # a mean of probabilities adds up to 1, too
        self._fitted_on_probabilities = (
            training is not None and detect_probabilities(training.moments.mean[None]) is not None
        )
        statistics = statistics_of(detector, self.policy)
        self.start = GuardState(0, 0.0, Stream(statistics, RecentRows.empty(self.n_classes)), detector.threshold_)
        """The state of an empty store: what the detector file says."""
        self.judge = Judge(self.start.stream, self.drift, detector.class_names)
        self._highest = self._highest_score()
        self.listeners: list[Callable[[list[Entry], list[Entry]], None]] = []
        """Each is called with new entries that are on disk: those of other processes, and those of this one."""
        self.clock = Clock()
        self.went_back = ""
        """Why the store is none that rows may be acknowledged on any more, if so."""
        self.state_bytes = len(pack(self.start.stream))
        self.most_streams = max(2, min(MOST_STREAMS, MOST_STREAM_BYTES // self.state_bytes))
        self.sources: tuple[dict[int, int], list[StoredStream]] = {}, []
        """How many streams there are of each standing, and the worst of them, when somebody last looked."""
        with store.transaction() as transaction:
            claim(transaction, detector, self.policy.stream_by)
            self.head = transaction.head()
            self.state = self._loaded(transaction)
            entries = transaction.entries_after(self.state.seq - 1)
        self.last_entry = entries[-1] if entries else None
        """The last one that this process has seen in the log."""
        self.clock.catch_up(self.state.at)

    @property
    def mode(self) -> Mode:
        """How rows are scored now."""
        return self.judge.mode_of(self.state.stream)

    @property
    def now(self) -> float:
        """The guard's time, which never goes back."""
        return self.clock.now()

    def score(self, outputs: ModelOutputs | Any, client: str = "local") -> Verdict:
        """Score rows, take them in where the policy allows, and return once they are on disk.

        ``outputs`` have logits and whatever else the detector reads, or are plain logits (n, C).
        """
        (answer,) = self.process([Request(as_outputs(outputs), client)])
        if isinstance(answer, InvalidInput):
            raise answer
        return answer

    def process(self, requests: Sequence[Request]) -> list[Verdict | InvalidInput]:
        """Answer requests as one group: all their rows are on disk when this returns, or none.

        A request that lacks an array, or has NaN, infinity or numbers beyond 1e100 in one, is answered by
        :class:`InvalidInput`, and none of its rows are taken in; the others of its group are. Where the store raises
        :class:`StoreUnavailable`, nothing was taken in.
        """
        answers: dict[int, Verdict | InvalidInput] = {}
        waiting: dict[int, Request] = {}
        for i, request in enumerate(requests):
            try:
                waiting[i] = dataclasses.replace(request, outputs=self.acceptable(request.outputs))
            except InvalidInput as refusal:
                answers[i] = refusal
        with self.session() as session:
            while waiting:
                by_client: dict[str, dict[int, Request]] = {}
                keys: set[tuple[str, str | None]] = set()
                for i, request in waiting.items():
                    key = owner_of(request.client), request.key
                    if request.key is None or key not in keys:
                        known = self._known_answer(session, request)
                        if known is not None:
                            answers[i] = known
                            continue
                        keys.add(key)
                        by_client.setdefault(request.client, {})[i] = request
                for client, mine in by_client.items():
                    answers |= zip(mine, self._answer(session, client, list(mine.values())), strict=True)
                # A key that came twice is answered in the next round, by what was kept of its first answer.
                waiting = {i: request for i, request in waiting.items() if i not in answers}
        return [answers[i] for i in range(len(requests))]

    def acceptable(self, outputs: ModelOutputs | Any) -> ModelOutputs:
        """Choose the arrays that the guard reads, or refuse them (:class:`InvalidInput`)."""
        outputs = as_outputs(outputs)
        arrays: dict[str, Rows] = {}
        for name, width in self.widths.items():
            rows = outputs.get(name)
            if rows is None:
                needs, found = " and ".join(self.widths), " and ".join(outputs.names)
                raise MissingOutput(f"{name} is missing: {self.detector.name} needs {needs}; got {found}.")
            if rows.ndim != 2 or rows.shape[1] != width or not len(rows) or rows.dtype.char not in "fd":
                rows = _validate.as_rows(rows, name, width=width)
                _validate.require_rows(rows, name)
            if rows.dtype.char not in "fd" or not rows.flags.c_contiguous or not rows.dtype.isnative:
                rows = np.ascontiguousarray(rows, np.float32 if rows.dtype.char == "e" else np.float64)
            largest = float(rows.max())
            if not max(-float(rows.min()), largest) <= LARGEST:  # NaN fails too
                raise _validate.invalid_row_error(rows, name)
            # Most logits are told by their largest number.
            if name == LOGITS and largest <= 1.0 + TOLERANCE and not self._fitted_on_probabilities:
                found_in = detect_probabilities(rows)
                if found_in is not None and found_in.form is ProbabilityForm.PROBABILITIES:
                    raise InvalidInput(probabilities_message(found_in, "the request"))
            arrays[name] = rows
        return ModelOutputs._trusted(arrays)

    def _known_answer(self, session: Session, request: Request) -> Verdict | InvalidInput | None:
        earlier = None if request.key is None else session.transaction.answer(owner_of(request.client), request.key)
        if earlier is None:
            return None
        digest, verdict = earlier
        if digest == request.digest:
            return Verdict.unpack(verdict)
        return InvalidInput(
            "this Idempotency-Key was used for other rows; use a new key for each request, and the same key only to "
            "send the same bytes again."
        )

    def _answer(self, session: Session, client: str, requests: list[Request]) -> Sequence[Verdict | InvalidInput]:
        outputs = _joined(requests)
        starts = np.cumsum([0, *(len(request.outputs) for request in requests[:-1])])
        stream = session.stream(client) if self.by_client else None
        try:
            ruling = self.judge.rule(session.state, client, session.now, outputs, starts, stream)
        except InvalidInput as refusal:  # nothing is written yet; whose fault it is shows one by one
            if len(requests) == 1:
                return [refusal]
            return [answer for request in requests for answer in self._answer(session, client, [request])]
        session.state = ruling.after
        if ruling.stream is not None:
            readings = [reading for reading in ruling.readings if math.isfinite(reading.limit)]
            worst = max(readings, key=lambda reading: reading.value / reading.limit, default=None)
            session.streams[client] = ruling.stream, worst
        for event, note, fields in ruling.log:
            session.append(event, note, **fields)
        verdicts = [_cut(ruling, request, start) for request, start in zip(requests, starts.tolist(), strict=True)]
        for request, verdict in zip(requests, verdicts, strict=True):
            if request.key is not None:  # it may be sent again
                session.transaction.remember(
                    owner_of(client), request.key, request.digest, session.state.at, verdict.pack(), MOST_BYTES
                )
        return verdicts

    def _decide(
        self,
        event: Event,
        note: dict[str, Any],
        by: str,
        stream: Mapping[str, Any] | None = None,
        dropped: Standing | None = None,
        **changed: Any,
    ) -> GuardState:
        """Change state and stream as a person wants it, drop streams of some standing, and write down ``by`` whom."""
        with self.session() as session:
            changed["stream"] = session.state.stream._replace(**(stream or {}))
            session.state = session.state._replace(**changed)
            if dropped is not None:
                session.transaction.drop_streams(at_least=dropped)
            session.append(event, note, by=by)
        return self.state

    def set_threshold(self, value: float | None, *, by: str = "") -> GuardState:
        """Flag scores above another value; None: above the detector file's threshold."""
        threshold = self.start.threshold if value is None else Threshold(_validate.real(value, "threshold"))
        if not np.isfinite(threshold.value):
            raise InvalidInput(f"threshold must be finite; got {value!r}.")
        note, decided = {"value": threshold.value, "own": value is None}, value is not None
        return self._decide(Event.THRESHOLD, note, by, threshold=threshold, threshold_decided=decided)

    @property
    def notes(self) -> list[str]:
        """What an operator should know of this guard beforehand."""
        notes = []
        if self.detector._baseline is None:
            notes.append(
                "the detector file does not say what training looked like, so only the flagged share is watched; fit "
                "it again with this version."
            )
        if self.detector._runs and not self.detector._survives_unbalanced_stream and not self.policy.trusting:
            notes.append(
                f"{self.detector.name} follows the class balance of its stream: one that is sorted, or mostly of one "
                "class, freezes the guard, and the detector file answers. For such a stream fit the default detector "
                "(normscale fit without -d)."
            )
        chosen = self.state.threshold
        if chosen.keep is None and chosen.value > self._highest:
            notes.append(
                f"the threshold of {chosen.value:g} may flag nothing: {self.detector.name} gives at most "
                f"{self._highest:.4g} to rows of zeros, and up to {_FAR_AWAY:g} deviations from the training mean."
            )
        return notes

    def _highest_score(self) -> float:
        """Of a few rows far from training and at its middle; infinite where too little is known of training."""
        baseline = self.detector._baseline
        known = {} if baseline is None else {LOGITS: baseline.moments, **baseline.others}
        if not set(self.detector.reads) <= set(known):
            return math.inf
        steps = np.array([[-_FAR_AWAY], [0.0], [_FAR_AWAY]])
        zeros = {name: np.zeros((1, moments.mean.size)) for name, moments in known.items()}
        rows = {name: np.vstack([zeros[name], moments.mean + steps * moments.std]) for name, moments in known.items()}
        return float(self.start.stream.statistics.score(ModelOutputs._trusted(rows)).max())

    def freeze(self, because: str, *, by: str = "") -> GuardState:
        """Score by the detector file's statistics and take nothing in, until :meth:`thaw` or :meth:`reset`."""
        if self.judge.mode == Mode.STATIC:
            raise InvalidInput(f"{self.detector.name} has no running statistics; there is nothing to freeze.")
        frozen = Frozen(self.now, because, by_person=True)
        return self._decide(Event.FREEZE, {"because": because}, by, {"frozen": frozen})

    def thaw(self, *, by: str = "") -> GuardState:
        """Resume taking rows in; what is compared with training begins anew, or it would freeze again."""
        anew = {"frozen": None, "recent": self.start.stream.recent, "alarms": ()}
        return self._decide(Event.THAW, {"because": "a person said so"}, by, anew, Standing.FROZEN)

    def reset(self, *, by: str = "") -> GuardState:
        """Forget the stream, or those of all clients: back to the detector file's statistics."""
        return self._decide(Event.RESET, {}, by, self.start.stream._asdict(), Standing.RUNNING)

    def readings(self) -> tuple[Reading, ...]:
        """The drift readings, and those of the running statistics where there is one stream."""
        if self.by_client:
            return self.drift.readings(self.state.stream.recent)
        return self.judge.readings(self.state.stream)

    def probe(self) -> None:
        """Write to the store, or raise :class:`StoreUnavailable` as answers would."""
        with self.session() as session:
            session.transaction.probe(self.state_bytes)

    def log(self) -> list[Entry]:
        """The entries that are kept."""
        with self.session() as session:
            return session.transaction.entries_after(session.state.seq - KEEP)

    def refresh(self) -> GuardState:
        """Read what other processes have written since, and how the streams are."""
        with self.session() as session:
            if self.by_client:
                self.sources = session.transaction.streams(SHOWN_STREAMS)
            return session.state

    def _loaded(self, transaction: Transaction) -> GuardState:
        stored = transaction.state()
        return self.start if stored is None else unpack(self.start, stored)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A transaction that writes the state it makes."""
        if self.went_back:
            raise StoreUnavailable(self.went_back)
        with self.store.transaction() as transaction:
            session = Session(self, transaction)
            before = session.state
            yield session
            if session.state is not before:
                session.write()
        self.state, self.head = session.state, session.head
        if new := session.others + session.own:
            self.last_entry = new[-1]
            for listener in self.listeners:
                listener(session.others, session.own)


class Session:
    """One transaction on a guard's state; the guard takes over what it made when all of it is on disk."""

    def __init__(self, guard: Guard, transaction: Transaction) -> None:
        """Read what other processes have written since."""
        self._guard = guard
        self.transaction = transaction
        self.head = transaction.head()
        self.state = guard.state
        self.others: list[Entry] = []
        """What other processes wrote ..."""
        self.own: list[Entry] = []
        """... and what this one did."""
        self.streams: dict[str, tuple[Stream, Reading | None]] = {}
        """Streams that rows were taken into, each with the reading that is worst of it."""
        self._begins_streams = False
        if self.head != guard.head:
            self._read_what_others_wrote(guard.head.seq)
            self.state = guard._loaded(transaction)
            guard.clock.catch_up(self.state.at)

    @property
    def now(self) -> float:
        """The time, never before the last entry's."""
        return max(self.state.at, self._guard.now)

    def stream(self, source: str) -> Stream:
        """The stream of a source; one that is not known, or was dropped, begins anew."""
        if source in self.streams:
            return self.streams[source][0]
        found, start = self.transaction.stream(source), self._guard.start.stream
        self._begins_streams |= found is None
        return start if found is None else unpack(start, found)

    def append(self, event: Event, note: dict[str, Any] | None = None, **fields: Any) -> None:
        """Write an entry to the log."""
        entry = Entry(self.state.seq + 1, self.now, event.value, note=write_json(note) if note else "", **fields)
        self.transaction.append(entry)
        self.own.append(entry)
        self.state = self.state._replace(seq=entry.seq, at=entry.at)

    def write(self) -> None:
        """Write the state and the streams that changed, and forget what is old."""
        before, state, guard = self.head.seq, self.state, self._guard
        packed = pack(state, with_statistics=not guard.by_client)
        self.head = self.transaction.save_state(state.seq, self.head, packed)
        guard.state_bytes = len(packed)
        for source, (stream, worst) in self.streams.items():
            standing = Standing.FROZEN if stream.frozen else Standing.ALARM if stream.alarms else Standing.RUNNING
            part, reading = (0.0, "") if worst is None else (worst.value / worst.limit, worst.name.value)
            note = write_json({"reading": reading, "rows": stream.rows, "at": state.at})
            kept = StoredStream(source, owner_of(source), state.seq, standing, part, note, pack(stream))
            self.transaction.save_stream(kept)
            guard.state_bytes += len(kept.state)
        if self._begins_streams:
            self.transaction.trim_streams(guard.most_streams)
        if state.seq // FORGET_EVERY != before // FORGET_EVERY:
            self.transaction.forget(state.seq - KEEP, state.at - REMEMBER)

    def _read_what_others_wrote(self, known: int) -> None:
        """Read the entries that others wrote after the last known one, which must still be there as it was.

        A process that slept through more than ``KEEP`` entries finds it dropped, and cannot tell.
        """
        found, guard = self.head.seq, self._guard
        entries = self.transaction.entries_after(max(known - 1, found - KEEP))
        self.others = [entry for entry in entries if entry.seq > known]
        if found <= known:
            holds = f"it holds entry {found}"
        elif entries and entries[0].seq == known and entries[0] != guard.last_entry:
            holds = f"its entry {known} is another one than it was"
        else:
            return
        guard.went_back = (  # others may soon have brought it as far again, with other rows
            f"the store {guard.store.name!r} went back: {holds}, and this process has acknowledged rows up to entry "
            f"{known} (was it restored from a copy, or did a replica without them take over?). Nothing was taken in. "
            "Restart the guard to go on from what the store holds."
        )
        raise StoreUnavailable(guard.went_back)


def _joined(requests: Sequence[Request]) -> ModelOutputs:
    first = requests[0].outputs
    if len(requests) == 1:
        return first
    return ModelOutputs._trusted(
        {name: np.concatenate([request.outputs.array(name) for request in requests]) for name in first.names}
    )


def _cut(ruling: Ruling, request: Request, start: int) -> Verdict:
    verdict, rows = ruling.verdict, slice(start, start + len(request.outputs))
    columns = {name: getattr(verdict, name)[rows] for name in ("scores", "is_ood", "predicted")}
    return verdict._replace(**columns, taken_in=int(np.count_nonzero(ruling.taken[rows])))


def required_widths(detector: Detector) -> dict[str, int]:
    """Columns of every array that a guard needs of this detector, logits first, or what the detector lacks."""
    n_classes = detector._n_classes
    if n_classes is None:
        if detector._widths is not None:
            raise InvalidInput(
                f"{detector.name} was fitted without logits, and a guard needs them for the predicted classes; fit it "
                f"again with ModelOutputs(logits, {', '.join(f'{name}=...' for name in detector.reads)})."
            )
        raise NotFitted(f"{detector.name} is not fitted, so the number of classes is not known; fit it first.")
    if detector._runs and not detector._holds_threshold_in_stream:
        raise InvalidInput(
            f"{detector.name} cannot stand guard: its running statistics move in-distribution rows past the threshold, "
            "so that every stream would look like an attack. Use robust_norm_scaling, or another detector."
        )
    if detector.threshold_ is None:
        raise NotFitted(
            f"{detector.name} has no threshold, so the guard could not say yes or no; fit it with "
            "--threshold-on VALIDATION, or give a --threshold."
        )
    if not np.isfinite(detector.threshold_.value):
        raise InvalidInput(f"threshold must be finite; got {detector.threshold_.value!r}.")
    return {LOGITS: n_classes, **(detector._widths or {})}


def fingerprint(detector: Detector) -> str:
    """Tells detectors apart by what they learned and from which rows; the threshold may differ."""
    digest = hashlib.sha256()
    digest.update(write_json([detector.name, {k: repr(v) for k, v in detector.get_params().items()}]).encode())
    for name, array in sorted(detector._arrays().items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        # In single precision: fitting the same rows with other kernels differs in the last digits of double precision.
        digest.update(array.astype(np.float32).tobytes() if array.dtype.kind == "f" else array.tobytes())
    return digest.hexdigest()


def claim(transaction: Transaction, detector: Detector, stream_by: str) -> None:
    """Make sure that a store belongs to the detector, and has one stream or one for every client, as is wanted."""
    wanted = {"detector": fingerprint(detector), "stream_by": stream_by}
    for key, own in wanted.items():
        known = transaction.text(key)
        if known is None:
            transaction.set_text(key, own)
        elif known != own:
            holds = "the statistics of another detector; its rows do not belong to this one"
            if key == "stream_by":
                holds = f"statistics of --stream-by {known}, which do not become those of --stream-by {own}"
            raise InvalidInput(
                f"the store {transaction.name!r} holds {holds}. Choose another --store, or go back to what it was made "
                "with."
            )


def open_guard(detector: Detector, where: str | os.PathLike[str], policy: Policy | None = None) -> Guard:
    """Open the store ``where`` (see :func:`open_store`) and the guard on it.

    A detector that is refused leaves no store behind; a store that is refused is closed.
    """
    required_widths(detector)
    store = open_store(where)
    try:
        return Guard(detector, store, policy)
    except BaseException:
        store.close()
        raise
