"""What every store does: the statements, the same for all databases; the connection differs.

The state of a guard is one row that every transaction writes anew, with a tag: a hash of the tag before and of the
state. So a damaged state does not pass for one, and whoever remembers the last tag notices a store that went back.
"""

from __future__ import annotations

import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import numpy as np

from normscale._kernels import BlockState
from normscale.errors import FileFormatError
from normscale.guard.entries import Entry

SCHEMA_VERSION = 2
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


class StateHead(NamedTuple):
    """Which state a store holds."""

    seq: int
    tag: bytes


class Quarantined(NamedTuple):
    """Rows that were answered but not taken in: their moments by client and minute, or the rows where order matters."""

    seq: int
    """The entry of the log that it began with."""
    at: float
    minute: int
    client: str
    cause: str
    rows: int
    flagged: int
    mean: bytes
    m2: bytes
    packed_rows: bytes = b""

    @property
    def moments(self) -> BlockState:
        """Of the rows' logits."""
        return BlockState(float(self.rows), np.frombuffer(self.mean), np.frombuffer(self.m2))


class Transaction:
    """Statements inside one transaction that no other process is in."""

    def __init__(self, store: SqlStore) -> None:
        self._run = store.run
        self._name = store.name
        self.meta = _Meta(store)

    def head(self) -> StateHead:
        """Which state the store holds; seq 0: none."""
        rows = self._run("SELECT seq, tag FROM state WHERE id = 1")
        if not rows:
            return StateHead(0, (self.meta["store"] or "").encode())
        return StateHead(int(rows[0][0]), bytes(rows[0][1]))

    def state(self) -> bytes | None:
        """The state, if there is one; its tag is checked."""
        rows = self._run("SELECT previous, tag, state FROM state WHERE id = 1")
        if not rows:
            return None
        previous, tag, state = (bytes(value) for value in rows[0])
        if _tag(previous, state) != tag:
            raise FileFormatError(
                f"the state in the store {self._name!r} is damaged: its checksum is wrong. Restore the store from a "
                "copy, or start with a new one."
            )
        return state

    def save_state(self, seq: int, previous: StateHead, state: bytes) -> StateHead:
        """Write the state that follows the ``previous`` one."""
        tag = _tag(previous.tag, state)
        self._run(
            "INSERT INTO state (id, seq, previous, tag, state) VALUES (1, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET seq = excluded.seq, previous = excluded.previous, tag = excluded.tag, state = excluded.state",
            (seq, previous.tag, tag, state),
        )
        return StateHead(seq, tag)

    def entries_after(self, seq: int) -> list[Entry]:
        """The log beyond an entry, in order."""
        rows = self._run(f"SELECT {_ENTRY} FROM log WHERE seq > ? ORDER BY seq", (seq,))
        return [Entry(*row) for row in rows]

    def append(self, entry: Entry) -> None:
        """Write an entry."""
        self._run(f"INSERT INTO log ({_ENTRY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", entry)

    def forget(self, entries_upto: int, answers_before: float) -> None:
        """Drop entries and answers of long ago."""
        self._run("DELETE FROM log WHERE seq <= ?", (entries_upto,))
        self._run("DELETE FROM answers WHERE at < ?", (answers_before,))

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

    def quarantined(self, client: str | None = None, *, with_rows: bool = True) -> list[Quarantined]:
        """Quarantined rows in order, of one client or of all; the rows themselves may be many."""
        where, values = ("", ()) if client is None else (" WHERE client = ?", (client,))
        columns = _QUARANTINED if with_rows else _QUARANTINED.removesuffix(", packed_rows")
        return [Quarantined(*row) for row in self._run(f"SELECT {columns} FROM quarantine{where} ORDER BY seq", values)]

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

    def oldest_quarantined_beyond(self, parts: int, most_bytes: int) -> list[Quarantined]:
        """The oldest quarantined rows, as many as are too many; without the rows themselves."""
        count, size = self._run("SELECT COUNT(*), COALESCE(SUM(length(packed_rows)), 0) FROM quarantine")[0]
        if count <= parts and size <= most_bytes:
            return []
        return self.quarantined(with_rows=False)[: max(1, int(count) // 2)]

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


def _tag(previous: bytes, state: bytes) -> bytes:
    return hashlib.blake2b(state, digest_size=16, key=previous[:64]).digest()


class SqlStore(ABC):
    """A database; one thread at a time may use it."""

    name: str
    """What to call it to people; no password in it."""
    byte_type: str

    def create(self) -> None:
        """Make the tables of a new store, or bring those of an older version up to date."""
        from normscale.guard.stores.migrations import MIGRATIONS

        with self.transaction() as transaction:
            self.run(_META)
            meta = transaction.meta
            known = meta["schema"]
            version = int(known) if known is not None else 1 if meta["detector"] is not None else 0
            if version > SCHEMA_VERSION:
                raise FileFormatError(
                    f"the store {self.name!r} was written by a newer version of normscale (schema {version}, this "
                    f"version knows {SCHEMA_VERSION}); upgrade, or choose another --store."
                )
            if version == SCHEMA_VERSION:
                return
            if not version:
                self.make_tables()
            for older in range(version or SCHEMA_VERSION, SCHEMA_VERSION):
                MIGRATIONS[older](self, transaction)
            meta["schema"] = str(SCHEMA_VERSION)

    def require_room(self, n_bytes: int) -> None:  # noqa: B027 - the disk of a database server is not ours to see
        """Raise :class:`StoreUnavailable` where a state of so many bytes does not fit any more."""

    def make_tables(self) -> None:
        """Make the tables, and give the store a name that no other has."""
        for statement in _SCHEMA:
            self.run(statement.format(bytes=self.byte_type))
        _Meta(self)["store"] = uuid.uuid4().hex

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
    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a statement with ``?`` for its values, and return what it selects."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
