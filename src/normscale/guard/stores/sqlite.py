"""The embedded store: one SQLite file, and a write-ahead log beside it that is flushed at every commit."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from normscale._lock import lock_file, unlock_file
from normscale.errors import FileFormatError, StoreHeld, StoreUnavailable
from normscale.guard.stores.store import Store

_CHECKPOINT_PAGES = 4000
"""16 MB of log before it is folded into the file: rarely enough not to be felt in the answers' times."""
_PATIENCE = 10.0  # seconds that a transaction waits for those of other processes
_PAUSE, _LONGEST_PAUSE = 0.0001, 0.002  # ... looking again after these
_ENDINGS = ("", "-wal", "-shm")
"""The files of a store: its tables, the log of what was committed since, and the index of that log."""
_WAL_HEADER, _FRAME_HEADER = 32, 24
"""Bytes of the log before its first frame, and of a frame before its page (sqlite.org/walformat.html)."""


class SqliteStore(Store):
    """A file; several processes on one machine may share it."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._in_memory = in_memory = path == ":memory:"
        folder = os.path.dirname(os.path.abspath(path))
        if not in_memory and not os.path.isdir(folder):
            raise StoreUnavailable(
                f"the folder {folder!r} of the store is not there; make it or choose another --store."
            )
        self._opened: tuple[tuple[int, int], ...] = ()
        self._log_size = 0
        self._lost = self._advice = ""
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
            self.run("SELECT 1 FROM sqlite_schema")  # opens the log; SQLite keeps it as long as it is open
            (self._page_size,) = self.run("PRAGMA page_size")[0]
            if not in_memory:
                self._opened, self._log_size = self._on_disk()
            self.create()
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                self._explain(error)
            raise

    def begin(self) -> None:
        self._require_open()  # before its files are looked at: closing removes two of them
        self._take_lock()
        try:
            self._require_same_files("nothing was taken in")
            self.run("BEGIN IMMEDIATE")
        except BaseException:
            self._release_lock()
            raise

    def commit(self) -> None:
        self.run("COMMIT")
        self._require_same_files("the rows of this moment were not taken in")
        self._release_lock()

    def rollback(self) -> None:
        connection = self._connection
        try:
            if connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass
        finally:
            self._release_lock()

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        connection = self._require_open()
        try:
            return connection.execute(statement, values).fetchall()
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

    def _require_open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable(f"the store {self.name!r} is closed.")
        return self._connection

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

    def _on_disk(self) -> tuple[tuple[tuple[int, int], ...], int]:
        """Which files stand under the store's names, and the size of its log; (0, 0) is a file that is not there."""
        found, size = [], 0
        for ending in _ENDINGS:
            try:
                status = os.stat(self.name + ending)
            except OSError:
                found.append((0, 0))
                continue
            found.append((status.st_dev, status.st_ino))
            size = status.st_size if ending == "-wal" else size
        return tuple(found), size

    def _require_same_files(self, outcome: str) -> None:
        """Raise where rows that are acknowledged now would not be there after a crash."""
        if self._in_memory:
            return
        files, size = self._on_disk()
        if not self._lost and files != self._opened:
            pairs = zip(_ENDINGS, files, self._opened, strict=True)
            (ending, now), *_ = [(ending, now) for ending, now, then in pairs if now != then]
            self._lost = f"the store's file {self.name + ending!r} was deleted, moved or replaced while it was open"
            self._advice = "Put the file back and restart the guard."
            if ending == "-wal" and now == (0, 0):
                self._save_log()
        elif not self._lost and size < self._log_size and self._frames_end() > size:
            self._lost = f"the store's file {self.name + '-wal'!r} was cut to {size} bytes while it was open"
            self._advice = "Acknowledged rows may be gone: restart the guard, or restore the store from a copy."
        self._log_size = size
        if self._lost:  # its files may be mixed with others by now: only a new start can tell
            raise StoreUnavailable(f"{self._lost}; {outcome}. {self._advice}")

    def _save_log(self) -> None:
        """Fold a log that lost its name into the tables: what was acknowledged so far survives a crash, too."""
        with suppress(StoreUnavailable, FileFormatError):
            self.run("PRAGMA wal_checkpoint(FULL)")
            self._advice = "What was acknowledged before is in the main file now: restart the guard."

    def _frames_end(self) -> int:
        """Where the last frame of the log ends; a frame that cannot be read counts as one beyond any end."""
        try:
            frames = int(self.run("PRAGMA wal_checkpoint(PASSIVE)")[0][1])
        except (StoreUnavailable, FileFormatError):
            return sys.maxsize
        return _WAL_HEADER + frames * (_FRAME_HEADER + self._page_size) if frames > 0 else 0

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
