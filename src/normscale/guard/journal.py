"""A guard's state and its store, kept in step: reading, appending, snapshots."""

from __future__ import annotations

from normscale.errors import FileFormatError, InvalidInput
from normscale.guard.clock import Clock
from normscale.guard.entries import ROWS, TAKE_IN, Entry
from normscale.guard.ledger import GuardState
from normscale.guard.statistics import Statistics
from normscale.guard.stores import SqlStore, Transaction
from normscale.guard.view import View

SNAPSHOT_EVERY = 1000
"""Entries between snapshots: what a restart has to read."""
KEEP = 2000
"""Entries that stay in the journal behind a snapshot, for the page's history and for other processes to catch up."""
REMEMBER = 24 * 3600.0
"""Seconds that the answer to a request with a key is kept ..."""
MOST_BYTES = 512 << 20
"""... and how many bytes of such answers of one client."""
MOST_LEARNED = 64 << 20
"""Bytes of rows, where the order matters, that make a snapshot due before it would be."""


class Journal:
    """The journal of one guard.

    Parameters
    ----------
    store : SqlStore
    start : GuardState
        That of an empty journal.
    fingerprint : str
        Tells guards apart: a store belongs to one.
    window : float
        Of the monitor.
    counts_clients : bool
        Whether anyone asks who has sent how much.

    Attributes
    ----------
    state : GuardState
        As of the last transaction that succeeded.
    view : View
        The recent past, for people.
    """

    def __init__(
        self, store: SqlStore, start: GuardState, fingerprint: str, window: float, *, counts_clients: bool
    ) -> None:
        """Read the newest snapshot, and the entries after it."""
        self.store = store
        self.start = start
        self.state = start
        self.view = View()
        self._window = window
        self._counts_clients = counts_clients
        self._snapshot_seq = 0
        self._learned = 0  # bytes of rows since then
        with store.transaction() as transaction:
            self._claim(transaction, fingerprint)
            kept = self._load(transaction)
        self.view.feed(kept)
        self.clock = Clock(not_before=self.state.at)

    def _claim(self, transaction: Transaction, fingerprint: str) -> None:
        """Make sure that the store belongs to this guard."""
        found = transaction.meta["guard"]
        if found is None:
            transaction.meta["guard"] = fingerprint
        elif found != fingerprint:
            raise InvalidInput(
                f"the store {self.store.name!r} holds the statistics of another guard; its rows do not belong to this "
                "one. Choose another --store, or go back to the guard file that it was made with."
            )

    def _load(self, transaction: Transaction) -> list[Entry]:
        """Set the state; the entries, those before the snapshot too, are for the view."""
        snapshot = transaction.snapshot()
        if snapshot is not None:
            self.state = self.start.unpacked(snapshot)
            self._snapshot_seq = self.state.seq
        kept = transaction.entries_after(self.state.seq - KEEP)
        for entry in kept:
            if entry.seq > self.state.seq:
                self.state = self.after(self.state, entry)
                self._learned += len(entry.learned)
        return kept

    def after(self, state: GuardState, entry: Entry, statistics: Statistics | None = None) -> GuardState:
        """The state with one more entry."""
        return state.after(entry, self.start, self._window, statistics, self._counts_clients)


class Session:
    """One transaction on a journal: the state as it goes, and the entries that are new to this process.

    Use it as a context manager; the journal takes its state over when all of it is on disk, and stays as it was
    otherwise.
    """

    def __init__(self, journal: Journal) -> None:
        """Of a journal; :meth:`__enter__` waits for other processes."""
        self._journal = journal
        self._context = journal.store.transaction()
        self._fresh: list[Entry] = []
        self._snapshot_seq, self._learned = journal._snapshot_seq, journal._learned

    def __enter__(self) -> Session:
        """Begin, and read what other processes have written since."""
        self.transaction = self._context.__enter__()
        self.state = self._journal.state
        try:
            self._catch_up()
        except BaseException as error:
            self._context.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Commit, then let the journal know."""
        try:
            entries = self.state.seq - self._snapshot_seq
            if kind is None and (entries >= SNAPSHOT_EVERY or self._learned >= MOST_LEARNED):
                self.save_snapshot()
        except BaseException as failed:
            self._context.__exit__(type(failed), failed, failed.__traceback__)
            raise
        self._context.__exit__(kind, error, trace)  # type: ignore[arg-type]
        if kind is None:
            journal = self._journal
            journal.state, journal._snapshot_seq, journal._learned = self.state, self._snapshot_seq, self._learned
            journal.view.feed(self._fresh)

    @property
    def now(self) -> float:
        """The time, never before the last entry's."""
        return max(self.state.at, self._journal.clock.now())

    def append(self, kind: str, statistics: Statistics | None = None, **fields: object) -> Entry:
        """Write an entry; who knows the statistics after it already says so."""
        entry = Entry(self.state.seq + 1, self.now, kind, **fields)  # type: ignore[arg-type]
        self.transaction.append(entry)
        self._learned += len(entry.learned)
        self._fresh.append(entry)
        self.state = self._journal.after(self.state, entry, statistics)
        return entry

    def save_snapshot(self) -> None:
        """Write the state down; entries and answers of long ago are dropped."""
        state = self.state
        ordered = self._journal.start.statistics.ordered
        self.transaction.save_snapshot(state.seq, state.pack(), state.seq - KEEP, drop_rows=ordered)
        self.transaction.forget_answers(state.at - REMEMBER)
        self._snapshot_seq, self._learned = state.seq, 0

    def remember(self, client: str, key: str, digest: bytes, verdict: bytes) -> None:
        """Keep the answer to a request that may be sent again."""
        self.transaction.remember(client, key, digest, self.state.at, verdict, MOST_BYTES)

    def _catch_up(self) -> None:
        entries = self.transaction.entries_after(self.state.seq)
        if not entries:
            return
        self._fresh.extend(entries)
        if entries[0].seq != self.state.seq + 1 or any(self._says_too_little(entry) for entry in entries):
            snapshot = self.transaction.snapshot()  # what the entries alone cannot say
            if snapshot is None:
                name = self._journal.store.name
                raise FileFormatError(f"the journal of {name!r} has a gap after entry {self.state.seq}.")
            self.state = self._journal.start.unpacked(snapshot)
        for entry in entries:
            if entry.seq > self.state.seq:
                self.state = self._journal.after(self.state, entry)
                self._learned += len(entry.learned)
        self._journal.clock.catch_up(self.state.at)

    def _says_too_little(self, entry: Entry) -> bool:
        """Whether only the snapshot knows the statistics after it: a take-in, or rows that a snapshot has seen off."""
        return entry.kind == TAKE_IN or (
            entry.kind == ROWS and not entry.learned and self._journal.start.statistics.ordered
        )
