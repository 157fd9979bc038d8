"""Arrow's IPC format in the body of a request, a stream or a file: the columns of a .parquet file, within bounds.

pyarrow verifies the metadata and, asked to, every offset. What it does not bound is checked before it is let at a
message: how large a schema is, and whether buffers are compressed, for those say themselves how much memory they want.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from normscale.errors import BodyRefused, MissingExtra
from normscale.outputs import LOGITS
from normscale.rows.format import register_format
from normscale.rows.formats.parquet import ArrowReader
from normscale.rows.reader import DAMAGE

_FILE_MAGIC = b"ARROW1"
_MOST_BATCHES = 1024
_SCHEMA_BYTES, _COLUMN_BYTES = 1 << 16, 1 << 10
"""How large the metadata of a message may be: a schema that repeats shared parts could grow a thousandfold."""
_ENDIANNESS, _NODES, _COMPRESSION = 0, 1, 3
"""Fields of the header of a schema, and two of a record batch."""


@register_format
class ArrowStream(ArrowReader):
    """Whole, uncompressed record batches."""

    name, described = "arrow", "an Arrow stream or file"
    media_types = ("application/vnd.apache.arrow.stream",)

    def _read_head(self) -> None:
        try:
            import pyarrow
        except ImportError as error:
            raise MissingExtra(
                f"reading Arrow needs pyarrow ({error}). Run: pip install 'normscale[arrow]', or send JSON or .npy."
            ) from error
        self._arrow, self._damage = pyarrow, (*DAMAGE, pyarrow.ArrowException)
        self._messages = self._all_messages()
        first = next(self._messages, None)
        if first is None or first.type != "schema":
            raise ValueError("it does not begin with a schema")
        if _header_field(first, _ENDIANNESS):
            raise BodyRefused("unknown format", "the Arrow stream is big-endian. Write it in little-endian order.")
        self._schema = pyarrow.ipc.read_schema(first)
        self._read_columns()

    def _take_columns(self, names: Sequence[str]) -> None:
        """Columns that are no lists are the classes in their order, whatever their names say."""
        self._label = None
        if names and LOGITS not in self.widths:
            self.widths[LOGITS], self.array_columns[LOGITS] = len(names), list(names)

    def _stream(self) -> memoryview:
        return memoryview(self.source.data or b"")

    def _all_messages(self) -> Iterator[Any]:
        assert self._limits is not None
        source = self._arrow.BufferReader(self._arrow.py_buffer(self._stream()))
        most_bytes = _SCHEMA_BYTES + _COLUMN_BYTES * sum(self._limits.widths.values())
        for message in self._arrow.ipc.MessageReader.open_stream(source):
            if message.metadata.size > most_bytes:
                raise BodyRefused("too large", f"the metadata of an Arrow message is larger than {most_bytes} bytes.")
            yield message
        left = source.size() - source.tell()
        if left and not isinstance(self, ArrowFile):  # whose footer repeats where the batches are
            raise ValueError(f"{left} bytes follow its end")

    def _first_length(self, name: str) -> int:
        return 0 if self._limits is None else self._limits.widths.get(name, 0)

    def _batches(self, columns: list[str]) -> Iterator[Any]:
        nodes = len(self._schema) + len(self._lists)  # a list has one for its numbers, too
        total = 0
        for number, message in enumerate(self._messages):
            if message.type != "record batch":
                raise ValueError("only record batches may follow the schema")
            if _header_field(message, _COMPRESSION) is not None:
                raise BodyRefused(
                    "unknown format", "compressed Arrow buffers are not read. Write them without compression."
                )
            if number == _MOST_BATCHES:
                raise BodyRefused(
                    "too large", f"more than {_MOST_BATCHES} record batches in one request. Combine them."
                )
            if _header_field(message, _NODES, "<I", follow=True) != nodes:
                raise ValueError("a record batch does not fit its schema")
            batch = self._arrow.ipc.read_record_batch(message, self._schema)
            total += batch.num_rows
            if self._limits is not None and total > self._limits.rows:
                raise BodyRefused(
                    "too large", f"more than {self._limits.rows} rows in one request. Send them in parts."
                )
            batch.validate(full=True)
            yield batch


@register_format
class ArrowFile(ArrowStream):
    """The same between two magic words, with a footer."""

    name, media_types = "arrow_file", ("application/vnd.apache.arrow.file",)

    def _stream(self) -> memoryview:
        body = self.source.data or b""
        if not (body.startswith(_FILE_MAGIC + b"\0\0") and body.endswith(_FILE_MAGIC)):
            raise ValueError("an Arrow file begins and ends with ARROW1")
        return memoryview(body)[8:]


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
        raise ValueError("a part of its metadata is missing") from None


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
