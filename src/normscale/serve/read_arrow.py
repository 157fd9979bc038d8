"""Arrow's IPC format, taken from bytes that a stranger sent.

The stream is read message by message, so that each is looked at before it is made into arrays. Compressed buffers are
refused: they say themselves how much memory they want. Everything else is a view of the body, so that a batch takes no
memory beyond it, and is checked in full before a number is read. A file is a stream between two magic words.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.serve.bad_request import BadRequest, Body, shown

FILE_MAGIC = b"ARROW1"
_MOST_BATCHES = 1024
_COMPRESSION = 3  # the field of Arrow's table RecordBatch


def read_arrow(body: Body, *, is_file: bool, width: int, max_rows: int) -> NDArray[Any]:
    """Rows of ``width`` numbers from float columns, one for each class, or from one column of lists, ``logits``."""
    try:
        import pyarrow as pa
    except ImportError:
        raise BadRequest(
            415, "this server has no pyarrow and cannot read Arrow. Send application/x-npy or application/json."
        ) from None
    if is_file:
        if not (body.startswith(FILE_MAGIC + b"\0\0") and body.endswith(FILE_MAGIC)):
            raise _damaged("an Arrow file begins and ends with ARROW1")
        body = memoryview(body)[8:]  # type: ignore[assignment]  # the stream; its end is marked, the footer goes unread
    try:
        return _read(pa, body, is_file, width, max_rows)
    except BadRequest:
        raise
    # Damaged bytes come out of pyarrow as many kinds of error: its own, OSError, KeyError, UnicodeDecodeError, ...
    except Exception as error:
        raise _damaged(shown(error) or "it ends too early") from None


def _read(pa: Any, body: Body, is_file: bool, width: int, max_rows: int) -> NDArray[Any]:
    source = pa.BufferReader(pa.py_buffer(body))
    messages = pa.ipc.MessageReader.open_stream(source)
    first = messages.read_next_message()
    if first.type != "schema":  # pyarrow would take any message for one, and crash
        raise _damaged("it does not begin with a schema")
    schema = pa.ipc.read_schema(first)
    is_list = _check_schema(pa, schema, width)
    blocks: list[NDArray[Any]] = []
    total = 0
    for message in messages:
        if message.type != "record batch":
            raise _damaged(f"only record batches may follow the schema; got a {shown(message.type)} message")
        if _is_compressed(message.metadata.to_pybytes()):
            raise BadRequest(415, "compressed Arrow buffers are not read. Write the stream without compression.")
        batch = pa.ipc.read_record_batch(message, schema)
        total += batch.num_rows
        if total > max_rows:
            raise BadRequest(413, f"more than {max_rows} rows in one request. Send them in parts.")
        if len(blocks) == _MOST_BATCHES:
            raise BadRequest(413, f"more than {_MOST_BATCHES} record batches in one request. Combine them.")
        batch.validate(full=True)
        blocks.append(_numbers_of_lists(batch, width) if is_list else _numbers_of_columns(batch, width))
    if source.tell() < len(body) and not is_file:
        raise _damaged(f"{len(body) - source.tell()} bytes follow its end")
    if not total:
        raise BadRequest(422, "the Arrow stream holds no rows; at least one is needed.")
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _check_schema(pa: Any, schema: Any, width: int) -> bool:
    """Whether the rows are lists in one column; raises when the columns cannot be rows of logits."""
    # A schema made anew has this machine's byte order, so it differs from one that has the other.
    if not schema.equals(pa.schema(list(schema))):
        raise BadRequest(415, "the Arrow stream is big-endian. Write it in little-endian order.")
    types = [field.type for field in schema]
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if len(types) == 1 and schema.names == ["logits"] and any(is_list(types[0]) for is_list in lists):
        types, is_list_column = [types[0].value_type], True
    elif len(types) == width:
        is_list_column = False
    else:
        raise BadRequest(
            422,
            f"an Arrow stream must have {width} float columns, one for each class in order, or one column of lists "
            f"called logits; got {len(types)} columns.",
        )
    for kind in types:
        if not pa.types.is_floating(kind):
            raise BadRequest(422, f"Arrow columns must hold float16 to float64; got {shown(kind)}. Cast them.")
    return is_list_column


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch's flatbuffer has its field ``compression``; pyarrow does not say."""
    message = _unsigned(metadata, 0)
    header = _field(metadata, message, 2)
    if header is None:
        raise _damaged("a message has no header")
    return _field(metadata, header + _unsigned(metadata, header), _COMPRESSION) is not None


def _field(metadata: bytes, table: int, index: int) -> int | None:
    """Where the field of a flatbuffer's table is, or None when it has none."""
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    if vtable < 0:
        raise _damaged("a table of its metadata lies outside")
    (size,) = struct.unpack_from("<H", metadata, vtable)
    if 4 + 2 * index + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * index)
    return table + offset if offset else None


def _unsigned(metadata: bytes, position: int) -> int:
    value: int = struct.unpack_from("<I", metadata, position)[0]
    return value


def _numbers_of_columns(batch: Any, width: int) -> NDArray[Any]:
    columns = [_numbers(column, f"column {index}") for index, column in enumerate(batch.columns)]
    rows = np.empty((batch.num_rows, width), np.result_type(*columns))
    for index, column in enumerate(columns):
        rows[:, index] = column
    return rows


def _numbers_of_lists(batch: Any, width: int) -> NDArray[Any]:
    column = batch.column(0)
    if column.null_count:
        raise BadRequest(422, f"column logits holds {column.null_count} nulls. Drop those rows.")
    lengths = np.asarray(column.value_lengths())
    if (lengths != width).any():
        bad = int(np.argmax(lengths != width))
        raise BadRequest(422, f"row {bad} of logits must hold {width} numbers, one for each class; got {lengths[bad]}.")
    return np.array(_numbers(column.flatten(), "column logits")).reshape(-1, width)


def _numbers(column: Any, name: str) -> NDArray[Any]:
    if column.null_count:
        raise BadRequest(422, f"{name} holds {column.null_count} nulls. Drop those rows.")
    numbers: NDArray[Any] = column.to_numpy(zero_copy_only=True)
    return numbers


def _damaged(reason: str) -> BadRequest:
    return BadRequest(400, f"the body is not a whole Arrow stream or file: {reason.rstrip('.')}. Write it again.")
