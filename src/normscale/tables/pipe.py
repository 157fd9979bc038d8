"""Bytes that come once: standard input, or a named pipe such as the shell's ``<(command)``."""

from __future__ import annotations

import io
import os
import sys
from typing import IO, Any, cast

from normscale.errors import FileFormatError, InvalidInput

_HEAD = 9  # what format_by_content needs


class PipeSource(io.BufferedIOBase):
    """A stream that can be looked at before it is read, and read once."""

    def __init__(self, raw: IO[bytes], shown: str, *, owned: bool) -> None:
        """Wrap ``raw``, which is closed with this source when it is ``owned``."""
        self._raw = raw
        self._owned = owned
        self._ahead = b""
        self._started = False
        self.shown = shown

    @classmethod
    def open(cls, path: str) -> PipeSource:
        """Open ``-`` (standard input) or a path that is a pipe."""
        if path == "-":
            return cls(sys.stdin.buffer, "standard input", owned=False)
        return cls(open(path, "rb"), path, owned=True)

    def head(self) -> bytes:
        """The first bytes, left in place. Waits for a whole line or nine bytes, whichever comes first."""
        while len(self._ahead) < _HEAD and b"\n" not in self._ahead:
            piece = self._some(1 << 16)
            if not piece:
                break
            self._ahead += piece
        return self._ahead

    def decompressed(self) -> PipeSource:
        """The same stream without its compression by gzip."""
        import gzip

        return PipeSource(cast("IO[bytes]", gzip.GzipFile(fileobj=self)), self.shown, owned=True)

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
        super().close()

    def _some(self, size: int) -> bytes:
        read1 = getattr(self._raw, "read1", self._raw.read)
        piece: bytes = read1(size)
        return piece
