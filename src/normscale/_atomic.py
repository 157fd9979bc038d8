"""Files that appear whole or not at all.

A reader never sees half a file, and a crash while writing leaves the old file as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[str]:
    """Give a temporary path beside ``path`` to write to; on success it takes the place of ``path``.

    The temporary file keeps the suffix and is flushed to disk before it is moved. When the body raises, it is
    removed and ``path`` is left untouched. A symbolic link is followed, so that the link survives; whatever
    is no regular file (``/dev/null``, a named pipe) is written to directly; replacing it would destroy it.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with atomic_path(os.path.join(folder, "a.txt")) as temporary:
    ...     with open(temporary, "w") as file:
    ...         _ = file.write("whole")
    >>> os.listdir(folder)
    ['a.txt']
    """
    target = os.path.realpath(os.fspath(path))
    if os.path.exists(target) and not os.path.isfile(target):
        if os.path.isdir(target):
            raise IsADirectoryError(f"{os.fspath(path)} is a folder; give the name of a file.")
        yield target
        return
    folder, name = os.path.split(target)
    stem, suffix = os.path.splitext(name)
    temporary = os.path.join(folder, f".{stem[:100]}.{os.getpid()}-{os.urandom(4).hex()}.tmp{suffix}")
    # Made here, exclusively and under the umask: tempfile would make it readable by its owner alone.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _flush_to_disk(folder)  # the new name itself, so that it survives a power cut


def _flush_to_disk(path: str) -> None:
    """Call fsync on a file or folder, as far as the system can."""
    if os.name == "nt" and os.path.isdir(path):
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
