"""What a store is to a guard: transactions on its state, its log, its quarantine and its answers.

A store of another kind is one class for each of :class:`Store` and :class:`Transaction`, registered by
:func:`~normscale.guard.stores.register_store`. The state of a guard is one record that every transaction writes anew,
with a tag: a hash of the tag before and of the state. So a damaged state does not pass for one, and whoever remembers
the last tag notices a store that went back.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, Self

import numpy as np

from normscale._kernels import BlockState
from normscale.errors import FileFormatError
from normscale.guard.entries import Entry

_BESIDES = 1 << 14
"""Bytes that a few rows write besides the state."""


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


class StateRecord(NamedTuple):
    """A state as it is stored."""

    seq: int
    previous: bytes
    """The tag of the state before."""
    tag: bytes
    state: bytes


class Texts(Protocol):
    """Texts by name; None where there is none."""

    def __getitem__(self, key: str) -> str | None: ...

    def __setitem__(self, key: str, value: str) -> None: ...


class Transaction(ABC):
    """What is read and written inside one transaction that no other process is in.

    Attributes
    ----------
    name : str
        What to call the store to people.
    meta : texts by name
        ``store`` is a name that no other store has; guards add their own.
    """

    name: str
    meta: Texts

    @abstractmethod
    def state_record(self) -> StateRecord | None:
        """The state as it was written, if there is one."""

    @abstractmethod
    def write_state_record(self, record: StateRecord) -> None:
        """Write the state, in the place of the one before."""

    @abstractmethod
    def entries_after(self, seq: int) -> list[Entry]:
        """The log beyond an entry, in order."""

    @abstractmethod
    def append(self, entry: Entry) -> None:
        """Write an entry."""

    @abstractmethod
    def forget(self, entries_upto: int, answers_before: float) -> None:
        """Drop entries and answers of long ago."""

    @abstractmethod
    def answer(self, client: str, key: str) -> tuple[bytes, bytes] | None:
        """Digest and verdict of an earlier request with that key."""

    @abstractmethod
    def remember(self, client: str, key: str, digest: bytes, at: float, verdict: bytes, most_bytes: int) -> None:
        """Keep the answer to a request that may be sent again; of a client the newest ``most_bytes``."""

    @abstractmethod
    def quarantined(self, client: str | None = None, *, with_rows: bool = True) -> list[Quarantined]:
        """Quarantined rows in order, of one client or of all; the rows themselves may be many."""

    @abstractmethod
    def quarantine(self, part: Quarantined) -> None:
        """Write quarantined rows that began with an entry, or replace those that did."""

    @abstractmethod
    def drop_quarantined(self, parts: Sequence[Quarantined]) -> None:
        """Drop some of the quarantined rows."""

    def head(self) -> StateHead:
        """Which state the store holds; seq 0: none."""
        record = self.state_record()
        return (
            StateHead(0, (self.meta["store"] or "").encode()) if record is None else StateHead(record.seq, record.tag)
        )

    def state(self) -> bytes | None:
        """The state, if there is one; its tag is checked."""
        record = self.state_record()
        if record is None:
            return None
        if _tag(record.previous, record.state) != record.tag:
            raise FileFormatError(
                f"the state in the store {self.name!r} is damaged: its checksum is wrong. Restore the store from a "
                "copy, or start with a new one."
            )
        return record.state

    def save_state(self, seq: int, previous: StateHead, state: bytes) -> StateHead:
        """Write the state that follows the ``previous`` one."""
        tag = _tag(previous.tag, state)
        self.write_state_record(StateRecord(seq, previous.tag, tag, state))
        return StateHead(seq, tag)

    def probe(self, n_bytes: int) -> None:
        """Write as much as rows would with a state of so many bytes, and nothing that anyone reads."""
        self.meta["probe"] = "0" * (n_bytes + _BESIDES)

    def quarantined_in_minute(self, minute: int, client: str, cause: str) -> Quarantined | None:
        """The last rows of a client that were quarantined within a minute, if any."""
        same = [part for part in self.quarantined(client) if (part.minute, part.cause) == (minute, cause)]
        return same[-1] if same else None

    def oldest_quarantined_beyond(self, parts: int, most_bytes: int) -> list[Quarantined]:
        """The older half of the quarantined rows, where there are more parts or bytes of rows than that."""
        every = self.quarantined()
        too_many = len(every) > parts or sum(len(part.packed_rows) for part in every) > most_bytes
        return every[: max(1, len(every) // 2)] if too_many else []


class Store(ABC):
    """Where a guard is kept; one thread at a time may use it, and any number of processes."""

    name: str
    """What to call it to people; no password in it."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction that no other process is in; all of it is on disk afterwards, or none of it.

        Raises :class:`~normscale.errors.StoreUnavailable` where rows cannot be acknowledged.
        """

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
