"""Bytes that come once, bytes that are compressed, and lines of text as they come."""

from __future__ import annotations

import gzip
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from normscale.rows.files import HEAD_BYTES, ByteSource

GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 22
_LONGEST_HEAD = 1 << 24  # bytes: a million columns


class OwningGzip(gzip.GzipFile):
    """A compressed stream that closes the one below, and writes neither name nor time into its head."""

    def __init__(self, below: IO[bytes], mode: str = "rb") -> None:
        super().__init__(filename="", mode=mode, fileobj=below, mtime=0)
        self._below = below

    def close(self) -> None:
        super().close()
        self._below.close()


class Pipe(ByteSource):
    """Bytes that come once: standard input, or a named pipe such as the shell's ``<(command)``.

    ``raw`` is closed with this source when it is ``owned``.
    """

    once = True

    def __init__(self, raw: IO[bytes], shown: str, *, owned: bool = False) -> None:
        super().__init__(shown, None)
        self._raw, self._owned = raw, owned
        self._ahead = b""
        self._kept: list[bytes] | None = None

    @classmethod
    def of_path(cls, path: str) -> Pipe:
        """Open ``-`` (standard input) or a path that is a pipe; what is compressed by gzip comes without it."""
        is_input = path == "-"
        raw = sys.stdin.buffer if is_input else open(path, "rb")  # noqa: SIM115 - closed with the pipe
        pipe = cls(raw, "standard input" if is_input else path, owned=not is_input)
        if pipe.head().startswith(GZIP):
            return cls(OwningGzip(pipe), pipe.shown, owned=True)  # type: ignore[arg-type]
        return pipe

    def open(self) -> Any:
        return self

    @contextmanager
    def peeking(self) -> Iterator[None]:
        self._kept = []
        yield
        self._ahead, self._kept = b"".join([*self._kept, self._ahead]), None

    def head(self) -> bytes:
        """The first bytes, left in place. Waits for a whole line or nine bytes, whichever comes first."""
        while len(self._ahead) < HEAD_BYTES and b"\n" not in self._ahead and (piece := self._some(1 << 16)):
            self._ahead += piece
        return self._ahead

    def spill(self) -> ByteSource:
        """Copy all to a temporary file, for formats that must be read from the end; it goes with the new source."""
        file = tempfile.NamedTemporaryFile(prefix="normscale-", suffix=".pipe")  # noqa: SIM115 - closed by the source
        try:
            shutil.copyfileobj(self, file, 1 << 20)
            file.flush()
        except BaseException:
            file.close()
            raise
        source = ByteSource(self.shown, lambda: open(file.name, "rb"), path=file.name)  # noqa: SIM115
        source.release = weakref.finalize(source, file.close)  # runs once: on close, or with the source's end
        return source

    def read1(self, size: int = -1) -> bytes:
        """What is there already, at most ``size`` bytes; waits only while nothing is."""
        if self._ahead:
            cut = len(self._ahead) if size < 0 else size
            piece, self._ahead = self._ahead[:cut], self._ahead[cut:]
        else:
            piece = self._some(1 << 16 if size < 0 else size)
        if self._kept is not None:
            self._kept.append(piece)
        return piece

    def read(self, size: int | None = -1) -> bytes:
        """Exactly ``size`` bytes unless the pipe ends before; all of them for -1."""
        pieces, missing = [], sys.maxsize if size is None or size < 0 else size
        while missing and (piece := self.read1(min(missing, 1 << 20))):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` unless the pipe ends before."""
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if self._owned:
            self._raw.close()

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it open: it cannot be opened again."""

    def _some(self, size: int) -> bytes:
        read1 = getattr(self._raw, "read1", self._raw.read)
        piece: bytes = read1(size)
        return piece


def first_line(read: Callable[[int], bytes]) -> tuple[bytes, bytes]:
    """Everything up to the end of the first line that is not blank, and what was read beyond it."""
    seen, start, searched = bytearray(), 0, 0
    while True:
        stop = seen.find(b"\n", searched) + 1
        if stop and seen[start:stop].strip():
            return bytes(seen[:stop]), bytes(seen[stop:])
        if stop:
            start = searched = stop
            continue
        searched = len(seen)
        piece = read(1 << 16)
        if not piece:
            return bytes(seen), b""
        seen += piece
        if b"\0" in piece or len(seen) > _LONGEST_HEAD:
            raise ValueError("it is not text, or its first line is too long")


class LineTooLong(ValueError):
    """A line has no end within the bytes that are allowed."""


def whole_lines(read: Callable[[int], bytes], longest: int | None = None) -> Iterator[bytes]:
    """Cut what ``read`` gives behind line breaks; one longer than ``longest`` bytes is :class:`LineTooLong`."""
    pieces: list[bytes] = []
    waiting = 0
    while piece := read(_BLOCK_BYTES):
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pieces, piece[:cut]])
            pieces, waiting = [], 0
        if cut < len(piece):
            pieces.append(piece[cut:])
            waiting += len(piece) - cut
            if longest is not None and waiting > longest:
                raise LineTooLong(f"is longer than {longest} bytes")
    if pieces:
        yield b"".join(pieces)
