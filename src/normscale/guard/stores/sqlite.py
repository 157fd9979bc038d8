"""The embedded store: one SQLite file, and a write-ahead log beside it that is flushed at every commit."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from normscale._lock import lock_file, unlock_file
from normscale.errors import FileFormatError, StoreHeld, StoreUnavailable
from normscale.guard.stores.sql import SqlStore

_CHECKPOINT_PAGES = 4000
"""16 MB of log before it is folded into the file: rarely enough not to be felt in the answers' times."""
_PATIENCE = 10.0
"""Seconds that a transaction waits for those of other processes ..."""
_PAUSE, _LONGEST_PAUSE = 0.0001, 0.002
"""... looking again after these."""
_ROOM = 1 << 16
"""Bytes that a group of rows may need besides two copies of the state."""
_LOST = (-1, -1)
"""No file is this one."""


class SqliteStore(SqlStore):
    """A file; several processes on one machine may share it."""

    byte_type = "BLOB"

    def __init__(self, path: str) -> None:
        self.name = path
        in_memory = path == ":memory:"
        folder = os.path.dirname(os.path.abspath(path))
        if not in_memory and not os.path.isdir(folder):
            raise StoreUnavailable(
                f"the folder {folder!r} of the store is not there; make it or choose another --store."
            )
        self._opened: tuple[int, int] | None = None
        # Writers of several processes wait at this lock: SQLite's own waits longer and longer, and lets some starve.
        self._lock = None if in_memory else os.open(path + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
            if not in_memory:
                os.chmod(path, 0o600)
            self.run("PRAGMA journal_mode = WAL")
            self.run("PRAGMA synchronous = FULL")  # the log is flushed at every commit, not now and then
            self.run("PRAGMA fullfsync = ON")  # macOS: down to the disk, not only to its cache
            self.run(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            self._opened = None if in_memory else self._on_disk()
            self.create()
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                self._explain(error)
            raise

    def begin(self) -> None:
        """Take the lock, then SQLite's own."""
        self._take_lock()
        try:
            self._require_same_file("nothing was taken in")
            self.run("BEGIN IMMEDIATE")
        except BaseException:
            self._release_lock()
            raise

    def commit(self) -> None:
        self.run("COMMIT")
        self._require_same_file("the rows of this moment were not taken in")
        self._release_lock()

    def rollback(self) -> None:
        """Undo what a failed transaction wrote; SQLite has often done so itself."""
        connection = self._connection
        try:
            if connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass
        finally:
            self._release_lock()

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        if self._connection is None:
            raise StoreUnavailable(f"the store {self.name!r} is closed.")
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self._explain(error)

    def close(self) -> None:
        """Close the file; its last closer folds the log in."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def require_room(self, n_bytes: int) -> None:
        """A few bytes may fit where a state does not."""
        if self._opened is None or not hasattr(os, "statvfs"):
            return
        disk = os.statvfs(self.name)
        free, wanted = disk.f_bavail * disk.f_frsize, 2 * n_bytes + _ROOM
        if free < wanted:
            raise StoreUnavailable(
                f"the disk of the store {self.name!r} has {free} bytes left, and rows need {wanted}. Make room on it.",
                full=True,
            )

    def _take_lock(self) -> None:
        if self._lock is None:
            return
        deadline, pause = time.monotonic() + _PATIENCE, _PAUSE
        while True:
            try:
                lock_file(self._lock, wait=False)  # on Windows nothing is done: SQLite's own lock serves
                os.lseek(self._lock, 0, os.SEEK_SET)
                os.write(self._lock, f"{os.getpid():<12}".encode())
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.lseek(self._lock, 0, os.SEEK_SET)
                    holder = os.read(self._lock, 12).decode(errors="replace").strip() or "unknown"
                    raise StoreHeld(
                        f"process {holder} has held the store {self.name!r} for {_PATIENCE:g} seconds; nothing was "
                        "taken in. Is it stopped? Let it go on (kill -CONT) or end it, and send the rows again."
                    ) from None
                time.sleep(pause)
                pause = min(2.0 * pause, _LONGEST_PAUSE)

    def _release_lock(self) -> None:
        if self._lock is not None:
            unlock_file(self._lock)

    def _on_disk(self) -> tuple[int, int] | None:
        """Which file stands under the store's name; None: none."""
        try:
            found = os.stat(self.name)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _require_same_file(self, outcome: str) -> None:
        if self._opened is not None and self._on_disk() != self._opened:
            self._opened = _LOST  # its log may be mixed with another file's by now: only a new start can tell
            raise StoreUnavailable(
                f"the store {self.name!r} was deleted, moved or replaced while it was open; {outcome}. Put the file "
                "back and restart the guard."
            )

    def _explain(self, error: sqlite3.Error) -> NoReturn:
        text = str(error)
        if "malformed" in text or "not a database" in text:
            raise FileFormatError(
                f"the store {self.name!r} is not a readable SQLite file ({text}); restore it from a copy or choose "
                "another --store."
            ) from error
        full = "full" in text or "I/O" in text
        advice = "Make room on its disk and send the rows again." if full else "Send the rows again."
        raise StoreUnavailable(
            f"the store could not be written ({text}); nothing was taken in. {advice}", full="full" in text
        ) from error
