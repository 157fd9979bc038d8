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
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple, Self

from normscale.encoding.json_text import read_json
from normscale.errors import FileFormatError

SCHEMA_VERSION = 7
_TABLES = (
    "state (id INTEGER PRIMARY KEY, seq BIGINT NOT NULL, previous {bytes} NOT NULL, tag {bytes} NOT NULL, "
    "state {bytes} NOT NULL)",
    "log (seq BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, event TEXT NOT NULL, client TEXT NOT NULL, "
    "rows BIGINT NOT NULL, flagged BIGINT NOT NULL, display_sample {bytes} NOT NULL, decided_by TEXT NOT NULL, "
    "note TEXT NOT NULL)",
    "answers (client TEXT NOT NULL, key TEXT NOT NULL, digest {bytes} NOT NULL, at DOUBLE PRECISION NOT NULL, "
    "upto BIGINT NOT NULL, verdict {bytes} NOT NULL, PRIMARY KEY (client, key))",
    "streams (source TEXT PRIMARY KEY, owner TEXT NOT NULL, used BIGINT NOT NULL, standing INTEGER NOT NULL, "
    "part DOUBLE PRECISION NOT NULL, note TEXT NOT NULL, tag {bytes} NOT NULL, state {bytes} NOT NULL)",
)
_INDICES = (
    "answers_by_time ON answers (at)",
    "answers_by_client ON answers (client, upto)",
    "streams_by_owner ON streams (owner, used)",
    "streams_by_standing ON streams (standing, part)",
)
_ENTRY = "seq, at, event, client, rows, flagged, display_sample, decided_by, note"
_STREAM = "source, owner, used, standing, part, note, tag, state"
_BESIDES = 1 << 14  # bytes that a few rows write besides the state


class Event(StrEnum):
    """What an entry tells of."""

    ROWS = "rows"
    KEPT_OUT = "kept_out"
    ALARM = "alarm"
    CALM = "calm"
    FREEZE = "freeze"
    THAW = "thaw"
    THRESHOLD = "threshold"
    RESET = "reset"


class Entry(NamedTuple):
    """One line of the log."""

    seq: int
    at: float
    """Seconds since 1970, never going back."""
    event: str
    client: str = ""
    rows: int = 0
    flagged: int = 0
    display_sample: bytes = b""
    by: str = ""
    """Who decided; empty for what the guard does by itself."""
    note: str = ""
    """JSON: why rows were kept out, what an alarm says, the reason of a decision."""

    @property
    def details(self) -> dict[str, Any]:
        """The note, read."""
        return read_json(self.note) if self.note else {}


def owner_of(client: str) -> str:
    """Whose keys and streams they are: a client's, whatever source it names (``client/source``)."""
    return client.partition("/")[0]


class Standing(IntEnum):
    """How a client's stream is."""

    RUNNING = 0
    ALARM = 1
    FROZEN = 2


class StoredStream(NamedTuple):
    """The stream of one source, as people see it and as it is kept."""

    source: str
    owner: str
    used: int
    """The entry of the log that used it last."""
    standing: int
    part: float
    """Its largest drift reading as a part of that reading's limit."""
    note: str
    """JSON: which reading that is, how many rows it has taken in, when it was used."""
    state: bytes = b""


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
            return self._checked(state, tag, _tag(previous, state))
        return None

    def _checked(self, state: bytes, tag: bytes, own: bytes) -> bytes:
        if tag != own:
            raise FileFormatError(
                f"the state in the store {self.name!r} is damaged: its checksum is wrong. Restore the store from a "
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

    def stream(self, source: str) -> bytes | None:
        """The state of a source's stream, if it has one; its tag is checked."""
        for row in self._run("SELECT tag, state FROM streams WHERE source = ?", (source,)):
            tag, state = map(bytes, row)
            return self._checked(state, tag, _tag(source.encode(), state))
        return None

    def save_stream(self, stream: StoredStream) -> None:
        """Write the stream of a source."""
        *about, state = stream
        self._run(
            f"INSERT INTO streams ({_STREAM}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (source) DO UPDATE SET "
            "used = excluded.used, standing = excluded.standing, part = excluded.part, note = excluded.note, "
            "tag = excluded.tag, state = excluded.state",
            (*about, _tag(stream.source.encode(), state), state),
        )

    def trim_streams(self, most: int) -> None:
        """Keep so many streams: whoever has the most of them loses that which was not used for longest."""
        for _ in range(self._run("SELECT COUNT(*) FROM streams")[0][0] - most):
            (source,) = self._run(
                "SELECT source FROM streams WHERE owner = (SELECT owner FROM streams GROUP BY owner ORDER BY COUNT(*) "
                "DESC, owner LIMIT 1) ORDER BY used, source LIMIT 1"
            )[0]
            self._run("DELETE FROM streams WHERE source = ?", (source,))

    def drop_streams(self, *, at_least: Standing = Standing.RUNNING) -> None:
        """Forget all streams, or those that an alarm froze."""
        self._run("DELETE FROM streams WHERE standing >= ?", (at_least.value,))

    def streams(self, most: int) -> tuple[dict[int, int], list[StoredStream]]:
        """How many streams there are of each standing, and those that are worst off, without their states."""
        counts = self._run("SELECT standing, COUNT(*) FROM streams GROUP BY standing")
        about = _STREAM.removesuffix(", tag, state")
        rows = self._run(f"SELECT {about} FROM streams ORDER BY standing DESC, part DESC LIMIT ?", (most,))
        return {int(standing): int(count) for standing, count in counts}, [StoredStream(*row) for row in rows]


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tag(previous: bytes, state: bytes) -> bytes:
    return hashlib.blake2b(state, digest_size=16, key=previous[:64]).digest()
