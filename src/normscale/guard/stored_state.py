"""A guard's state and its store, kept in step: every transaction reads the state, makes a new one and writes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from normscale._kernels import BlockState, combine
from normscale.detectors.base import Detector
from normscale.encoding.json_text import write_json
from normscale.errors import StoreUnavailable
from normscale.guard.entries import Entry, Event
from normscale.guard.guard_state import GuardState, Successor
from normscale.guard.stores import Quarantined, Store, Transaction
from normscale.guard.succession import fingerprint, succeed
from normscale.guard.view import View

KEEP = 2000
"""Entries that stay in the log ..."""
FORGET_EVERY = 500
"""... and after how many more the older ones are dropped."""
REMEMBER = 24 * 3600.0
"""Seconds that the answer to a request with a key is kept ..."""
MOST_BYTES = 512 << 20
"""... and how many bytes of such answers of one client."""
MOST_PARTS, MOST_PACKED_BYTES = 10_000, 64 << 20
"""Of all that is quarantined; beyond, the older half is dropped."""
LOOK_EVERY = 50
"""Entries between two looks at its size."""


class Clock:
    """Seconds since 1970 as they were at the start, counted on by the monotonic clock.

    Setting the machine's clock while a guard runs moves nothing.
    """

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
        """What the state took when it was last written here."""
        self.fingerprint = fingerprint(detector)
        with store.transaction() as transaction:
            note = succeed(transaction, start, detector, self.fingerprint, adopt=adopt, store_name=store.name)
            self.head = transaction.head()
            self.state = self.loaded(transaction)
            """As of the last transaction that succeeded."""
            entries = transaction.entries_after(self.state.seq - KEEP)
        self.view.feed(entries)
        self.last_entry = entries[-1] if entries else None
        """The last one that this process has seen in the log."""
        self.clock.catch_up(self.state.at)
        self.adopted = note
        """What the detector had learned that the store belonged to; None: it was this one's."""
        if note is not None:
            with self.session() as session:
                session.append(Event.ADOPT, note=note)

    def loaded(self, transaction: Transaction) -> GuardState:
        """The state in the store."""
        stored = transaction.state()
        return self.start if stored is None else self.start.unpacked(stored)

    @contextmanager
    def session(self, *, switched_too: bool = False) -> Iterator[Session]:
        """A transaction that writes the state it makes; of a guard switched from, only with ``switched_too``."""
        if self.went_back:
            raise StoreUnavailable(self.went_back)
        with self.store.transaction() as transaction:
            session = Session(self, transaction)
            before = session.state
            if before.successor is not None and not switched_too:
                self._take_over(session)
                raise Switched(self.store.name, before.successor)
            yield session
            if session.state is not before:
                session.write()
        self._take_over(session)
        for listener in self.listeners:
            for entry in session.own:
                listener(entry)

    def _take_over(self, session: Session) -> None:
        """Make what a session has seen and written this process's own."""
        self.state, self.head = session.state, session.head
        new = session.entries + session.own
        self.view.feed(new)
        self.last_entry = new[-1] if new else self.last_entry


class Switched(StoreUnavailable):
    """A store whose guard was switched to another one: nothing is taken in any more."""

    def __init__(self, store_name: str, successor: Successor) -> None:
        """Say who did it, and how to go on or back."""
        super().__init__(
            f"the guard on the store {store_name!r} was switched to that on {successor.store!r}, by "
            f"{successor.by or 'somebody'}, and takes nothing in any more. Serve that one, or give its detector as "
            "--shadow. To go back, serve that one with this detector as its --shadow, and switch."
        )


class Session:
    """One transaction on a stored state, made by :meth:`StoredState.session`.

    The stored state takes over what it made when all of it is on disk, and stays as it was otherwise.
    """

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

    def decide(self, event: Event, note: dict[str, Any], by: str, **changed: Any) -> None:
        """Change the state as a person wants it, and write down who that was."""
        self.state = self.state._replace(**changed)
        self.append(event, note, by=by)

    def quarantine(self, entry: Entry, cause: str, moments: BlockState, packed_rows: bytes) -> None:
        """Keep what a person may accept some day; moments join those of the same minute, client and cause."""
        minute = int(entry.at // 60.0)
        kept = Quarantined(entry.seq, entry.at, minute, entry.client, cause, 0, 0, b"", b"", packed_rows)
        earlier = None if packed_rows else self.transaction.quarantined_in_minute(minute, entry.client, cause)
        if earlier is not None:
            kept, moments = earlier, combine(earlier.moments, moments)
        rows, flagged = kept.rows + entry.rows, kept.flagged + entry.flagged
        mean, m2 = moments.mean.tobytes(), moments.m2.tobytes()
        self.transaction.quarantine(kept._replace(rows=rows, flagged=flagged, mean=mean, m2=m2))
        if entry.seq % LOOK_EVERY == 0 or len(packed_rows) > MOST_PACKED_BYTES // LOOK_EVERY:
            self.drop_quarantined(self.transaction.oldest_quarantined_beyond(MOST_PARTS, MOST_PACKED_BYTES))

    def drop_quarantined(self, parts: Sequence[Quarantined]) -> int:
        """Take parts out of the quarantine; how many rows that were."""
        self.transaction.drop_quarantined(parts)
        rows = sum(part.rows for part in parts)
        self.state = self.state._replace(quarantined=self.state.quarantined - rows)
        return rows

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
