"""A guard's state and its store, kept in step: reading, appending, snapshots."""

from __future__ import annotations

from normscale import _kernels
from normscale.errors import FileFormatError, InvalidInput
from normscale.guard.clock import Clock
from normscale.guard.entries import Entry, Event
from normscale.guard.guard_state import GuardState, Known
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
MOST_REPLAY_BYTES = 64 << 20
"""Bytes of rows, where the order matters, that make a snapshot due before it would be."""


class Journal:
    """The journal of one guard.

    Parameters
    ----------
    store : SqlStore
    start : GuardState
        That of an empty journal.
    fingerprint : str
        Tells detectors apart: a store belongs to one.
    window : float
        How many recent rows the drift readings rest on.
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
        self._replay_bytes = 0  # bytes of rows since then
        with store.transaction() as transaction:
            self._claim(transaction, fingerprint)
            kept = self._load(transaction)
        self.view.feed(kept)
        self.clock = Clock(not_before=self.state.at)

    def _claim(self, transaction: Transaction, fingerprint: str) -> None:
        """Make sure that the store belongs to this detector and, where rows are replayed, to these kernels."""
        found = transaction.meta["detector"]
        if found is None:
            transaction.meta["detector"] = fingerprint
        elif found != fingerprint:
            raise InvalidInput(
                f"the store {self.store.name!r} holds the statistics of another detector; its rows do not belong to "
                "this one. Choose another --store, or go back to the detector file that it was made with."
            )
        if not self.start.statistics.ordered:
            return
        # numpy's and numba's kernels differ in the last bit, and a replay must give what the writer had.
        kernels, own = transaction.meta["kernels"], _kernels.backend()
        if kernels is None:
            transaction.meta["kernels"] = own
        elif kernels != own:
            raise InvalidInput(
                f"the rows in the store {self.store.name!r} were taken in by the {kernels} kernels, and this process "
                f"has {own}'s: they differ in the last bit. Set NORMSCALE_KERNELS={kernels}, or choose another --store."
            )

    def _load(self, transaction: Transaction) -> list[Entry]:
        """Set the state, and return the entries for the view, those before the snapshot too."""
        snapshot = transaction.snapshot()
        if snapshot is not None:
            self.state = self.start.unpacked(snapshot)
            self._snapshot_seq = self.state.seq
        kept = transaction.entries_after(self.state.seq - KEEP)
        for entry in kept:
            if entry.seq > self.state.seq:
                self.state = self.after(self.state, entry)
                self._replay_bytes += len(entry.replay_rows)
        return kept

    def after(self, state: GuardState, entry: Entry, known: Known | None = None) -> GuardState:
        """Apply one more entry to a state."""
        return state.after(entry, self.start, self._window, known, self._counts_clients)


class Session:
    """One transaction on a journal: the state as it goes, and the entries that are new to this process.

    Use it as a context manager; the journal takes its state over when all of it is on disk, and stays as it was
    otherwise.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._context = journal.store.transaction()
        self._fresh: list[Entry] = []
        self._snapshot_seq, self._replay_bytes = journal._snapshot_seq, journal._replay_bytes

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

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Commit, then let the journal know."""
        try:
            entries = self.state.seq - self._snapshot_seq
            if error_type is None and (entries >= SNAPSHOT_EVERY or self._replay_bytes >= MOST_REPLAY_BYTES):
                self.save_snapshot()
        except BaseException as failed:
            self._context.__exit__(type(failed), failed, failed.__traceback__)
            raise
        self._context.__exit__(error_type, error, trace)  # type: ignore[arg-type]
        if error_type is None:
            journal = self._journal
            journal.state, journal._snapshot_seq, journal._replay_bytes = (
                self.state,
                self._snapshot_seq,
                self._replay_bytes,
            )
            journal.view.feed(self._fresh)

    @property
    def now(self) -> float:
        """The time, never before the last entry's."""
        return max(self.state.at, self._journal.clock.now())

    def append(self, event: Event, known: Known | None = None, **fields: object) -> Entry:
        """Write an entry, and apply it to the state."""
        entry = Entry(self.state.seq + 1, self.now, event.value, **fields)  # type: ignore[arg-type]
        self.transaction.append(entry)
        self._replay_bytes += len(entry.replay_rows)
        self._fresh.append(entry)
        self.state = self._journal.after(self.state, entry, known)
        return entry

    def save_snapshot(self) -> None:
        """Write the state down; entries and answers of long ago are dropped."""
        state = self.state
        ordered = self._journal.start.statistics.ordered
        self.transaction.save_snapshot(state.seq, state.pack(), state.seq - KEEP, drop_rows=ordered)
        self.transaction.forget_answers(state.at - REMEMBER)
        self._snapshot_seq, self._replay_bytes = state.seq, 0

    def remember(self, client: str, key: str, digest: bytes, verdict: bytes) -> None:
        """Keep the answer to a request that may be sent again."""
        self.transaction.remember(client, key, digest, self.state.at, verdict, MOST_BYTES)

    def _catch_up(self) -> None:
        entries = self.transaction.entries_after(self.state.seq)
        if not entries:
            return
        self._fresh.extend(entries)
        if entries[0].seq != self.state.seq + 1 or any(self._needs_snapshot(entry) for entry in entries):
            snapshot = self.transaction.snapshot()  # what the entries alone cannot say
            if snapshot is None:
                name = self._journal.store.name
                raise FileFormatError(f"the journal of {name!r} has a gap after entry {self.state.seq}.")
            self.state = self._journal.start.unpacked(snapshot)
        for entry in entries:
            if entry.seq > self.state.seq:
                self.state = self._journal.after(self.state, entry)
                self._replay_bytes += len(entry.replay_rows)
        self._journal.clock.catch_up(self.state.at)

    def _needs_snapshot(self, entry: Entry) -> bool:
        """Whether only the snapshot knows the statistics after it: rows accepted, or dropped with a snapshot."""
        return entry.event == Event.ACCEPT or (
            entry.event == Event.ROWS and not entry.replay_rows and self._journal.start.statistics.ordered
        )
