"""Arrow's IPC format, taken from bytes that a stranger sent.

What rows of logits need of the format is little: a schema of float columns, or of one column of lists, and record
batches without compression. That little is read here, with every length compared with the bytes that are there.
pyarrow reads all of the format, and trusts it more than a server may: a first message that is no schema crashes the
process, a compressed buffer says itself how much memory it wants, and a schema whose parts are shared can grow a
thousandfold.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.serve.bad_request import BadRequest, Body, shown
from normscale.serve.flatbuffer import Table

_FILE_MAGIC = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"
_MOST_BATCHES = 1024
_VERSIONS = (3, 4)  # of the metadata: V4 and V5, which differ in unions only
_SCHEMA, _RECORD_BATCH = 1, 3  # kinds of message
_FLOAT, _LIST, _FIXED_LIST, _LARGE_LIST = 3, 12, 16, 21  # kinds of column
_FLOATS: dict[int, np.dtype[Any]] = {0: np.dtype("<f2"), 1: np.dtype("<f4"), 2: np.dtype("<f8")}


class _Layout(NamedTuple):
    """What the columns are."""

    dtypes: list[np.dtype[Any]]
    """Of each float column, or of the numbers in the lists."""
    lists: int | None
    """The kind of the one column of lists."""


class _Batch(NamedTuple):
    """The parts of a record batch."""

    length: int
    nodes: list[tuple[int, int]]
    """Length and nulls of each column; of a list, then of its numbers."""
    buffers: list[memoryview]


def read_arrow(body: Body, *, is_file: bool, width: int, max_rows: int) -> NDArray[Any]:
    """Rows of ``width`` numbers from float columns, one for each class, or from one column of lists, ``logits``."""
    if is_file and not (body.startswith(_FILE_MAGIC + b"\0\0") and body.endswith(_FILE_MAGIC)):
        raise _damaged("an Arrow file begins and ends with ARROW1")
    # A file is a stream between two magic words, and a footer that only repeats where the batches are.
    stream = memoryview(body)[8:] if is_file else memoryview(body)
    try:
        return _read(stream, is_file, width, max_rows)
    except (struct.error, ValueError) as error:
        raise _damaged(str(error) if type(error) is ValueError else "it ends too early") from None


def _read(stream: memoryview, is_file: bool, width: int, max_rows: int) -> NDArray[Any]:
    messages = _messages(stream, is_file)
    kind, header, _ = next(messages, (0, None, None))
    if kind != _SCHEMA or header is None:
        raise _damaged("it does not begin with a schema")
    layout = _layout(header, width)
    blocks: list[NDArray[Any]] = []
    total = 0
    for kind, header, data in messages:
        if kind != _RECORD_BATCH:
            raise _damaged("only record batches may follow the schema")
        batch = _batch(
            header, data, 2 if layout.lists else width, _n_buffers(layout, width), max_rows - total, max_rows
        )
        total += batch.length
        if len(blocks) == _MOST_BATCHES:
            raise BadRequest(413, f"more than {_MOST_BATCHES} record batches in one request. Combine them.")
        blocks.append(_rows_of_lists(batch, layout, width) if layout.lists else _rows_of_columns(batch, layout))
    if not total:
        raise BadRequest(422, "the Arrow stream holds no rows; at least one is needed.")
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _messages(stream: memoryview, is_file: bool) -> Iterator[tuple[int, Table, memoryview]]:
    """Kind, header and data of each message."""
    place = 0
    while place < len(stream):
        if bytes(stream[place : place + 4]) != _CONTINUATION:
            raise ValueError("a message does not begin like one")
        (size,) = struct.unpack_from("<I", stream, place + 4)
        place += 8
        if not size:
            if place != len(stream) and not is_file:
                raise ValueError(f"{len(stream) - place} bytes follow its end")
            return
        message = Table.root(stream[place : place + size])
        if message.number(0, "<h") not in _VERSIONS:
            raise ValueError("its version of the format is not known")
        length = message.number(3, "<q")
        place += size
        if not 0 <= length <= len(stream) - place:
            raise ValueError(
                f"a message says it holds {shown(length)} bytes, and there are {max(0, len(stream) - place)}"
            )
        yield message.number(1, "<B"), message.table(2), stream[place : place + length]
        place += length


def _layout(schema: Table, width: int) -> _Layout:
    """What the columns are; raises when they cannot be rows of logits."""
    if schema.number(0, "<h"):
        raise BadRequest(415, "the Arrow stream is big-endian. Write it in little-endian order.")
    count = schema.length(1)
    fields = schema.tables(1, count) if count in (1, width) else []
    if count == 1 and width != 1 and fields[0].text(0, 7) == b"logits":
        kind = fields[0].number(2, "<B")
        if kind in (_LIST, _FIXED_LIST, _LARGE_LIST) and fields[0].length(5) == 1 and not fields[0].has(4):
            _check_list_size(fields[0], kind, width)
            return _Layout([_float(fields[0].tables(5, 1)[0])], kind)
    if count != width:
        raise BadRequest(
            422,
            f"an Arrow stream must have {width} float columns, one for each class in order, or one column of lists of "
            f"floats called logits; got {count} columns.",
        )
    return _Layout([_float(field) for field in fields], None)


def _check_list_size(field: Table, kind: int, width: int) -> None:
    if kind == _FIXED_LIST and (size := field.table(3).number(0, "<i")) != width:
        raise BadRequest(422, f"the lists of logits must hold {width} numbers, one for each class; got {size}.")


def _float(field: Table) -> np.dtype[Any]:
    if field.number(2, "<B") != _FLOAT or field.has(4):
        name = shown(field.text(0, 50).decode("utf-8", "replace")) if field.has(0) else ""
        raise BadRequest(422, f"Arrow columns must hold float16 to float64, and column '{name}' does not. Cast it.")
    precision = field.table(3).number(0, "<h")
    if precision not in _FLOATS:
        raise ValueError("a column has floats of no known size")
    return _FLOATS[precision]


def _n_buffers(layout: _Layout, width: int) -> int:
    """How many buffers a batch has: validity and numbers of a column; a list has validity and offsets before them."""
    return {None: 2 * width, _FIXED_LIST: 3}.get(layout.lists, 4)


def _batch(header: Table, data: memoryview, n_nodes: int, n_buffers: int, left: int, max_rows: int) -> _Batch:
    if header.has(3):
        raise BadRequest(415, "compressed Arrow buffers are not read. Write the stream without compression.")
    length = header.number(0, "<q")
    if length > left:
        raise BadRequest(413, f"more than {max_rows} rows in one request. Send them in parts.")
    if length < 0 or header.length(1) != n_nodes or header.length(2) != n_buffers:
        raise ValueError("a record batch does not fit its schema")
    nodes = header.pairs(1, n_nodes)
    if nodes[0][0] != length or any(nulls < 0 for _, nulls in nodes):
        raise ValueError("a record batch and its columns differ in length")
    if any(nulls for _, nulls in nodes):
        raise BadRequest(422, "the Arrow stream holds nulls. Drop those rows.")
    buffers = header.pairs(2, n_buffers)
    if any(start < 0 or start % 8 or size < 0 or start + size > len(data) for start, size in buffers):
        raise ValueError("a buffer lies outside its message, or at an odd place")
    return _Batch(length, nodes, [data[start : start + size] for start, size in buffers])


def _rows_of_columns(batch: _Batch, layout: _Layout) -> NDArray[Any]:
    rows = np.empty((batch.length, len(layout.dtypes)), np.result_type(*layout.dtypes).newbyteorder("="))
    for index, dtype in enumerate(layout.dtypes):
        if batch.nodes[index][0] != batch.length:
            raise ValueError("the columns of a record batch differ in length")
        rows[:, index] = _numbers(batch.buffers[2 * index + 1], dtype, batch.length)
    return rows


def _rows_of_lists(batch: _Batch, layout: _Layout, width: int) -> NDArray[Any]:
    first, count = 0, batch.length * width
    if layout.lists != _FIXED_LIST and batch.length:
        kind = np.dtype("<i8" if layout.lists == _LARGE_LIST else "<i4")
        offsets = _numbers(batch.buffers[1], kind, batch.length + 1)
        wrong = np.diff(offsets) != width
        if wrong.any():
            row = int(np.argmax(wrong))
            size = int(offsets[row + 1]) - int(offsets[row])
            raise BadRequest(422, f"row {row} of logits must hold {width} numbers, one for each class; got {size}.")
        first = int(offsets[0])
    if first < 0 or first + count > batch.nodes[1][0]:
        raise ValueError("its lists hold more numbers than there are")
    numbers = _numbers(batch.buffers[-1], layout.dtypes[0], count, first)
    return np.array(numbers, dtype=numbers.dtype.newbyteorder("=")).reshape(-1, width)


def _numbers(buffer: memoryview, dtype: np.dtype[Any], count: int, first: int = 0) -> NDArray[Any]:
    if len(buffer) < (first + count) * dtype.itemsize:
        raise ValueError("a buffer is too short for its column")
    return np.frombuffer(buffer, dtype, count, first * dtype.itemsize) if count else np.empty(0, dtype)


def _damaged(reason: str) -> BadRequest:
    return BadRequest(400, f"the body is not a whole Arrow stream or file: {reason}. Write it again.")
