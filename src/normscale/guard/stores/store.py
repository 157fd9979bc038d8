"""What a store is to a guard: transactions on its state, its log and its answers, in SQL.

A store of another database is a subclass of :class:`Store` that connects, begins, commits and runs statements. The
state of a guard is one row that every transaction writes anew, with a tag: a hash of the tag before and of the state.
So a damaged state does not pass for one, and whoever remembers the last tag notices a store that went back.
"""

from __future__ import annotations

import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from normscale.errors import FileFormatError
from normscale.guard.log import Entry

SCHEMA_VERSION = 4
_TABLES = (
    "state (id INTEGER PRIMARY KEY, seq BIGINT NOT NULL, previous {bytes} NOT NULL, tag {bytes} NOT NULL, "
    "state {bytes} NOT NULL)",
    "log (seq BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, event TEXT NOT NULL, client TEXT NOT NULL, "
    "rows BIGINT NOT NULL, flagged BIGINT NOT NULL, display_sample {bytes} NOT NULL, decided_by TEXT NOT NULL, "
    "note TEXT NOT NULL)",
    "answers (client TEXT NOT NULL, key TEXT NOT NULL, digest {bytes} NOT NULL, at DOUBLE PRECISION NOT NULL, "
    "upto BIGINT NOT NULL, verdict {bytes} NOT NULL, PRIMARY KEY (client, key))",
)
_INDICES = ("answers_by_time ON answers (at)", "answers_by_client ON answers (client, upto)")
_ENTRY = "seq, at, event, client, rows, flagged, display_sample, decided_by, note"
_BESIDES = 1 << 14  # bytes that a few rows write besides the state


class StateHead(NamedTuple):
    """Which state a store holds."""

    seq: int
    tag: bytes


class Transaction:
    """What is read and written inside one transaction that no other process is in."""

    def __init__(self, store: Store) -> None:
        self._run = store.run
        self.name = store.name

    def text(self, key: str) -> str | None:
        """A text by its name; ``store`` is a name that no other store has."""
        rows = self._run("SELECT value FROM meta WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def set_text(self, key: str, value: str) -> None:
        """Keep a text by its name."""
        self._run(
            "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, value),
        )

    def probe(self, n_bytes: int) -> None:
        """Write as much as rows would with a state of so many bytes, and nothing that anyone reads."""
        self.set_text("probe", "0" * (n_bytes + _BESIDES))

    def head(self) -> StateHead:
        """Which state the store holds; seq 0: none."""
        rows = self._run("SELECT seq, tag FROM state WHERE id = 1")
        return StateHead(int(rows[0][0]), bytes(rows[0][1])) if rows else StateHead(0, str(self.text("store")).encode())

    def state(self) -> bytes | None:
        """The state, if there is one; its tag is checked."""
        for row in self._run("SELECT previous, tag, state FROM state WHERE id = 1"):
            previous, tag, state = map(bytes, row)
            if _tag(previous, state) != tag:
                raise FileFormatError(
                    f"the state in the store {self.name!r} is damaged: its checksum is wrong. Restore the store from a "
                    "copy, or start with a new one."
                )
            return state
        return None

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
        return [Entry(*row) for row in self._run(f"SELECT {_ENTRY} FROM log WHERE seq > ? ORDER BY seq", (seq,))]

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


class Store(ABC):
    """Where a guard is kept: a database. One thread at a time may use it, and any number of processes."""

    name: str
    """What to call it to people; no password in it."""
    byte_type: str = "BLOB"

    def create(self) -> None:
        """Make the tables of a new store; those of another version are refused."""
        with self.transaction() as transaction:
            self.run("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
            known = transaction.text("schema")
            if known is None and transaction.text("detector") is None:
                for table in _TABLES:
                    self.run(f"CREATE TABLE {table.format(bytes=self.byte_type)}")
                for index in _INDICES:
                    self.run(f"CREATE INDEX {index}")
                transaction.set_text("store", uuid.uuid4().hex)
                transaction.set_text("schema", str(SCHEMA_VERSION))
            elif known != str(SCHEMA_VERSION):
                raise FileFormatError(
                    f"the store {self.name!r} was written by another version of normscale (schema {known or 1}, this "
                    f"version knows {SCHEMA_VERSION}); use that version, or choose another --store."
                )

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction that no other process is in; all of it is on disk afterwards, or none of it.

        Raises :class:`~normscale.errors.StoreUnavailable` where rows cannot be acknowledged.
        """
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
        """Let go of it."""

    def require_room(self, n_bytes: int) -> None:  # noqa: B027 - the disk of a database server is not ours to see
        """Raise :class:`~normscale.errors.StoreUnavailable` where a state of so many bytes does not fit any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tag(previous: bytes, state: bytes) -> bytes:
    return hashlib.blake2b(state, digest_size=16, key=previous[:64]).digest()
