"""numpy's .npy: one array with a short header, as a file, a zip member or a pipe."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy_format

from normscale.errors import FileFormatError
from normscale.tables.arrays import check_shapes, native
from normscale.tables.pipe import PipeSource
from normscale.tables.reader import Block, TableReader

_BUFFER = 1 << 20
_LONGEST_HEADER = 10_000  # as numpy allows


class ByteStream(Protocol):
    """What a file, a zip member and a pipe have in common."""

    def read(self, size: int = -1, /) -> bytes:
        """Exactly ``size`` bytes unless the stream ends before."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer`` from its start as far as bytes are there; 0 at the end."""


class NpyHeader:
    """Shape, order and dtype of an array, read from the stream that it heads.

    Nothing is unpickled: an array of Python objects has no dtype of numbers and is refused by its dtype.
    """

    __slots__ = ("dtype", "fortran_order", "row_bytes", "shape")

    def __init__(self, stream: ByteStream) -> None:
        """Take the header off the stream, which is left at the first number."""
        version = npy_format.read_magic(stream)
        if version == (1, 0):
            read, size = npy_format.read_array_header_1_0, 2
        elif version == (2, 0):
            read, size = npy_format.read_array_header_2_0, 4
        else:
            raise ValueError(f"version {version[0]}.{version[1]} of the .npy format is not for plain numbers")
        text = _header_text(stream, size)
        try:
            self.shape, self.fortran_order, self.dtype = read(text)
        except Exception as error:  # numpy hands the text to Python's tokenizer, which has errors of its own
            raise ValueError(f"its header cannot be read ({error})") from error
        if any(length < 0 for length in self.shape):
            raise ValueError(f"its header says shape {self.shape}")
        self.row_bytes = self.dtype.itemsize
        for length in self.shape[1:]:
            self.row_bytes *= length

    @property
    def n_bytes(self) -> int:
        """Bytes of all numbers."""
        return self.row_bytes * self.shape[0] if self.shape else self.row_bytes


def _header_text(stream: ByteStream, size: int) -> io.BytesIO:
    """A header, and the ``size`` bytes before it that tell its length; numpy would read any length before refusing."""
    told = stream.read(size)
    length = int.from_bytes(told, "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header says it is {length} bytes long, and {_LONGEST_HEADER} are allowed")
    text = stream.read(length)
    if len(told) < size or len(text) < length:
        raise ValueError("it ends within its header")
    return io.BytesIO(told + text)


class NpyStream:
    """The rows of an array, taken from a stream that cannot go back.

    An array in Fortran order holds columns, not rows, one after the other: it is copied to a temporary file
    first, for its first row ends only where the array does.
    """

    def __init__(self, stream: ByteStream, header: NpyHeader) -> None:
        """Read on from the end of the header."""
        self._stream = stream
        self._header = header
        self._row = 0
        self._mapped: np.ndarray[Any, np.dtype[Any]] | None = None

    def rows(self, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        """The next ``count`` rows, which must be there."""
        header = self._header
        start, self._row = self._row, self._row + count
        if header.fortran_order and len(header.shape) > 1 and header.n_bytes:
            if self._mapped is None:
                self._mapped = self._spilled()
            return native(np.ascontiguousarray(self._mapped[start : self._row]))
        array = np.empty((count, *header.shape[1:]), header.dtype)
        fill(self._stream, array)
        return native(array)

    def finish(self) -> None:
        """Check that nothing follows."""
        if self._stream.read(1):
            raise ValueError("more bytes follow than its header says")

    def _spilled(self) -> np.ndarray[Any, np.dtype[Any]]:
        import tempfile

        with tempfile.TemporaryFile() as file:
            missing = self._header.n_bytes
            while missing:
                piece = self._stream.read(min(_BUFFER, missing))
                if not piece:
                    raise EOFError(f"it ends {missing} bytes too early")
                file.write(piece)
                missing -= len(piece)
            return np.memmap(file, self._header.dtype, "r", shape=self._header.shape, order="F")


def fill(stream: ByteStream, array: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Fill a contiguous array with the next bytes of a stream."""
    if not array.size:
        return
    space = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    done = 0
    while done < len(space):
        got = stream.readinto(space[done:])
        if not got:
            raise EOFError(f"it ends {len(space) - done} bytes too early")
        done += got


class NpyReader(TableReader):
    """A matrix of logits, mapped into memory piece by piece so that the numbers are not copied."""

    format = "npy"

    def _read_head(self) -> None:
        with open(self._file, "rb") as file:
            header = NpyHeader(file)
            self._offset = file.tell()
            size = os.fstat(file.fileno()).st_size
        check_shapes(self.path, {"logits": header.shape}, {"logits": header.dtype})
        if size != self._offset + header.n_bytes:
            raise ValueError(f"its header says {header.n_bytes} bytes of numbers, but there are {size - self._offset}")
        self._header = header
        self._dtype = header.dtype.newbyteorder("=")
        self.n_rows, self.n_classes = header.shape

    def _blocks(self) -> Iterator[Block]:
        header, n_rows = self._header, self.n_rows or 0
        for start in range(0, n_rows, self.chunk_rows):
            stop = min(start + self.chunk_rows, n_rows)
            # One short mapping per chunk keeps resident memory bounded. Mode "c" gives arrays that may be
            # written to without touching the file: read-only arrays are another type to compiled kernels.
            if header.fortran_order:
                whole = np.memmap(self._file, header.dtype, "r", self._offset, header.shape, order="F")
                yield native(np.ascontiguousarray(whole[start:stop])), None, None
            else:
                offset = self._offset + start * header.row_bytes
                shape = (stop - start, header.shape[1])
                yield native(np.asarray(np.memmap(self._file, header.dtype, "c", offset, shape))), None, None


class NpyPipeReader(TableReader):
    """A matrix of logits that comes through a pipe."""

    format = "npy"

    def __init__(self, source: PipeSource, chunk_rows: int | None, *, shown: str) -> None:
        """Read the header off the pipe; the rows stay in it until they are asked for."""
        self._source = source
        super().__init__(shown, chunk_rows)
        self.release = source.close

    def _read_head(self) -> None:
        self._header = NpyHeader(self._source)
        check_shapes(self.path, {"logits": self._header.shape}, {"logits": self._header.dtype})
        self._dtype = self._header.dtype.newbyteorder("=")
        self.n_rows, self.n_classes = self._header.shape

    def _blocks(self) -> Iterator[Block]:
        self._source.start()
        stream = NpyStream(self._source, self._header)
        n_rows = self._header.shape[0]
        for start in range(0, n_rows, self.chunk_rows):
            yield stream.rows(min(self.chunk_rows, n_rows - start)), None, None
        stream.finish()

    def _damaged(self, reason: str) -> FileFormatError:
        return self._source.damaged(self.format, reason)
