"""What every store does: the statements, the same for all databases; the connection differs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from normscale.guard.entries import Entry

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS journal (seq BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, event TEXT NOT NULL, "
    "client TEXT NOT NULL, rows BIGINT NOT NULL, flagged BIGINT NOT NULL, predicted {bytes} NOT NULL, "
    "mean {bytes} NOT NULL, m2 {bytes} NOT NULL, replay_rows {bytes} NOT NULL, display_sample {bytes} NOT NULL, "
    "note TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS snapshot (id INTEGER PRIMARY KEY, seq BIGINT NOT NULL, state {bytes} NOT NULL)",
    "CREATE TABLE IF NOT EXISTS quarantine (seq BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, "
    "minute BIGINT NOT NULL, client TEXT NOT NULL, cause TEXT NOT NULL, rows BIGINT NOT NULL, flagged BIGINT NOT NULL, "
    "mean {bytes} NOT NULL, m2 {bytes} NOT NULL, replay_rows {bytes} NOT NULL)",
    "CREATE INDEX IF NOT EXISTS quarantine_by_minute ON quarantine (minute, client, cause)",
    "CREATE TABLE IF NOT EXISTS answers (client TEXT NOT NULL, key TEXT NOT NULL, digest {bytes} NOT NULL, "
    "at DOUBLE PRECISION NOT NULL, upto BIGINT NOT NULL, verdict {bytes} NOT NULL, PRIMARY KEY (client, key))",
    "CREATE INDEX IF NOT EXISTS answers_by_time ON answers (at)",
    "CREATE INDEX IF NOT EXISTS answers_by_client ON answers (client, upto)",
)
_ENTRY = "seq, at, event, client, rows, flagged, predicted, mean, m2, replay_rows, display_sample, note"
_QUARANTINED = "seq, at, minute, client, cause, rows, flagged, mean, m2, replay_rows"


class Quarantined(NamedTuple):
    """Rows that were answered but not taken in: their moments by client and minute, or the rows where order matters."""

    seq: int
    """The journal entry that it began with."""
    at: float
    minute: int
    client: str
    cause: str
    rows: int
    flagged: int
    mean: bytes
    m2: bytes
    replay_rows: bytes


class Transaction:
    """Statements inside one transaction that no other process is in."""

    def __init__(self, store: SqlStore) -> None:
        self._run = store.run
        self.meta = _Meta(store)

    def entries_after(self, seq: int) -> list[Entry]:
        """The journal beyond an entry, in order."""
        rows = self._run(f"SELECT {_ENTRY} FROM journal WHERE seq > ? ORDER BY seq", (seq,))
        return [Entry(*row) for row in rows]

    def append(self, entry: Entry) -> None:
        """Write an entry."""
        self._run(f"INSERT INTO journal ({_ENTRY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", entry)

    def snapshot(self) -> bytes | None:
        """The state as it was last written."""
        rows = self._run("SELECT state FROM snapshot WHERE id = 1", ())
        return bytes(rows[0][0]) if rows else None

    def save_snapshot(self, seq: int, state: bytes, keep_after: int, *, drop_rows: bool) -> None:
        """Write the state; drop entries up to ``keep_after``, and of the others, where there are any, the rows."""
        self._run(
            "INSERT INTO snapshot (id, seq, state) VALUES (1, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, state = excluded.state",
            (seq, state),
        )
        self._run("DELETE FROM journal WHERE seq <= ?", (keep_after,))
        if drop_rows:  # the state includes them
            self._run("UPDATE journal SET replay_rows = ? WHERE seq <= ? AND length(replay_rows) > 0", (b"", seq))

    def forget_answers(self, before: float) -> None:
        """Drop answers that are older than ``before``."""
        self._run("DELETE FROM answers WHERE at < ?", (before,))

    def answer(self, client: str, key: str) -> tuple[bytes, bytes] | None:
        """Digest and verdict of an earlier request with that key."""
        rows = self._run("SELECT digest, verdict FROM answers WHERE client = ? AND key = ?", (client, key))
        return (bytes(rows[0][0]), bytes(rows[0][1])) if rows else None

    def remember(self, client: str, key: str, digest: bytes, at: float, verdict: bytes, most_bytes: int) -> None:
        """Keep the answer to a request that may be sent again; of a client the newest ``most_bytes``."""
        # Each answer's ``upto`` says how many bytes its client has had with it: nobody pushes out what others may need.
        before = self._run("SELECT COALESCE(MAX(upto), 0) FROM answers WHERE client = ?", (client,))[0][0]
        upto = int(before) + len(verdict)
        self._run(
            "INSERT INTO answers (client, key, digest, at, upto, verdict) VALUES (?, ?, ?, ?, ?, ?)",
            (client, key, digest, at, upto, verdict),
        )
        self._run("DELETE FROM answers WHERE client = ? AND upto <= ?", (client, upto - most_bytes))

    def quarantined(self, client: str | None = None) -> list[Quarantined]:
        """Quarantined rows in order, of one client or of all."""
        where, values = ("", ()) if client is None else (" WHERE client = ?", (client,))
        return [
            Quarantined(*row) for row in self._run(f"SELECT {_QUARANTINED} FROM quarantine{where} ORDER BY seq", values)
        ]

    def list_quarantined(self) -> list[Quarantined]:
        """List them for people: without the rows themselves, which may be many."""
        columns = _QUARANTINED.removesuffix(", replay_rows")
        return [Quarantined(*(*row, b"")) for row in self._run(f"SELECT {columns} FROM quarantine ORDER BY seq", ())]

    def quarantined_in_minute(self, minute: int, client: str, cause: str) -> Quarantined | None:
        """Rows of a client that were quarantined within a minute, if any."""
        rows = self._run(
            f"SELECT {_QUARANTINED} FROM quarantine WHERE minute = ? AND client = ? AND cause = ? "
            "ORDER BY seq DESC LIMIT 1",
            (minute, client, cause),
        )
        return Quarantined(*rows[0]) if rows else None

    def quarantine(self, part: Quarantined) -> None:
        """Write or replace quarantined rows that began with an entry."""
        self._run(
            f"INSERT INTO quarantine ({_QUARANTINED}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (seq) DO UPDATE SET "
            "rows = excluded.rows, flagged = excluded.flagged, mean = excluded.mean, m2 = excluded.m2",
            part,
        )

    def drop_quarantined(self, parts: Sequence[Quarantined]) -> None:
        """Drop some of the quarantined rows."""
        for part in parts:
            self._run("DELETE FROM quarantine WHERE seq = ?", (part.seq,))


class _Meta:
    def __init__(self, store: SqlStore) -> None:
        self._run = store.run

    def __getitem__(self, key: str) -> str | None:
        rows = self._run("SELECT value FROM meta WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def __setitem__(self, key: str, value: str) -> None:
        self._run(
            "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, value),
        )


class SqlStore(ABC):
    """A database; one thread at a time may use it."""

    name: str
    """What to call it to people; no password in it."""

    def create(self, byte_type: str) -> None:
        """Make the tables that are not there."""
        with self.transaction():
            for statement in _SCHEMA:
                self.run(statement.format(bytes=byte_type), ())

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction that no other process is in; all of it is on disk afterwards, or none of it."""
        self.begin()
        try:
            yield Transaction(self)
            self.commit()
        except BaseException:
            self.rollback()
            raise

    @abstractmethod
    def begin(self) -> None:
        """Wait for other processes, then begin."""

    @abstractmethod
    def commit(self) -> None:
        """Return once it is on disk."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo; never raises."""

    @abstractmethod
    def run(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Run a statement with ``?`` for its values, and return what it selects."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
