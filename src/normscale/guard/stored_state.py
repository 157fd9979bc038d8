"""A guard's state and its store, kept in step: every transaction reads the state, makes a new one and writes it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from normscale.detectors.base import Detector
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput, StoreUnavailable
from normscale.guard.guard_state import GuardState
from normscale.guard.log import Entry, Event, View
from normscale.guard.stores import Store, Transaction

KEEP = 2000  # entries that stay in the log
FORGET_EVERY = 500  # ... and after how many more the older ones are dropped
REMEMBER = 24 * 3600.0  # seconds that the answer to a request with a key is kept
MOST_BYTES = 512 << 20  # ... and how many bytes of such answers of one client


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

    def __init__(self, store: Store, start: GuardState, detector: Detector, *, adopt: bool = False) -> None:
        """Read the state and the log; with ``adopt`` also those of another detector (a store belongs to one)."""
        self.store = store
        self.start = start
        """The state of an empty store: what the detector file says."""
        self.view = View()
        self.listeners: list[Callable[[Entry], None]] = []
        """Each is called with every entry that this process wrote, once it is on disk."""
        self.clock = Clock()
        self.went_back = ""
        """Why the store is none that rows may be acknowledged on any more, if so."""
        self.state_bytes = 0
        with store.transaction() as transaction:
            self.adopted = claim(transaction, start, detector, adopt=adopt)
            """What the detector had learned that the store belonged to; None: it was this one's."""
            self.head = transaction.head()
            self.state = self.loaded(transaction)
            entries = transaction.entries_after(self.state.seq - KEEP)
        self.view.feed(entries)
        self.last_entry = entries[-1] if entries else None
        """The last one that this process has seen in the log."""
        self.clock.catch_up(self.state.at)
        if self.adopted is not None:
            with self.session() as session:
                session.append(Event.ADOPT, note=self.adopted)

    def loaded(self, transaction: Transaction) -> GuardState:
        """The state in the store."""
        stored = transaction.state()
        return self.start if stored is None else self.start.unpacked(stored)

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
        new = session.entries + session.own
        self.view.feed(new)
        self.last_entry = new[-1] if new else self.last_entry
        for listener in self.listeners:
            for entry in session.own:
                listener(entry)


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
        if self.head != stored.head:
            self._read_what_others_wrote(stored.head.seq)
            self.state = stored.loaded(transaction)
            stored.clock.catch_up(self.state.at)

    @property
    def now(self) -> float:
        """The time, never before the last entry's."""
        return max(self.state.at, self._stored.clock.now())

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
        """Write the state, and forget what is old."""
        before, state = self.head.seq, self.state
        packed = state.pack()
        self.head = self.transaction.save_state(state.seq, self.head, packed)
        self._stored.state_bytes = len(packed)
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


def claim(transaction: Transaction, start: GuardState, detector: Detector, *, adopt: bool) -> dict[str, Any] | None:
    """Make sure that a store belongs to the detector; a note for the log when it was taken over from another one.

    Counts, a person's freeze and answers to keys stay. The statistics begin anew, and the threshold is the new file's.
    """
    own, known, stored = fingerprint(detector), transaction.text("detector"), transaction.state()
    if known == own:
        return None
    if known is not None and not adopt:
        raise InvalidInput(
            f"the store {transaction.name!r} holds the statistics of another detector; its rows do not belong to "
            "this one. Choose another --store, go back to the detector file that it was made with, or take it over "
            "(--adopt)."
        )
    names, n_classes = detector.class_names, detector.n_classes_
    classes: dict[str, Any] = {"names": None if names is None else list(names), "number": n_classes}
    earlier = read_json(transaction.text("classes") or "null") or classes
    compared = "number" if earlier["names"] is None or names is None else "names"
    if earlier[compared] != classes[compared]:
        then, now = (", ".join(one["names"] or [f"{one['number']} without names"]) for one in (earlier, classes))
        raise InvalidInput(
            f"the store {transaction.name!r} was made with other classes ({then}) than this detector has ({now}), so "
            "nothing of it can be taken over; choose another --store."
        )
    transaction.set_text("detector", own)
    transaction.set_text("classes", write_json(classes))
    if stored is None:
        return None if known is None else {"rows": 0}
    before = start.unpacked(stored, of_detector=False)
    by_person = before.frozen is not None and before.frozen.by_person
    state = start._replace(  # what only the old detector's logits explain begins anew, an alarm's freeze too
        **{name: getattr(before, name) for name in ("seq", "at", "scored", "kept_out", "alarms_raised", "this_minute")},
        frozen=before.frozen if by_person else None,
    )
    transaction.save_state(state.seq, transaction.head(), state.pack())
    return {"rows": before.rows}
