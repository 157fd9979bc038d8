"""A guard's state and its store, kept in step: every transaction reads the state, makes a new one and writes it."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from normscale.detectors.base import Detector
from normscale.encoding.json_text import write_json
from normscale.errors import InvalidInput, StoreUnavailable
from normscale.guard.drift import Reading
from normscale.guard.guard_state import GuardState, Stream, pack, unpack
from normscale.guard.policy import StreamBy
from normscale.guard.request import owner_of
from normscale.guard.stores import Entry, Event, Standing, Store, StoredStream, Transaction

KEEP = 2000  # entries that stay in the log
FORGET_EVERY = 500  # ... and after how many more the older ones are dropped
REMEMBER = 24 * 3600.0  # seconds that the answer to a request with a key is kept
MOST_BYTES = 512 << 20  # ... and how many bytes of such answers of one client
MOST_STREAMS, MOST_STREAM_BYTES = 10_000, 1 << 30
"""Where every client has a stream of its own, so many are kept in the store: those that were used last."""
STREAM_BYTES_IN_MEMORY = 64 << 20
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


class StoredState:
    """What a guard keeps in its store."""

    def __init__(self, store: Store, start: GuardState, detector: Detector, *, by_client: bool = False) -> None:
        self.store = store
        self.start = start
        """The state of an empty store: what the detector file says."""
        self.by_client = by_client
        """Whether every client has a stream of its own, kept beside the state."""
        self.listeners: list[Callable[[list[Entry], list[Entry]], None]] = []
        """Each is called with new entries that are on disk: those of other processes, and those of this one."""
        self.clock = Clock()
        self.went_back = ""
        """Why the store is none that rows may be acknowledged on any more, if so."""
        self.state_bytes = stream_bytes = len(pack(start.stream))
        self.most_streams = max(2, min(MOST_STREAMS, MOST_STREAM_BYTES // stream_bytes))
        self._in_memory = max(1, min(self.most_streams, STREAM_BYTES_IN_MEMORY // stream_bytes))
        self._streams: OrderedDict[str, Stream] = OrderedDict()
        """Streams as they are in the store, that used last at the end."""
        self.sources: tuple[dict[int, int], list[StoredStream]] = {}, []
        """How many streams there are of each standing, and the worst of them, when somebody last looked."""
        with store.transaction() as transaction:
            claim(transaction, detector, by_client=by_client)
            self.head = transaction.head()
            self.state = self.loaded(transaction)
            entries = transaction.entries_after(self.state.seq - 1)
        self.last_entry = entries[-1] if entries else None
        """The last one that this process has seen in the log."""
        self.clock.catch_up(self.state.at)

    def loaded(self, transaction: Transaction) -> GuardState:
        """The state in the store."""
        stored = transaction.state()
        return self.start if stored is None else unpack(self.start, stored)

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
        if not session.keeps_streams:
            self._streams.clear()
        for source, (stream, _) in session.streams.items():
            self._streams[source] = stream
            self._streams.move_to_end(source)
        for source in session.dropped:
            self._streams.pop(source, None)
        while len(self._streams) > self._in_memory:
            self._streams.popitem(last=False)
        if new := session.entries + session.own:
            self.last_entry = new[-1]
            for listener in self.listeners:
                listener(session.entries, session.own)


class Session:
    """One transaction on a stored state, which takes over what it made when all of it is on disk."""

    def __init__(self, stored: StoredState, transaction: Transaction) -> None:
        """Read what other processes have written since."""
        self._stored = stored
        self.transaction = transaction
        self.head = transaction.head()
        self.state = stored.state
        self.entries: list[Entry] = []
        """What is new to this process ..."""
        self.own: list[Entry] = []
        """... and what it wrote itself."""
        self.streams: dict[str, tuple[Stream, Reading | None]] = {}
        """Streams that rows were taken into, each with the reading that is worst of it."""
        self.dropped: list[str] = []
        """Streams that made room for these."""
        self.keeps_streams = self.head == stored.head
        """Whether what this process knows of other streams still holds."""
        if self.head != stored.head:
            self._read_what_others_wrote(stored.head.seq)
            self.state = stored.loaded(transaction)
            stored.clock.catch_up(self.state.at)

    @property
    def now(self) -> float:
        """The time, never before the last entry's."""
        return max(self.state.at, self._stored.clock.now())

    def stream(self, source: str) -> Stream:
        """The stream of a source; one that is not known, or was dropped, begins anew."""
        if source in self.streams:
            return self.streams[source][0]
        known = self._stored._streams.get(source) if self.keeps_streams else None
        if known is None:
            found, start = self.transaction.stream(source), self._stored.start.stream
            known = start if found is None else unpack(start, found)
        return known

    def drop_streams(self, *, at_least: Standing) -> None:
        """Forget all streams, or those that an alarm froze: they have forgotten what they were taught anyway."""
        self.transaction.drop_streams(at_least=at_least)
        self.keeps_streams = False

    def append(self, event: Event, note: dict[str, Any] | None = None, **fields: Any) -> Entry:
        """Write an entry to the log."""
        entry = Entry(self.state.seq + 1, self.now, event.value, note=write_json(note) if note else "", **fields)
        self.transaction.append(entry)
        self.own.append(entry)
        self.state = self.state._replace(seq=entry.seq, at=entry.at)
        return entry

    def remember(self, client: str, key: str, digest: bytes, verdict: bytes) -> None:
        """Keep the answer to a request that may be sent again."""
        self.transaction.remember(client, key, digest, self.state.at, verdict, MOST_BYTES)

    def write(self) -> None:
        """Write the state and the streams that changed, and forget what is old."""
        before, state, stored = self.head.seq, self.state, self._stored
        packed = pack(state, with_statistics=not stored.by_client)
        self.head = self.transaction.save_state(state.seq, self.head, packed)
        stored.state_bytes = len(packed)
        for source, (stream, worst) in self.streams.items():
            standing = Standing.FROZEN if stream.frozen else Standing.ALARM if stream.alarms else Standing.RUNNING
            part, reading = (0.0, "") if worst is None else (worst.value / worst.limit, worst.name.value)
            note = write_json({"reading": reading, "rows": stream.rows, "at": state.at})
            kept = StoredStream(source, owner_of(source), state.seq, standing, part, note, pack(stream))
            self.transaction.save_stream(kept)
            stored.state_bytes += len(kept.state)
        if any(source not in stored._streams for source in self.streams):
            self.dropped = self.transaction.trim_streams(stored.most_streams)
        if state.seq // FORGET_EVERY != before // FORGET_EVERY:
            self.transaction.forget(state.seq - KEEP, state.at - REMEMBER)

    def _read_what_others_wrote(self, known: int) -> None:
        """Read the entries that others wrote after the last known one, which must still be there as it was.

        A process that slept through more than ``KEEP`` entries finds it dropped, and cannot tell.
        """
        found, stored = self.head.seq, self._stored
        entries = self.transaction.entries_after(max(known - 1, found - KEEP))
        self.entries = [entry for entry in entries if entry.seq > known]
        if found <= known:
            holds = f"it holds entry {found}"
        elif entries and entries[0].seq == known and entries[0] != stored.last_entry:
            holds = f"its entry {known} is another one than it was"
        else:
            return
        stored.went_back = (  # others may soon have brought it as far again, with other rows
            f"the store {stored.store.name!r} went back: {holds}, and this process has acknowledged rows up to entry "
            f"{known} (was it restored from a copy, or did a replica without them take over?). Nothing was taken in. "
            "Restart the guard to go on from what the store holds."
        )
        raise StoreUnavailable(stored.went_back)


def fingerprint(detector: Detector) -> str:
    """Tells detectors apart by what they learned and from which rows; the threshold may differ."""
    digest = hashlib.sha256()
    digest.update(write_json([detector.name, {k: repr(v) for k, v in detector.get_params().items()}]).encode())
    for name, array in sorted(detector._arrays().items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        # In single precision: fitting the same rows with other kernels differs in the last digits of double precision.
        digest.update(array.astype(np.float32).tobytes() if array.dtype.kind == "f" else array.tobytes())
    return digest.hexdigest()


def claim(transaction: Transaction, detector: Detector, *, by_client: bool) -> None:
    """Make sure that a store belongs to the detector, and has one stream or one for every client, as is wanted."""
    wanted = {"detector": fingerprint(detector), "stream_by": StreamBy.CLIENT if by_client else StreamBy.ALL}
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
