"""A guard's state and its store, kept in step: every transaction reads the state, makes a new one and writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normscale.encoding.json_text import write_json
from normscale.errors import StoreUnavailable
from normscale.guard.clock import Clock
from normscale.guard.detector_check import Identity
from normscale.guard.entries import Entry, Event
from normscale.guard.guard_state import GuardState
from normscale.guard.stores import SqlStore, StateHead, Transaction
from normscale.guard.succession import succeed
from normscale.guard.view import View

KEEP = 2000
"""Entries that stay in the log ..."""
FORGET_EVERY = 500
"""... and after how many more the older ones are dropped."""
REMEMBER = 24 * 3600.0
"""Seconds that the answer to a request with a key is kept ..."""
MOST_BYTES = 512 << 20
"""... and how many bytes of such answers of one client."""


class StoredState:
    """The state of one guard in its store.

    Parameters
    ----------
    store : SqlStore
    start : GuardState
        That of an empty store.
    identity : Identity
        Of the detector: a store belongs to one.
    adopt : bool
        Whether a store of another detector is taken over.

    Attributes
    ----------
    state : GuardState
        As of the last transaction that succeeded.
    view : View
        The recent past, for people.
    listeners : list of callables
        Each is called with every entry that this process wrote, once it is on disk.
    """

    def __init__(self, store: SqlStore, start: GuardState, identity: Identity, *, adopt: bool = False) -> None:
        """Read the state and the log."""
        self.store = store
        self.start = start
        self.view = View()
        self.listeners: list[Callable[[Entry], None]] = []
        self.clock = Clock()
        with store.transaction() as transaction:
            note = succeed(transaction, start, identity, adopt=adopt, store_name=store.name)
            self.head = transaction.head()
            self.state = self.loaded(transaction)
            self.view.feed(transaction.entries_after(self.state.seq - KEEP))
        self.clock.catch_up(self.state.at)
        if note is not None:
            with Session(self) as session:
                session.append(Event.ADOPT, note=note)

    def loaded(self, transaction: Transaction) -> GuardState:
        """The state in the store."""
        stored = transaction.state()
        return self.start if stored is None else self.start.unpacked(stored)


class Session:
    """One transaction on a stored state: the state as it goes, and the entries that are new to this process.

    Use it as a context manager; the stored state takes over what it made when all of it is on disk, and stays as it was
    otherwise.
    """

    state: GuardState
    _head: StateHead

    def __init__(self, stored: StoredState) -> None:
        self._stored = stored
        self._context = stored.store.transaction()
        self._foreign: list[Entry] = []
        self._own: list[Entry] = []

    def __enter__(self) -> Session:
        """Begin, and read what other processes have written since."""
        self.transaction = self._context.__enter__()
        try:
            self._catch_up()
        except BaseException as error:
            self._context.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Write the state, commit, then take it over."""
        try:
            if error_type is None and self.state is not self._before:
                self._write()
        except BaseException as failed:
            self._context.__exit__(type(failed), failed, failed.__traceback__)
            raise
        self._context.__exit__(error_type, error, trace)  # type: ignore[arg-type]
        if error_type is None:
            stored = self._stored
            stored.state, stored.head = self.state, self._head
            stored.view.feed(self._foreign + self._own)
            for listener in stored.listeners:
                for entry in self._own:
                    listener(entry)

    @property
    def now(self) -> float:
        """The time, never before the last entry's."""
        return max(self.state.at, self._stored.clock.now())

    def append(self, event: Event, note: dict[str, Any] | None = None, **fields: Any) -> Entry:
        """Write an entry to the log."""
        entry = Entry(self.state.seq + 1, self.now, event.value, note=write_json(note) if note else "", **fields)
        self.transaction.append(entry)
        self._own.append(entry)
        self.state = self.state._replace(seq=entry.seq, at=entry.at)
        return entry

    def decide(self, event: Event, note: dict[str, Any], by: str, **changed: Any) -> None:
        """Change the state as a person wants it, and write down who that was."""
        self.state = self.state._replace(**changed)
        self.append(event, note, by=by)

    def remember(self, client: str, key: str, digest: bytes, verdict: bytes) -> None:
        """Keep the answer to a request that may be sent again."""
        self.transaction.remember(client, key, digest, self.state.at, verdict, MOST_BYTES)

    def _write(self) -> None:
        before, state = self._head.seq, self.state
        self._head = self.transaction.save_state(state.seq, self._head, state.pack())
        if state.seq // FORGET_EVERY != before // FORGET_EVERY:
            self.transaction.forget(state.seq - KEEP, state.at - REMEMBER)

    def _catch_up(self) -> None:
        stored, self._head = self._stored, self.transaction.head()
        self.state = stored.state
        if self._head != stored.head:
            self._require_later(self._head, stored.head)
            self.state = stored.loaded(self.transaction)
            self._foreign = self.transaction.entries_after(max(stored.state.seq, self.state.seq - KEEP))
            stored.clock.catch_up(self.state.at)
        self._before = self.state

    def _require_later(self, found: StateHead, known: StateHead) -> None:
        if found.seq <= known.seq:
            raise StoreUnavailable(
                f"the store {self._stored.store.name!r} went back: it holds entry {found.seq}, and this process has "
                f"acknowledged rows up to entry {known.seq} (was it restored from a copy, or did a replica without "
                "them take over?). Nothing was taken in. Restart the guard to go on from what the store holds."
            )
