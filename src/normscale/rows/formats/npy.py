"""numpy's .npy: one array with a short header, as a file, a zip member or a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.npy_header import MAGIC, ByteStream, NpyHeader, take_npy_header
from normscale.outputs import LOGITS
from normscale.rows.arrays import ArraysReader, Stored, native
from normscale.rows.format import register_format
from normscale.rows.reader import Block
from normscale.rows.writing import Columns, GatheringSink

_BUFFER = 1 << 20


class NpySink(GatheringSink):
    """One array: the logits, the scores, or the first."""

    def save(self, arrays: Columns) -> None:
        """Write the array alone."""
        name = next((name for name in (LOGITS, "score") if name in arrays), next(iter(arrays)))
        with open(self.file, "wb") as file:
            np.save(file, arrays[name], allow_pickle=False)


@register_format
class Npy(ArraysReader):
    """One matrix of logits; one in a file here is mapped into memory piece by piece, so that nothing is copied."""

    name, described, suffixes = "npy", "an .npy file (one numpy array)", (".npy",)
    magic, sink, streams, keeps = (MAGIC,), NpySink, True, frozenset()

    def _read_head(self) -> None:
        with self.source.open() as stream:
            header = self._header = take_npy_header(stream)
            self._take_array(LOGITS, Stored(header.shape, header.dtype))
            if self.source.once:
                return  # the rows are counted as they come
            if (there := stream.seek(0, os.SEEK_END) - header.offset) != header.n_bytes:
                raise ValueError(f"its header says {header.n_bytes} bytes of numbers, and there are {there}")

    def _blocks(self) -> Iterator[Block]:
        header, n_rows, path = self._header, self._header.shape[0], self.source.path
        if path is None:
            with self.source.open() as stream:
                stream.read(header.offset)
                rows = NpyStream(stream, header)
                for start in range(0, n_rows, self.chunk_rows):
                    yield {LOGITS: rows.take(min(self.chunk_rows, n_rows - start))}
                if stream.read(1):
                    raise ValueError("more bytes follow than its header says")
        else:
            for start in range(0, n_rows, self.chunk_rows):
                yield {LOGITS: _mapped(path, header, start, min(start + self.chunk_rows, n_rows))}


def _mapped(path: str, header: NpyHeader, start: int, stop: int) -> NDArray[Any]:
    """Some rows of a file.

    One short mapping per chunk keeps resident memory bounded. Mode "c" gives arrays that may be written to without
    touching the file: read-only arrays are another type to compiled kernels.
    """
    if header.fortran_order:
        whole = np.memmap(path, header.dtype, "r", header.offset, header.shape, order="F")
        return native(np.ascontiguousarray(whole[start:stop]))
    offset, shape = header.offset + start * header.row_bytes, (stop - start, header.shape[1])
    return native(np.asarray(np.memmap(path, header.dtype, "c", offset, shape)))


class NpyStream:
    """The rows of an array, taken from a stream that cannot go back.

    An array in Fortran order holds columns, not rows, one after the other: it is copied to a temporary file
    first, for its first row ends only where the array does.
    """

    def __init__(self, stream: ByteStream, header: NpyHeader) -> None:
        """Read on from the end of the header."""
        self._stream, self._header = stream, header
        self._row = 0
        self._mapped: NDArray[Any] | None = None

    def take(self, count: int) -> NDArray[Any]:
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

    def _spilled(self) -> NDArray[Any]:
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


def fill(stream: ByteStream, array: NDArray[Any]) -> None:
    """Fill a contiguous array, in the order its numbers lie in memory, with the next bytes of a stream."""
    if not array.nbytes:
        return
    space = memoryview(array.ravel(order="K").view(np.uint8))  # type: ignore[arg-type]
    done = 0
    while done < len(space):
        got = stream.readinto(space[done:])
        if not got:
            raise EOFError(f"it ends {len(space) - done} bytes too early")
        done += got


def rows_as_they_come(pipe: Any, header: NpyHeader) -> Iterator[NDArray[Any]]:
    """The rows of an array in C order as their bytes arrive; ``EOFError`` where some are missing."""
    rest, missing = b"", header.shape[0]
    while missing:
        if len(rest) < header.row_bytes:
            more = pipe.read1(_BUFFER)
            if not more:
                raise EOFError(f"ends after {header.shape[0] - missing} of {header.shape[0]} rows; it is cut off.")
            rest += more
            continue
        n = min(len(rest) // header.row_bytes, missing)
        yield np.frombuffer(rest, header.dtype, n * header.shape[1]).reshape(n, -1)
        rest, missing = rest[n * header.row_bytes :], missing - n
