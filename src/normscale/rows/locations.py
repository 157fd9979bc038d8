"""Where files are: on this machine, or in an object store that pyarrow knows; files, folders and globs, in order.

A path with a scheme (``s3://``, ``gs://``, ``hdfs://``, ...) belongs to pyarrow's file systems; what follows a question
mark in it are that file system's options, such as ``?endpoint_override=localhost:9000&scheme=http``.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from normscale.errors import FileFormatError, InvalidInput
from normscale.rows.arrow import need_arrow
from normscale.rows.format import known_suffixes, names_a_table
from normscale.rows.opening import check_file
from normscale.rows.source import is_remote as is_remote


class SourceFile(NamedTuple):
    """A file as it was when a job was planned."""

    path: str
    size: int
    stamp: int
    """When it was last changed, in nanoseconds."""

    def check(self) -> None:
        """Raise where the file is not the one that the job was planned with."""
        now = _described(self.path)
        if now != self:
            what = "is gone" if now is None else "has changed"
            everywhere = " On a cluster every machine must see it under this name." if now is None else ""
            raise FileFormatError(
                f"{self.path} {what} since this job was planned; its rows would belong to another job. Put the file "
                f"back, or start again with another output folder.{everywhere}"
            )


def names_many(path: str) -> bool:
    """Whether a path is a folder, a glob or in an object store; a file with such a name is a file.

    Examples
    --------
    >>> names_many("parts/*.parquet"), names_many("logits.npz"), names_many("-")
    (True, False, False)
    """
    return is_remote(path) or os.path.isdir(path) or (glob.has_magic(path) and not os.path.exists(path))


def file_system(path: str) -> tuple[Any, str]:
    """The pyarrow file system of a path with a scheme, and the path inside it."""
    fs = need_arrow("pyarrow.fs", path)
    if "@" in path.partition("://")[2].partition("/")[0]:  # plans and messages name paths
        raise InvalidInput("keys do not belong into a path; set AWS_ACCESS_KEY_ID and the like instead.")
    try:
        system, inside = fs.FileSystem.from_uri(path)
    except (OSError, ValueError) as error:
        raise FileFormatError(f"cannot open {path}: {error}.") from error
    return system, inside


def find_files(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], suffixes: Collection[str] | None = None
) -> list[SourceFile]:
    """The files that paths name, in a defined order.

    Parameters
    ----------
    paths : path, or several
        Files, folders (with all files below them; names that begin with ``.`` or ``_`` are left out) and globs.
    suffixes : collection of str, optional
        How names of files in folders and globs end; by default as names of tables.

    Returns
    -------
    list of SourceFile
        In the order of ``paths``; within a folder or a glob in the order of their names. Paths of this machine are
        absolute: workers of a cluster run in folders of their own.

    Raises
    ------
    FileFormatError
        When a path names no such file.
    InvalidInput
        When a file is named twice.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found: list[SourceFile] = []
    for path in (os.fspath(path) for path in given):
        found += _remote_files(path, suffixes) if is_remote(path) else _local_files(path, suffixes)
    seen: set[str] = set()
    for file in found:
        if file.path in seen:
            raise InvalidInput(f"{file.path} is named twice; its rows would count twice. Leave it out once.")
        seen.add(file.path)
    if not found:
        raise InvalidInput("no tables were given; name at least one file, folder or glob.")
    return found


def _local_files(path: str, suffixes: Collection[str] | None) -> list[SourceFile]:
    if os.path.isdir(path):
        inside = [
            os.path.join(folder, name)
            for folder, folders, names in os.walk(path)
            if _keep_visible(folders)
            for name in names
        ]
        return _existing(path, [name for name in inside if _is_wanted(name, suffixes)], suffixes)
    if glob.has_magic(path) and not os.path.exists(path):
        matching = glob.glob(path, recursive=True)
        return _existing(path, [name for name in matching if _is_wanted(name, suffixes)], suffixes)
    check_file(path)
    return _existing(path, [path], suffixes)


def _keep_visible(folders: list[str]) -> bool:
    folders[:] = [name for name in folders if not name.startswith((".", "_"))]
    return True


def _remote_files(path: str, suffixes: Collection[str] | None) -> list[SourceFile]:
    fs = need_arrow("pyarrow.fs", path)
    location, mark, options = path.partition("?")
    scheme = location[: location.index("://") + 3]
    magic = re.search(r"[*\[]", location)
    start = location if magic is None else location[: location.rindex("/", 0, magic.start()) + 1]
    system, inside = file_system(start + mark + options)
    try:
        info = system.get_file_info(inside.rstrip("/"))
        if info.type == fs.FileType.File:
            return [_remote(path, info)]
        listed = system.get_file_info(fs.FileSelector(inside.rstrip("/"), recursive=True, allow_not_found=True))
    except OSError as error:
        raise FileFormatError(f"cannot list {path}: {error}.") from error
    pattern = None if magic is None else inside.rstrip("/") + "/" + location[len(start) :]
    kept = []
    for entry in listed:
        below = entry.path[len(inside.rstrip("/")) + 1 :]
        hidden = any(part.startswith((".", "_")) for part in below.split("/"))
        if entry.type != fs.FileType.File or hidden or not _is_wanted(entry.base_name, suffixes):
            continue
        if pattern is None or fnmatch.fnmatchcase(entry.path, pattern):
            kept.append(_remote(scheme + entry.path + mark + options, entry))
    return sorted(_some(path, kept, suffixes))


def _existing(path: str, names: Sequence[str], suffixes: Collection[str] | None) -> list[SourceFile]:
    described = [_described(os.path.abspath(name)) for name in sorted(names)]
    return _some(path, [file for file in described if file is not None], suffixes)


def _some(path: str, files: list[SourceFile], suffixes: Collection[str] | None) -> list[SourceFile]:
    if not files:
        location = path.partition("?")[0] if is_remote(path) else path
        what = "matches" if glob.has_magic(location) else "holds"
        raise FileFormatError(
            f"{path} {what} no {'table' if suffixes is None else 'picture'}; expected files that end in "
            f"{', '.join(known_suffixes() if suffixes is None else suffixes)}, and names that do not begin with . or _."
        )
    return files


def _is_wanted(path: str, suffixes: Collection[str] | None) -> bool:
    name = os.path.basename(path)
    known = names_a_table(name) if suffixes is None else os.path.splitext(name)[1].lower() in suffixes
    return known and not name.startswith((".", "_"))


def _remote(path: str, info: Any) -> SourceFile:
    return SourceFile(path, int(info.size), int(info.mtime_ns or 0))


def _described(path: str) -> SourceFile | None:
    if not is_remote(path):
        try:
            status = os.stat(path)
        except OSError:
            return None
        return SourceFile(path, status.st_size, status.st_mtime_ns)
    system, inside = file_system(path)
    info = system.get_file_info(inside)
    return None if info.size is None else _remote(path, info)
