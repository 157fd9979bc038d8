"""Stores in databases: the statements, the same for all of them; the connection differs."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from normscale.errors import FileFormatError
from normscale.guard.entries import Entry
from normscale.guard.stores.contract import Quarantined, StateHead, StateRecord, Store, Transaction

SCHEMA_VERSION = 3
_META = "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_SCHEMA = (
    "CREATE TABLE state (id INTEGER PRIMARY KEY, seq BIGINT NOT NULL, previous {bytes} NOT NULL, "
    "tag {bytes} NOT NULL, state {bytes} NOT NULL)",
    "CREATE TABLE log (seq BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, event TEXT NOT NULL, "
    "client TEXT NOT NULL, rows BIGINT NOT NULL, flagged BIGINT NOT NULL, display_sample {bytes} NOT NULL, "
    "decided_by TEXT NOT NULL, note TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS quarantine (seq BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, "
    "minute BIGINT NOT NULL, client TEXT NOT NULL, cause TEXT NOT NULL, rows BIGINT NOT NULL, flagged BIGINT NOT NULL, "
    "mean {bytes} NOT NULL, m2 {bytes} NOT NULL, packed_rows {bytes} NOT NULL)",
    "CREATE INDEX IF NOT EXISTS quarantine_by_minute ON quarantine (minute, client, cause)",
    "CREATE TABLE IF NOT EXISTS answers (client TEXT NOT NULL, key TEXT NOT NULL, digest {bytes} NOT NULL, "
    "at DOUBLE PRECISION NOT NULL, upto BIGINT NOT NULL, verdict {bytes} NOT NULL, PRIMARY KEY (client, key))",
    "CREATE INDEX IF NOT EXISTS answers_by_time ON answers (at)",
    "CREATE INDEX IF NOT EXISTS answers_by_client ON answers (client, upto)",
)
_ENTRY = "seq, at, event, client, rows, flagged, display_sample, decided_by, note"
_QUARANTINED = "seq, at, minute, client, cause, rows, flagged, mean, m2, packed_rows"


class SqlTransaction(Transaction):
    """Statements inside one transaction."""

    def __init__(self, store: SqlStore) -> None:
        self._run = store.run
        self.name = store.name
        self.meta = _Meta(store)

    def head(self) -> StateHead:
        rows = self._run("SELECT seq, tag FROM state WHERE id = 1")
        return StateHead(int(rows[0][0]), bytes(rows[0][1])) if rows else super().head()

    def state_record(self) -> StateRecord | None:
        rows = self._run("SELECT seq, previous, tag, state FROM state WHERE id = 1")
        return StateRecord(int(rows[0][0]), *(bytes(value) for value in rows[0][1:])) if rows else None

    def write_state_record(self, record: StateRecord) -> None:
        self._run(
            "INSERT INTO state (id, seq, previous, tag, state) VALUES (1, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET seq = excluded.seq, previous = excluded.previous, tag = excluded.tag, state = excluded.state",
            record,
        )

    def entries_after(self, seq: int) -> list[Entry]:
        rows = self._run(f"SELECT {_ENTRY} FROM log WHERE seq > ? ORDER BY seq", (seq,))
        return [Entry(*row) for row in rows]

    def append(self, entry: Entry) -> None:
        self._run(f"INSERT INTO log ({_ENTRY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", entry)

    def forget(self, entries_upto: int, answers_before: float) -> None:
        self._run("DELETE FROM log WHERE seq <= ?", (entries_upto,))
        self._run("DELETE FROM answers WHERE at < ?", (answers_before,))

    def answer(self, client: str, key: str) -> tuple[bytes, bytes] | None:
        rows = self._run("SELECT digest, verdict FROM answers WHERE client = ? AND key = ?", (client, key))
        return (bytes(rows[0][0]), bytes(rows[0][1])) if rows else None

    def remember(self, client: str, key: str, digest: bytes, at: float, verdict: bytes, most_bytes: int) -> None:
        # Each answer's ``upto`` says how many bytes its client has had with it: nobody pushes out what others may need.
        before = self._run("SELECT COALESCE(MAX(upto), 0) FROM answers WHERE client = ?", (client,))[0][0]
        upto = int(before) + len(verdict)
        self._run(
            "INSERT INTO answers (client, key, digest, at, upto, verdict) VALUES (?, ?, ?, ?, ?, ?)",
            (client, key, digest, at, upto, verdict),
        )
        self._run("DELETE FROM answers WHERE client = ? AND upto <= ?", (client, upto - most_bytes))

    def quarantined(self, client: str | None = None, *, with_rows: bool = True) -> list[Quarantined]:
        where, values = ("", ()) if client is None else (" WHERE client = ?", (client,))
        columns = _QUARANTINED if with_rows else _QUARANTINED.removesuffix(", packed_rows")
        return [Quarantined(*row) for row in self._run(f"SELECT {columns} FROM quarantine{where} ORDER BY seq", values)]

    def quarantined_in_minute(self, minute: int, client: str, cause: str) -> Quarantined | None:
        rows = self._run(
            f"SELECT {_QUARANTINED} FROM quarantine WHERE minute = ? AND client = ? AND cause = ? "
            "ORDER BY seq DESC LIMIT 1",
            (minute, client, cause),
        )
        return Quarantined(*rows[0]) if rows else None

    def quarantine(self, part: Quarantined) -> None:
        self._run(
            f"INSERT INTO quarantine ({_QUARANTINED}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (seq) DO UPDATE SET "
            "rows = excluded.rows, flagged = excluded.flagged, mean = excluded.mean, m2 = excluded.m2",
            part,
        )

    def oldest_quarantined_beyond(self, parts: int, most_bytes: int) -> list[Quarantined]:
        count, size = self._run("SELECT COUNT(*), COALESCE(SUM(length(packed_rows)), 0) FROM quarantine")[0]
        if count <= parts and size <= most_bytes:
            return []
        return self.quarantined(with_rows=False)[: max(1, int(count) // 2)]

    def drop_quarantined(self, parts: Sequence[Quarantined]) -> None:
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


class SqlStore(Store):
    """A database."""

    byte_type: str

    def create(self) -> None:
        """Make the tables of a new store; those of another version are refused."""
        with self.transaction() as transaction:
            self.run(_META)
            meta = transaction.meta
            known = meta["schema"]
            if known is None and meta["detector"] is None:
                for statement in _SCHEMA:
                    self.run(statement.format(bytes=self.byte_type))
                meta["store"], meta["schema"] = uuid.uuid4().hex, str(SCHEMA_VERSION)
            elif known != str(SCHEMA_VERSION):
                raise FileFormatError(
                    f"the store {self.name!r} was written by another version of normscale (schema {known or 1}, this "
                    f"version knows {SCHEMA_VERSION}); use that version, or choose another --store."
                )

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction that no other process is in; all of it is on disk afterwards, or none of it."""
        self.begin()
        try:
            yield SqlTransaction(self)
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
    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a statement with ``?`` for its values, and return what it selects."""
