"""Files that appear whole or not at all.

A reader never sees half a file, and a crash while writing leaves the old file as it was.
"""

from __future__ import annotations

import os
import platform
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[str]:
    """Give a temporary path beside ``path`` to write to; on success it takes the place of ``path``.

    The temporary file keeps the suffix and is flushed to disk before it is moved. When the body raises, it is
    removed and ``path`` is left untouched. A symbolic link is followed, so that the link survives; whatever
    is no regular file (``/dev/null``, a named pipe) is written to directly; replacing it would destroy it.

    Temporary files of ``path`` whose process was killed are removed first.
    """
    target = os.path.realpath(os.fspath(path))
    if os.path.exists(target) and not os.path.isfile(target):
        if os.path.isdir(target):
            raise IsADirectoryError(f"{os.fspath(path)} is a folder; give the name of a file.")
        yield target
        return
    folder, name = os.path.split(target)
    stem, suffix = os.path.splitext(name)
    temporary = os.path.join(folder, f".{stem[:100]}.{os.getpid()}-{_host()}-{os.urandom(4).hex()}.tmp{suffix}")
    _sweep(folder, stem[:100])
    try:
        # Made here, exclusively and under the umask: tempfile would make it readable by its owner alone.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:  # with the caller's path, not one that nobody knows
        raise type(error)(error.errno, f"cannot write: {error.strerror}", os.fspath(path)) from None
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _flush_to_disk(folder)  # the new name itself, so that it survives a power cut


def _sweep(folder: str, stem: str) -> None:
    """Remove temporary files that processes of this machine left behind when they were killed."""
    pattern = re.compile(rf"\.{re.escape(stem)}\.(\d+)-{_host()}-[0-9a-f]{{8}}\.tmp")
    with suppress(OSError):
        for name in os.listdir(folder):
            found = pattern.match(name)
            if found is not None and not _is_alive(int(found[1])):
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))


def _host() -> str:
    """What numbers of processes belong to: a machine, or a container in it; several may share a folder."""
    try:
        processes = os.readlink("/proc/self/ns/pid")
    except OSError:
        processes = ""
    return f"{zlib.crc32(f'{platform.node()} {processes}'.encode()):08x}"


def _is_alive(process: int) -> bool:
    if os.name == "nt":
        return True  # there os.kill ends a process; what is left behind stays
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's
    return True


def _flush_to_disk(path: str) -> None:
    """Call fsync on a file or folder, as far as the system can."""
    if os.name == "nt" and os.path.isdir(path):
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
