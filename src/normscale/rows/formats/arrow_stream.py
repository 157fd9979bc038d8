"""Rows out of Arrow's IPC format, a stream or a file, read by pyarrow within bounds.

pyarrow verifies the metadata and, asked to, every offset. What it does not bound is checked before it is let at a
message: how large a schema is, and whether buffers are compressed, for those say themselves how much memory they want.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from normscale.errors import BodyRefused, InvalidInput, MissingExtra
from normscale.outputs import LOGITS
from normscale.rows.format import ArrayMap, Body, BodyLimits, TableFormat, quoted, register_format
from normscale.rows.reader import ReadOptions, TableReader
from normscale.rows.source import ByteSource

_FILE_MAGIC = b"ARROW1"
_MOST_BATCHES = 1024
_SCHEMA_BYTES, _COLUMN_BYTES = 1 << 16, 1 << 10
"""How large the metadata of a message may be: a schema that repeats shared parts could grow a thousandfold."""
_ENDIANNESS, _NODES, _COMPRESSION = 0, 1, 3
"""Fields of the header of a schema, and two of a record batch."""


@register_format
class ArrowStream(TableFormat):
    """Record batches: a float column for every class, or one column of lists called ``logits``; others are lists."""

    name, described = "arrow", "an Arrow stream"
    media_types: ClassVar[tuple[str, ...]] = ("application/vnd.apache.arrow.stream",)
    is_file = False

    def open(self, source: ByteSource, options: ReadOptions) -> TableReader:
        """Refuse: a file is Parquet."""
        raise InvalidInput(f"{source.shown}: Arrow is read from the body of a request; write .parquet.")

    def parse(self, body: Body, limits: BodyLimits) -> ArrayMap:
        """Whole, uncompressed record batches of floats without nulls."""
        return _parse(body, self.is_file, limits.widths, limits.rows)


@register_format
class ArrowFile(ArrowStream):
    """The same between two magic words, with a footer."""

    name, described = "arrow_file", "an Arrow file"
    media_types = ("application/vnd.apache.arrow.file",)
    is_file = True


def _parse(body: Body, is_file: bool, widths: Mapping[str, int], max_rows: int) -> ArrayMap:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingExtra(
            f"reading Arrow needs pyarrow ({error}). Run: pip install 'normscale[arrow]', or send JSON or .npy."
        ) from error

    if is_file and not (body.startswith(_FILE_MAGIC + b"\0\0") and body.endswith(_FILE_MAGIC)):
        raise _damaged("an Arrow file begins and ends with ARROW1")
    # A file is a stream between two magic words, and a footer that only repeats where the batches are.
    source = pa.BufferReader(pa.py_buffer(memoryview(body)[8:] if is_file else body))
    try:
        return _read(pa, source, is_file, widths, max_rows)
    except BodyRefused:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(quoted(str(error).rstrip("."))) from None


def _read(pa: Any, source: Any, is_file: bool, widths: Mapping[str, int], max_rows: int) -> dict[str, NDArray[Any]]:
    messages = _messages(pa, source, is_file, _SCHEMA_BYTES + _COLUMN_BYTES * sum(widths.values()))
    first = next(messages, None)
    if first is None or first.type != "schema":
        raise _damaged("it does not begin with a schema")
    if _header_field(first, _ENDIANNESS):
        raise BodyRefused("unknown format", "the Arrow stream is big-endian. Write it in little-endian order.")
    schema = pa.ipc.read_schema(first)
    lists = _checked_lists(pa, schema, widths)
    nodes = len(schema) + len(lists)  # a list has one for its numbers, too
    batches: list[Any] = []
    total = 0
    for message in messages:
        if message.type != "record batch":
            raise _damaged("only record batches may follow the schema")
        if _header_field(message, _COMPRESSION) is not None:
            raise BodyRefused(
                "unknown format", "compressed Arrow buffers are not read. Write them without compression."
            )
        if len(batches) == _MOST_BATCHES:
            raise BodyRefused("too large", f"more than {_MOST_BATCHES} record batches in one request. Combine them.")
        if _header_field(message, _NODES, "<I", follow=True) != nodes:
            raise _damaged("a record batch does not fit its schema")
        batch = pa.ipc.read_record_batch(message, schema)
        total += batch.num_rows
        if total > max_rows:
            raise BodyRefused("too large", f"more than {max_rows} rows in one request. Send them in parts.")
        batch.validate(full=True)
        batches.append(batch)
    if not total:
        raise BodyRefused("rule", "the Arrow stream holds no rows; at least one is needed.")
    blocks = [_arrays(batch, lists, widths) for batch in batches]
    return {name: np.ascontiguousarray(np.concatenate([block[name] for block in blocks])) for name in widths}


def _messages(pa: Any, source: Any, is_file: bool, most_bytes: int) -> Iterator[Any]:
    for message in pa.ipc.MessageReader.open_stream(source):
        if message.metadata.size > most_bytes:
            raise BodyRefused(
                "too large",
                f"the metadata of an Arrow message is larger than {most_bytes} bytes.",
            )
        yield message
    left = source.size() - source.tell()
    if left and not is_file:
        raise _damaged(f"{left} bytes follow its end")


def _header_field(message: Any, number: int, form: str = "<h", *, follow: bool = False) -> int | None:
    """A number in a message's header, of which pyarrow says nothing before it acts on it; None: its default value.

    With ``follow`` the field refers to a vector, and the number is its length.
    """
    data = memoryview(message.metadata)
    try:
        header = _field(data, _follow(data, 0), 2)
        place = None if header is None else _field(data, _follow(data, header), number)
        if place is None:
            return None
        return int(struct.unpack_from(form, data, _follow(data, place) if follow else place)[0])
    except struct.error:
        raise _damaged("a part of its metadata is missing") from None


def _follow(data: memoryview, place: int) -> int:
    """Where the table begins that a reference in a flatbuffer points to."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer's table stands; None when it has its default value."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    entry = 4 + 2 * number
    if vtable < 0 or entry + 2 > struct.unpack_from("<H", data, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", data, vtable + entry)[0]
    return table + offset if offset else None


def _checked_lists(pa: Any, schema: Any, widths: Mapping[str, int]) -> dict[int, str]:
    """Which columns, by position, are lists of which array; columns that cannot be the arrays wanted are refused."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    lists = {
        i: field.name
        for i, field in enumerate(schema)
        if field.name in widths and any(is_(field.type) for is_ in kinds)
    }
    for i, name in lists.items():
        if schema.names.count(name) > 1:
            raise BodyRefused("rule", f"the Arrow stream has two columns {quoted(name)}.")
        _require_float(pa, schema.field(i).type.value_type, name)
        size = getattr(schema.field(i).type, "list_size", widths[name])
        if size != widths[name]:
            raise BodyRefused("rule", f"the lists of {quoted(name)} must hold {widths[name]} numbers; got {size}.")
    for name in widths:
        if name != LOGITS and name not in lists.values():
            raise BodyRefused(
                "rule", f"{name} is missing: an Arrow stream needs a column of lists of floats called {name}."
            )
    columns = [field for i, field in enumerate(schema) if i not in lists]
    if LOGITS in lists.values():
        if columns:
            raise BodyRefused("rule", f"an Arrow stream must hold {', '.join(widths)} and nothing else.")
    elif len(columns) != widths[LOGITS]:
        raise BodyRefused(
            "rule",
            f"an Arrow stream must have {widths[LOGITS]} float columns, one for each class in order, or one column "
            f"of lists of floats called logits; got {len(columns)} columns.",
        )
    for field in columns:
        _require_float(pa, field.type, field.name)
    return lists


def _require_float(pa: Any, kind: Any, name: str) -> None:
    if not pa.types.is_floating(kind):
        raise BodyRefused(
            "rule", f"Arrow columns must hold float16 to float64, and column '{quoted(name)}' does not. Cast it."
        )


def _arrays(batch: Any, lists: Mapping[int, str], widths: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """The arrays of one batch, each of shape (n, width)."""
    arrays = {name: _of_lists(batch.column(i), name, widths[name]) for i, name in lists.items()}
    if LOGITS not in arrays:
        columns = [batch.column(i) for i in range(batch.num_columns) if i not in lists]
        arrays[LOGITS] = np.stack([_numbers(column) for column in columns], axis=1)
    return arrays


def _of_lists(column: Any, name: str, width: int) -> NDArray[Any]:
    if column.null_count:
        raise _nulls()
    numbers = _numbers(column.flatten())
    if not hasattr(column.type, "list_size"):
        sizes = np.diff(np.from_dlpack(column.offsets))
        if (sizes != width).any():
            row = int(np.argmax(sizes != width))
            raise BodyRefused("rule", f"row {row} of {quoted(name)} must hold {width} numbers; got {int(sizes[row])}.")
    return numbers.reshape(-1, width)


def _numbers(column: Any) -> NDArray[Any]:
    if column.null_count:
        raise _nulls()
    numbers: NDArray[Any] = np.from_dlpack(column)  # to_numpy would load pandas where it is installed: 40 MB
    return numbers


def _nulls() -> BodyRefused:
    return BodyRefused("rule", "the Arrow stream holds nulls. Drop those rows.")


def _damaged(reason: str) -> BodyRefused:
    return BodyRefused("damaged", f"the body is not a whole Arrow stream or file: {reason}. Write it again.")
