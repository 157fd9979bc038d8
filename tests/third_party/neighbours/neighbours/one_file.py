"""A guard's store in one JSON file that every transaction writes anew: ``onefile://PATH``."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from normscale.errors import StoreUnavailable
from normscale.guard.entries import Entry
from normscale.guard.stores import Quarantined, StateRecord, Store, Transaction, register_store

_EMPTY: dict[str, Any] = {"meta": {}, "state": None, "log": [], "answers": [], "quarantine": []}


class _Texts(dict[str, Any]):
    """None for a name that is not there."""

    def __missing__(self, key: str) -> None:
        return None


class OneFileTransaction(Transaction):
    """Everything as Python has it, between reading the file and writing it."""

    def __init__(self, name: str, content: dict[str, Any]) -> None:
        self.name = name
        self.meta = self._texts = _Texts(content["meta"])
        self._state = None if content["state"] is None else StateRecord(*content["state"])
        self._log = [Entry(*entry) for entry in content["log"]]
        self._answers = [tuple(answer) for answer in content["answers"]]
        self._quarantine = [Quarantined(*part) for part in content["quarantine"]]

    @property
    def content(self) -> dict[str, Any]:
        lists = {"log": self._log, "answers": self._answers, "quarantine": self._quarantine}
        return {"meta": self._texts, "state": self._state, **lists}

    def state_record(self) -> StateRecord | None:
        return self._state

    def write_state_record(self, record: StateRecord) -> None:
        self._state = record

    def entries_after(self, seq: int) -> list[Entry]:
        return [entry for entry in self._log if entry.seq > seq]

    def append(self, entry: Entry) -> None:
        self._log.append(entry)

    def forget(self, entries_upto: int, answers_before: float) -> None:
        self._log = self.entries_after(entries_upto)
        self._answers = [answer for answer in self._answers if answer[3] >= answers_before]

    def answer(self, client: str, key: str) -> tuple[bytes, bytes] | None:
        return next(((answer[2], answer[4]) for answer in self._answers if answer[:2] == (client, key)), None)

    def remember(self, client: str, key: str, digest: bytes, at: float, verdict: bytes, most_bytes: int) -> None:
        self._answers.append((client, key, digest, at, verdict))
        while sum(len(answer[4]) for answer in self._answers if answer[0] == client) > most_bytes:
            self._answers.remove(next(answer for answer in self._answers if answer[0] == client))

    def quarantined(self, client: str | None = None, *, with_rows: bool = True) -> list[Quarantined]:
        return [part for part in self._quarantine if client in (None, part.client)]

    def quarantine(self, part: Quarantined) -> None:
        others = [one for one in self._quarantine if one.seq != part.seq]
        self._quarantine = sorted([*others, part], key=lambda one: one.seq)

    def drop_quarantined(self, parts: Sequence[Quarantined]) -> None:
        gone = {part.seq for part in parts}
        self._quarantine = [part for part in self._quarantine if part.seq not in gone]


class OneFileStore(Store):
    """Bytes are written as lists of numbers: slow, and easy to read."""

    def __init__(self, address: str) -> None:
        self.name = address.partition("://")[2]
        self._lock = os.open(self.name + ".lock", os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            transaction = OneFileTransaction(self.name, self._read())
            yield transaction
            self._write(transaction.content)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _read(self) -> dict[str, Any]:
        if not os.path.exists(self.name):
            return {**_EMPTY, "meta": {"store": uuid.uuid4().hex}}
        with open(self.name) as file:
            return dict(json.load(file, object_hook=lambda item: bytes(item["b"]) if "b" in item else item))

    def _write(self, content: dict[str, Any]) -> None:
        try:
            with open(self.name + ".new", "w") as file:
                json.dump(content, file, default=lambda value: {"b": list(value)})
                file.flush()
                os.fsync(file.fileno())
            os.replace(self.name + ".new", self.name)
        except OSError as error:
            raise StoreUnavailable(f"{self.name} could not be written ({error.strerror}).") from error

    def close(self) -> None:
        os.close(self._lock)


register_store("onefile", OneFileStore)
