"""numpy's .npy: one array with a short header, as a file, a zip member, a pipe or the body of a request."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.npy_header import MAGIC, ByteStream, NpyHeader, NpyHeaderError, npy_header_of, take_npy_header
from normscale.errors import BodyRefused
from normscale.outputs import LOGITS
from normscale.rows.arrays import ArraysReader, Stored, native
from normscale.rows.format import Body, quoted, register_format
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
    media_types, magic, sink = ("application/x-npy",), (MAGIC,), NpySink
    streams, keeps = True, frozenset()

    def _read_head(self) -> None:
        with self.source.open() as stream:
            header = take_npy_header(stream)
            self._header = header if self._limits is None else one_row(header)
            self._take_array(LOGITS, Stored(self._header.shape, header.dtype))
            if self.source.once or self.source.data is not None:
                return  # the rows are counted as they come, or in numbers_in
            if (there := stream.seek(0, os.SEEK_END) - header.offset) != header.n_bytes:
                raise ValueError(f"its header says {header.n_bytes} bytes of numbers, and there are {there}")

    def _blocks(self) -> Iterator[Block]:
        header, n_rows, path = self._header, self._header.shape[0], self.source.path
        if self.source.data is not None:
            yield {LOGITS: numbers_in(self.source.data, header)}
        elif path is None:
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


def one_row(header: NpyHeader) -> NpyHeader:
    """The same numbers with an axis of rows: a request may send one row without it."""
    return header._replace(shape=(1, *header.shape)) if len(header.shape) == 1 else header


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


def parse_header(body: Body) -> NpyHeader:
    """The header of an .npy of floats or integers in the body of a request; anything else is refused."""
    try:
        header = npy_header_of(body)
    except NpyHeaderError as error:
        raise BodyRefused("damaged", f"the body is not a whole .npy file: {error}. Make it again.") from None
    if header.dtype.kind not in "fiu" or header.dtype.itemsize > 8:
        what = quoted(header.dtype.str)
        raise BodyRefused("rule", f"the .npy must hold float16 to float64 or integers; it holds {what}.")
    return header


def numbers_in(body: Body, header: NpyHeader) -> NDArray[Any]:
    """The numbers behind the header, in this machine's byte order and in C order.

    Little-endian numbers in C order are not copied when ``body`` can be written to (a ``bytearray``). From ``bytes``
    they are copied once: numpy would give a read-only array, which is another type to compiled kernels.
    """
    there = len(body) - header.offset
    if header.n_bytes != there:
        says = f"its header says {quoted(header.n_bytes)} bytes of numbers, and there are {there}"
        raise BodyRefused("damaged", f"the body is not a whole .npy file: {says}. Make it again.")
    flat = np.frombuffer(body, header.dtype, math.prod(header.shape), header.offset)
    array = flat.reshape(header.shape, order="F" if header.fortran_order else "C")
    flags = array.flags
    ready = flags.c_contiguous and flags.writeable and flags.aligned and header.dtype.isnative
    return array if ready else np.array(array, dtype=header.dtype.newbyteorder("="), order="C")
