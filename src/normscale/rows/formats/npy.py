"""numpy's .npy: one array with a short header, as a file, a zip member, a pipe or the body of a request."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.npy_header import (
    MAGIC,
    ByteStream,
    NpyHeader,
    NpyHeaderError,
    NpyHoldsRecords,
    npy_header_of,
    take_npy_header,
)
from normscale.errors import BodyRefused
from normscale.outputs import LOGITS
from normscale.rows.arrays import Stored, check_array, native
from normscale.rows.format import ArrayMap, Body, BodyLimits, TableFormat, quoted, register_format
from normscale.rows.reader import Block, ReadOptions, TableReader
from normscale.rows.source import ByteSource, Pipe
from normscale.rows.writing import About, Columns, GatheringSink, Sink

_BUFFER = 1 << 20


@register_format
class Npy(TableFormat):
    """One matrix of logits."""

    name, described = "npy", "an .npy file (one numpy array)"
    suffixes, media_types = (".npy",), ("application/x-npy",)
    magic = (MAGIC,)
    streams = True
    keeps = frozenset()

    def open(self, source: ByteSource, options: ReadOptions) -> TableReader:
        """Read the header."""
        return NpyReader(self, source, options)

    def sink(self, file: str, path: str, columns: Mapping[str, Any], about: About) -> Sink:
        """Write the logits, or the scores, alone."""
        return _NpySink(file, path, columns, about)

    def parse(self, body: Body, limits: BodyLimits) -> ArrayMap:
        """Logits alone, of shape (n, width) or (width,)."""
        if list(limits.widths) != [LOGITS]:
            needed = " and ".join(limits.widths)
            raise BodyRefused(
                "unknown format",
                f"a .npy holds logits alone, and {needed} are needed; send .npz, JSON or Arrow.",
            )
        return {LOGITS: parse_rows(body, LOGITS, limits)}


class _NpySink(GatheringSink):
    def save(self, arrays: Columns) -> None:
        """Write one array: the logits, the scores, or the first."""
        name = next((name for name in (LOGITS, "score") if name in arrays), next(iter(arrays)))
        with open(self.file, "wb") as file:
            np.save(file, arrays[name], allow_pickle=False)


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
        self._mapped: NDArray[Any] | None = None

    def rows(self, count: int) -> NDArray[Any]:
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
    if not array.size:
        return
    space = memoryview(array.ravel(order="K").view(np.uint8))  # type: ignore[arg-type]
    done = 0
    while done < len(space):
        got = stream.readinto(space[done:])
        if not got:
            raise EOFError(f"it ends {len(space) - done} bytes too early")
        done += got


def rows_as_they_come(pipe: Pipe, header: NpyHeader) -> Iterator[NDArray[Any]]:
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


class NpyReader(TableReader):
    """A matrix of logits; one in a file here is mapped into memory piece by piece, so that nothing is copied."""

    def _read_head(self) -> None:
        with ExitStack() as stack:
            stream = self.source.open()
            if not self.source.once:
                stack.callback(stream.close)
            header = self._header = stored_as(stream)
            check_array(self.path, LOGITS, Stored(header.shape, header.dtype), LOGITS, None)
            if not self.source.once and (there := stream.seek(0, os.SEEK_END) - header.offset) != header.n_bytes:
                raise ValueError(f"its header says {header.n_bytes} bytes of numbers, but there are {there}")
        self._dtypes[LOGITS] = header.dtype.newbyteorder("=")
        self.n_rows, self.widths[LOGITS] = header.shape

    def _blocks(self) -> Iterator[Block]:
        if isinstance(self.source, Pipe):
            self.source.start()
            yield from self._streamed(self.source)
        elif self.source.path is None:
            with self.source.open() as stream:
                stored_as(stream)
                yield from self._streamed(stream)
        else:
            yield from self._mapped(self.source.path)

    def _streamed(self, source: ByteStream) -> Iterator[Block]:
        n_rows, stream = self._header.shape[0], NpyStream(source, self._header)
        for start in range(0, n_rows, self.chunk_rows):
            yield {LOGITS: stream.rows(min(self.chunk_rows, n_rows - start))}
        stream.finish()

    def _mapped(self, path: str) -> Iterator[Block]:
        header, n_rows = self._header, self._header.shape[0]
        for start in range(0, n_rows, self.chunk_rows):
            stop = min(start + self.chunk_rows, n_rows)
            # One short mapping per chunk keeps resident memory bounded. Mode "c" gives arrays that may be
            # written to without touching the file: read-only arrays are another type to compiled kernels.
            if header.fortran_order:
                whole = np.memmap(path, header.dtype, "r", header.offset, header.shape, order="F")
                yield {LOGITS: native(np.ascontiguousarray(whole[start:stop]))}
            else:
                offset = header.offset + start * header.row_bytes
                shape = (stop - start, header.shape[1])
                yield {LOGITS: native(np.asarray(np.memmap(path, header.dtype, "c", offset, shape)))}


# -- the body of a request ---------------------------------------------------------------------------------------


def parse_rows(body: Body, name: str, limits: BodyLimits) -> NDArray[Any]:
    """Rows (n, width) out of an .npy that a stranger sent; a single row may come without its first axis."""
    header = parse_header(body)
    shape, width = header.shape, limits.widths[name]
    if len(shape) not in (1, 2) or shape[-1] != width:
        raise BodyRefused(
            "rule", f"{name} must have shape (n, {width}), or ({width},) for one row; got {quoted(shape)}."
        )
    if len(shape) == 2 and not 1 <= shape[0] <= limits.rows:
        if not shape[0]:
            raise BodyRefused("rule", "the .npy holds no rows; at least one is needed.")
        raise BodyRefused(
            "too large", f"{shape[0]} rows in one request; at most {limits.rows} are taken. Send them in parts."
        )
    return parse_numbers(body, header).reshape(-1, width)


def parse_header(body: Body) -> NpyHeader:
    """Read the header of an .npy that holds floats or integers; anything else is refused."""
    try:
        header = npy_header_of(body)
    except NpyHoldsRecords:
        raise BodyRefused(
            "rule", "the .npy holds neither floats nor integers. Send logits as numpy.float32 or numpy.float64."
        ) from None
    except NpyHeaderError as error:
        raise _damaged(str(error)) from None
    if header.dtype.kind not in "fiu" or header.dtype.itemsize > 8:
        objects = header.dtype.hasobject
        what = "Python objects, which are pickles and never opened" if objects else quoted(header.dtype.str)
        raise BodyRefused(
            "rule",
            f"the .npy must hold float16 to float64 or integers; it holds {what}. Convert it: x.astype('float32').",
        )
    return header


def parse_numbers(body: Body, header: NpyHeader) -> NDArray[Any]:
    """The numbers behind the header, in this machine's byte order and in C order.

    Little-endian numbers in C order are not copied when ``body`` can be written to (a ``bytearray``). From ``bytes``
    they are copied once: numpy would give a read-only array, which is another type to compiled kernels.
    """
    expected, there = header.n_bytes, len(body) - header.offset
    if expected != there:
        raise _damaged(f"its header says {quoted(expected)} bytes of numbers, and there are {there}")
    flat = np.frombuffer(body, header.dtype, math.prod(header.shape), header.offset)
    array = flat.reshape(header.shape, order="F" if header.fortran_order else "C")
    flags = array.flags
    ready = flags.c_contiguous and flags.writeable and flags.aligned and header.dtype.isnative
    return array if ready else np.array(array, dtype=header.dtype.newbyteorder("="), order="C")


def _damaged(reason: str) -> BodyRefused:
    return BodyRefused("damaged", f"the body is not a whole .npy file: {reason}. Make it with numpy.save(file, array).")
