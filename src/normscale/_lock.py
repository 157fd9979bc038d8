"""The system's lock on a file: one process at a time, and gone with the process, even by ``kill -9``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normscale.errors import FolderInUse

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def lock_file(handle: int, *, wait: bool = True) -> None:
    """Hold the lock of an open file until :func:`unlock_file`, or until the file is closed.

    On Windows there is no such lock and nothing is done: callers must not need it for the work to be right. Where
    another process holds it, wait, or raise ``BlockingIOError``.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def unlock_file(handle: int) -> None:
    """Let another process have the lock."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_UN)


@contextmanager
def locked(folder: str | os.PathLike[str], *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is not there; the lock is on the file ``.lock`` in it.

    Where another process holds it, wait, or raise :class:`FolderInUse`.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / ".lock", "a+") as lock:
        try:
            lock_file(lock.fileno(), wait=wait)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise FolderInUse(
                f"{os.fspath(folder)} is being worked on by another process (id {holder}). "
                "Wait for it, or end it: what it has finished stays."
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
