"""A guard's store in one file that every transaction writes anew: ``onefile://PATH``."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Sequence
from typing import Any

from normscale.errors import StoreUnavailable
from normscale.guard.stores import Store, register_store


class OneFileStore(Store):
    """A database in memory between the beginning and the end of a transaction."""

    def __init__(self, address: str) -> None:
        self.name = address.partition("://")[2]
        self._lock = os.open(self.name + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.create()

    def begin(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if os.path.exists(self.name):
            with open(self.name, "rb") as file:
                self._database.deserialize(file.read())
        self._database.execute("BEGIN")

    def commit(self) -> None:
        self._database.execute("COMMIT")
        try:
            with open(self.name + ".new", "wb") as file:
                file.write(self._database.serialize())
                file.flush()
                os.fsync(file.fileno())
            os.replace(self.name + ".new", self.name)
        except OSError as error:
            raise StoreUnavailable(f"{self.name} could not be written ({error.strerror}).") from error
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def rollback(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._database.execute(statement, values).fetchall()

    def close(self) -> None:
        self._database.close()
        os.close(self._lock)


register_store("onefile", OneFileStore)
