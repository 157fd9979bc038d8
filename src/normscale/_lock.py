"""Let one process at a time work in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normscale.errors import FolderInUse


@contextmanager
def locked(folder: str | os.PathLike[str], *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is not there.

    The lock is the system's, on the file ``.lock``: it is gone when the process is, even by ``kill -9``.

    Parameters
    ----------
    folder : path
    wait : bool
        Wait until no other process holds it; False raises :class:`FolderInUse` instead.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / ".lock", "a+") as lock:
        try:
            import fcntl
        except ImportError:  # Windows: two processes would only do the work twice
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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
