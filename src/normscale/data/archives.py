"""Tar and zip archives from elsewhere, read member by member; what a member may not do is refused.

An archive may not lead out of its folder, hold links or devices, grow beyond all measure, or have more members than a
data set could need. The first offence ends the reading with a sentence.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from normscale.errors import FileFormatError

_MAX_PADDING = 1 << 20  # tar archives end with zeros, usually up to 10 kB


@dataclass(frozen=True)
class Limits:
    """How large an archive may become."""

    total_bytes: int = 40 << 30
    members: int = 400_000
    ratio: int = 100  # bytes unpacked for each byte of the archive ...
    free_bytes: int = 10 << 20  # ... beyond so many, which anyone can afford


@dataclass(frozen=True)
class Member:
    """A regular file in an archive; ``read`` gives its bytes and works until the next member is asked for."""

    name: str
    size: int
    _archive: Path
    _stream: IO[bytes]

    def read(self) -> bytes:
        """All bytes of the member."""
        with _damage_explained(self._archive):
            data = self._stream.read(self.size + 1)
            self._check_size(len(data))
        return data

    def copy_to(self, path: Path) -> None:
        """Write the member to a new file; an existing one, or a link in its place, is refused."""
        with open(path, "xb") as file, _damage_explained(self._archive):
            shutil.copyfileobj(self._stream, file, 1 << 20)
            self._check_size(file.tell())

    def _check_size(self, size: int) -> None:
        if size != self.size:
            raise EOFError(f"member {self.name!r} has {size} bytes instead of {self.size}")


class _Guard:
    """Keeps count over the members of one archive and refuses the first that breaks a rule."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._archive_bytes = path.stat().st_size
        self._members = self._bytes = 0

    def check(self, name: str, size: int, *, special: str = "") -> None:
        """Raise unless the member is a harmless regular file or folder."""
        limits = self._limits
        parts = re.split(r"[/\\]", name)
        if special:
            self._refuse(f"member {name!r} is {special}; only files and folders are taken")
        if not name or "\0" in name:
            self._refuse(f"member {name!r} has no usable name")
        if name[0] in "/\\" or re.match(r"[A-Za-z]:", name) or ".." in parts:
            self._refuse(f"member {name!r} would leave the folder it is unpacked to")
        self._members += 1
        self._bytes += size
        if self._members > limits.members:
            self._refuse(f"it has more than {limits.members} members")
        if self._bytes > limits.total_bytes:
            self._refuse(f"it unpacks to more than {limits.total_bytes} bytes")
        if self._bytes > limits.free_bytes + limits.ratio * self._archive_bytes:
            self._refuse(f"its {self._archive_bytes} bytes unpack to over {limits.ratio} times as many (a bomb?)")

    def _refuse(self, why: str) -> None:
        raise FileFormatError(f"{self._path} is refused: {why}. Fetch it again from its official source.")


def members(path: str | os.PathLike[str], limits: Limits | None = None) -> Iterator[Member]:
    """The files of a tar (plain, gzip, bzip2, xz) or zip archive in their order, each checked before it is given.

    Raises
    ------
    FileFormatError
        The archive is damaged, or a member breaks a rule.
    """
    path = Path(path)
    guard = _Guard(path, limits or Limits())
    with _damage_explained(path):
        if zipfile.is_zipfile(path):
            yield from _zip_members(path, guard)
        else:
            yield from _tar_members(path, guard)


def unpack(path: str | os.PathLike[str], folder: str | os.PathLike[str], limits: Limits | None = None) -> list[Path]:
    """Unpack an archive into a new ``folder``, which appears whole or not at all; returns the files."""
    folder = Path(folder)
    if folder.exists():
        raise FileFormatError(f"{folder} is there already; unpack to a new folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(f".{folder.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    work.mkdir()
    names: list[Path] = []
    try:
        for member in members(path, limits):
            name = Path(*re.split(r"[/\\]+", member.name))
            try:
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                member.copy_to(work / name)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                raise FileFormatError(f"{path} is refused: member {member.name!r} appears twice.") from None
            names.append(name)
        os.rename(work, folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return [folder / name for name in names]


@contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    """Turn what the two libraries say about a broken archive into one sentence."""
    try:
        yield
    except FileFormatError:
        raise
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        raise FileFormatError(f"{path} is damaged or no archive ({error}). Delete it and fetch it again.") from error
    except OSError as error:
        if error.errno is not None:  # of the file system, not of the format
            raise
        raise FileFormatError(f"{path} is damaged ({error}). Delete it and fetch it again.") from error


def _tar_members(path: Path, guard: _Guard) -> Iterator[Member]:
    # Python's modules for the compressions verify their checksums, which tarfile's own "r|gz" does not
    with _decompressed(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for info in archive:
            special = ""
            if info.issym() or info.islnk():
                special = f"a link to {info.linkname!r}"
            elif not (info.isreg() or info.isdir()):
                special = "a device or pipe"
            guard.check(info.name, info.size, special=special)
            if info.isreg():
                content = archive.extractfile(info)
                assert content is not None
                yield Member(info.name, info.size, path, content)
        if len(stream.read(_MAX_PADDING + 1)) > _MAX_PADDING:  # to the end, where the checksum is
            raise tarfile.ReadError("there is more after its end")


def _decompressed(path: Path) -> IO[bytes]:
    """The tar archive inside a file, whatever it is compressed with."""
    with open(path, "rb") as file:
        magic = file.read(6)
    if magic.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(path))
    if magic.startswith(b"BZh"):
        return cast(IO[bytes], bz2.open(path))
    if magic == b"\xfd7zXZ\x00":
        return cast(IO[bytes], lzma.open(path))
    return open(path, "rb")


def _zip_members(path: Path, guard: _Guard) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            special = ""
            if kind == stat.S_IFLNK:
                special = "a link"
            elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                special = "a device or pipe"
            guard.check(info.filename, info.file_size, special=special)
            if not info.is_dir():
                with archive.open(info) as stream:
                    yield Member(info.filename, info.file_size, path, stream)
