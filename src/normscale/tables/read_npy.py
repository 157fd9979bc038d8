"""numpy's .npy: one array with a short header, as a file, a zip member or a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from normscale.encoding.npy_header import ByteStream, NpyHeader, NpyHoldsRecords, take_npy_header
from normscale.errors import FileFormatError
from normscale.outputs import LOGITS
from normscale.tables.arrays import Stored, check_array, native
from normscale.tables.pipe import PipeSource
from normscale.tables.reader import Block, TableReader

_BUFFER = 1 << 20


def stored_as(stream: ByteStream) -> NpyHeader:
    """Take a header off a stream; an array of records or dates counts as one of raw bytes, which are no numbers."""
    try:
        return take_npy_header(stream)
    except NpyHoldsRecords:
        return NpyHeader(np.dtype("V"), False, (), 0)


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
    """Fill a contiguous array, in the order its numbers lie in memory, with the next bytes of a stream."""
    if not array.size:
        return
    space = memoryview(array.ravel(order="K").view(np.uint8))  # type: ignore[arg-type]
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
            header = stored_as(file)
            self._offset = file.tell()
            size = os.fstat(file.fileno()).st_size
        _check_logits(self.path, header)
        if size != self._offset + header.n_bytes:
            raise ValueError(f"its header says {header.n_bytes} bytes of numbers, but there are {size - self._offset}")
        self._header = header
        self._dtypes[LOGITS] = header.dtype.newbyteorder("=")
        self.n_rows, self.widths[LOGITS] = header.shape

    def _blocks(self) -> Iterator[Block]:
        header, n_rows = self._header, self.n_rows or 0
        for start in range(0, n_rows, self.chunk_rows):
            stop = min(start + self.chunk_rows, n_rows)
            # One short mapping per chunk keeps resident memory bounded. Mode "c" gives arrays that may be
            # written to without touching the file: read-only arrays are another type to compiled kernels.
            if header.fortran_order:
                whole = np.memmap(self._file, header.dtype, "r", self._offset, header.shape, order="F")
                yield {LOGITS: native(np.ascontiguousarray(whole[start:stop]))}
            else:
                offset = self._offset + start * header.row_bytes
                shape = (stop - start, header.shape[1])
                yield {LOGITS: native(np.asarray(np.memmap(self._file, header.dtype, "c", offset, shape)))}


class NpyPipeReader(TableReader):
    """A matrix of logits that comes through a pipe."""

    format = "npy"

    def __init__(
        self,
        source: PipeSource,
        chunk_rows: int | None,
        *,
        names: Sequence[str] | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        """Read the header off the pipe; the rows stay in it until they are asked for."""
        self._source = source
        super().__init__(source.shown, chunk_rows, names=names, keep=keep)
        self.release = source.close

    def _read_head(self) -> None:
        self._header = stored_as(self._source)
        _check_logits(self.path, self._header)
        self._dtypes[LOGITS] = self._header.dtype.newbyteorder("=")
        self.n_rows, self.widths[LOGITS] = self._header.shape

    def _blocks(self) -> Iterator[Block]:
        self._source.start()
        stream = NpyStream(self._source, self._header)
        n_rows = self._header.shape[0]
        for start in range(0, n_rows, self.chunk_rows):
            yield {LOGITS: stream.rows(min(self.chunk_rows, n_rows - start))}
        stream.finish()

    def _damaged(self, reason: str) -> FileFormatError:
        return self._source.damaged(self.format, reason)


def _check_logits(path: str, header: NpyHeader) -> None:
    check_array(path, LOGITS, Stored(header.shape, header.dtype), LOGITS, None)
