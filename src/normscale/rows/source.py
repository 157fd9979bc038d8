"""Where the bytes of a table come from: a file here or in an object store, a pipe, the body of a request."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from normscale.errors import FileFormatError, InvalidInput

Opener = Callable[[], io.BufferedReader]
GZIP = b"\x1f\x8b"
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_HEAD = 9  # what format_of_content needs
_BLOCK_BYTES = 1 << 22
_LONGEST_HEAD = 1 << 24  # bytes: a million columns


def is_remote(path: str) -> bool:
    """Whether a path is one of an object store.

    Examples
    --------
    >>> is_remote("s3://bucket/logits/"), is_remote("logits/*.parquet")
    (True, False)
    """
    return _SCHEME.match(path) is not None


class ByteSource:
    """Bytes that can be opened again and again; :class:`Pipe` is one that cannot."""

    once = False
    """Whether it can be read once only."""
    release: Callable[[], object] | None = None
    """Called by :meth:`close`."""

    def __init__(
        self, shown: str, opener: Callable[[], io.BufferedReader] | None = None, path: str | None = None
    ) -> None:
        """Open by ``opener``; ``path`` is that of a file on this machine, ``shown`` what messages call it."""
        self.shown = shown
        self.path = path
        self._opener = opener

    @classmethod
    def of_file(cls, path: str, shown: str | None = None) -> ByteSource:
        """A file of this machine."""
        return cls(path if shown is None else shown, lambda: open(path, "rb"), path)

    @classmethod
    def of_bytes(cls, data: bytes, shown: str) -> ByteSource:
        """Bytes in memory."""
        return cls(shown, lambda: cast("io.BufferedReader", io.BytesIO(data)))

    @classmethod
    def of_store(cls, path: str) -> ByteSource:
        """A file in an object store; text and arrays are read on as they come, Parquet where its columns are."""
        from normscale.rows.locations import file_system

        system, inside = file_system(path)
        return cls(path, lambda: cast("io.BufferedReader", system.open_input_file(inside)))

    def open(self) -> io.BufferedReader:
        """The bytes from the first on."""
        assert self._opener is not None
        return self._opener()

    def open_lines(self) -> io.BufferedIOBase:
        """The bytes of a text, decompressed if they are compressed."""
        stream = self.open()
        is_compressed = stream.read(2) == GZIP
        stream.seek(0)
        if is_compressed:
            return cast("io.BufferedIOBase", _Owner(stream))
        return cast("io.BufferedIOBase", stream)

    def head(self) -> bytes | None:
        """The first bytes, or None where they cannot be read."""
        try:
            with self.open() as stream:
                return stream.read(_HEAD)
        except OSError:
            return None

    def close(self) -> None:
        """Let go of it; only a pipe, and the temporary file of one, hold anything."""
        if self.release is not None:
            self.release()


class _Owner(gzip.GzipFile):
    """A compressed stream that closes the one below, and writes neither name nor time into its head."""

    def __init__(self, below: IO[bytes], mode: str = "rb") -> None:
        super().__init__(filename="", mode=mode, fileobj=below, mtime=0)
        self._below = below

    def close(self) -> None:
        super().close()
        self._below.close()


def create_text(path: str, *, named: str) -> IO[str]:
    """A new text file, compressed if it will be ``named`` so; the same rows always give the same bytes."""
    if not named.lower().endswith(".gz"):
        return open(path, "w", encoding="utf-8", newline="")
    return io.TextIOWrapper(_Owner(open(path, "wb"), "wb"), encoding="utf-8", newline="")


class Pipe(ByteSource, io.BufferedIOBase):
    """Bytes that come once: standard input, or a named pipe such as the shell's ``<(command)``.

    It can be looked at before it is read.
    """

    once = True

    def __init__(self, raw: IO[bytes], shown: str, *, owned: bool = False) -> None:
        """Wrap ``raw``, which is closed with this source when it is ``owned``."""
        super().__init__(shown)
        self._raw = raw
        self._owned = owned
        self._ahead = b""
        self._started = False

    @classmethod
    def of_path(cls, path: str) -> Pipe:
        """Open ``-`` (standard input) or a path that is a pipe."""
        if path == "-":
            return cls(sys.stdin.buffer, "standard input")
        return cls(open(path, "rb"), path, owned=True)

    def open(self) -> io.BufferedReader:
        """The pipe itself."""
        return cast("io.BufferedReader", self)

    def open_lines(self) -> io.BufferedIOBase:
        """The pipe itself."""
        return self

    def head(self) -> bytes:
        """The first bytes, left in place. Waits for a whole line or nine bytes, whichever comes first."""
        while len(self._ahead) < _HEAD and b"\n" not in self._ahead:
            piece = self._some(1 << 16)
            if not piece:
                break
            self._ahead += piece
        return self._ahead

    def decompressed(self) -> Pipe:
        """The same stream without its compression by gzip."""
        return Pipe(cast("io.BufferedReader", _Owner(cast("io.BufferedReader", self))), self.shown, owned=True)

    def start(self) -> None:
        """Note that the rows are being read, which can be done once."""
        if self._started:
            raise InvalidInput(f"{self.shown} is a pipe and can be read only once; save it to a file to read it again.")
        self._started = True

    def damaged(self, expected: str, reason: str) -> FileFormatError:
        """The error for a pipe that broke off or carries something else."""
        return FileFormatError(
            f"{self.shown} is not a whole .{expected} stream: {reason.strip().rstrip('.')}. "
            "Did the program that writes it fail?"
        )

    def spill(self) -> str:
        """Copy all to a temporary file, for formats that must be read from the end; the caller removes it."""
        import shutil
        import tempfile

        handle, path = tempfile.mkstemp(prefix="normscale-", suffix=".pipe")
        try:
            with os.fdopen(handle, "wb") as file:
                shutil.copyfileobj(self, file, 1 << 20)
        except BaseException:
            os.unlink(path)
            raise
        return path

    def readable(self) -> bool:
        """Return True."""
        return True

    def read1(self, size: int = -1) -> bytes:
        """What is there already, at most ``size`` bytes; waits only while nothing is."""
        if self._ahead:
            cut = len(self._ahead) if size < 0 else size
            piece, self._ahead = self._ahead[:cut], self._ahead[cut:]
            return piece
        return self._some(1 << 16 if size < 0 else size)

    def read(self, size: int | None = -1) -> bytes:
        """Exactly ``size`` bytes unless the pipe ends before; all of them for -1."""
        pieces, missing = [], sys.maxsize if size is None or size < 0 else size
        while missing:
            piece = self.read1(min(missing, 1 << 20))
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        """Put what is there already into ``buffer``."""
        piece = self.read1(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Close the pipe, unless it is standard input."""
        if self._owned:
            self._raw.close()
        io.BufferedIOBase.close(self)

    def _some(self, size: int) -> bytes:
        read1 = getattr(self._raw, "read1", self._raw.read)
        piece: bytes = read1(size)
        return piece


def first_line(stream: io.BufferedIOBase) -> tuple[bytes, bytes]:
    """Everything up to the end of the first line that is not blank, and what was read beyond it."""
    read1 = getattr(stream, "read1", stream.read)
    seen, start, searched = bytearray(), 0, 0
    while True:
        stop = seen.find(b"\n", searched) + 1
        if stop and seen[start:stop].strip():
            return bytes(seen[:stop]), bytes(seen[stop:])
        if stop:
            start = searched = stop
            continue
        searched = len(seen)
        piece = read1(1 << 16)
        if not piece:
            return bytes(seen), b""
        seen += piece
        if b"\0" in piece or len(seen) > _LONGEST_HEAD:
            raise ValueError("it is not text, or its first line is too long")


class LineTooLong(ValueError):
    """A line has no end within the bytes that are allowed."""


def whole_lines(ahead: bytes, read: Callable[[int], bytes], longest: int | None = None) -> Iterator[bytes]:
    """Cut what ``read`` gives behind line breaks; one longer than ``longest`` bytes is :class:`LineTooLong`."""
    pieces: list[bytes] = []
    waiting = 0
    piece = ahead or read(_BLOCK_BYTES)
    while piece:
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pieces, piece[:cut]])
            pieces, waiting = [], 0
        if cut < len(piece):
            pieces.append(piece[cut:])
            waiting += len(piece) - cut
            if longest is not None and waiting > longest:
                raise LineTooLong(f"is longer than {longest} bytes")
        piece = read(_BLOCK_BYTES)
    if pieces:
        yield b"".join(pieces)
