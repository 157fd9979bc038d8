""".jsonl: a JSON object a line, with a number for each class, or with lists; read by pyarrow, from a file or a pipe.

The keys of the first lines are the columns, chosen as :mod:`normscale.rows.columns` says. A key that a line lacks, and
a null, are NaN, and in the labels "not known". JSON has no NaN and no infinity: these are texts, as in
:mod:`normscale.encoding.json_text`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from normscale.encoding.json_text import write_json
from normscale.errors import FileFormatError
from normscale.outputs import LABEL_NAMES
from normscale.rows.files import need_arrow, register_format
from normscale.rows.formats.delimited import TextReader, TextSink
from normscale.rows.formats.parquet import ArrowReader
from normscale.rows.reader import Columns
from normscale.rows.writing import texts_of

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_WORD = re.compile(rb"NaN|Infinity")
_QUOTED_NUMBER = re.compile(rb'([:\[,]\s*)"(NaN|-?Infinity)"(?=\s*[,\]}])')


class JsonLinesSink(TextSink):
    """An object for each row, written as they come."""

    def write(self, columns: Columns) -> None:
        fields = [
            texts_of(column, self.columns[name]) if column.dtype.kind == "M" else column.tolist()
            for name, column in columns.items()
        ]
        for row in zip(*fields, strict=True):
            self._text.write(write_json(dict(zip(columns, map(_plain, row), strict=True))) + "\n")


@register_format
class JsonLines(TextReader, ArrowReader):
    """Objects of numbers, lists of numbers and texts. The first lines say which keys there are, and of what."""

    name, described, suffixes = "jsonl", "a .jsonl file (a JSON object a line)", (".jsonl", ".ndjson")
    sink, keeps = JsonLinesSink, frozenset({"arrays", "labels", "class names"})

    @classmethod
    def begins(cls, head: bytes) -> bool:
        """An opening brace."""
        return head.lstrip()[:1] == b"{"

    def _read_head(self) -> None:
        self._need_arrow()
        self._schema = None
        first = next((block for block in self._line_blocks(0) if block.strip()), b"")
        if not first:
            raise self._damaged("there is no line with anything on it")
        self._first = self._parsed(first, 0)
        fields = [(field.name, self._widened(field.name, field.type)) for field in self._first.schema]
        self._schema = self._arrow.schema(fields)
        self._choose_columns()

    def _widened(self, name: str, kind: Any) -> Any:
        """The type of a column: numbers may have a fraction further on, and so may those of lists."""
        arrow, types = self._arrow, self._types
        if types.is_list(kind):
            return arrow.list_(self._widened(name, kind.value_type))
        is_other = name in self._keep or name.lower() in LABEL_NAMES
        return arrow.float64() if types.is_null(kind) or (types.is_integer(kind) and not is_other) else kind

    def _batches(self, columns: list[str]) -> Iterator[Any]:
        line = 1
        for block in self._line_blocks(0):
            if block.strip():
                yield from self._parsed(block, line).select(columns).combine_chunks().to_batches()
            line += block.count(b"\n")

    def _parsed(self, block: bytes, line: int) -> Any:
        """The rows of some whole lines; where a number is needed, a text may be one that JSON has no word for."""
        json = need_arrow("pyarrow.json", self.path)
        if _WORD.search(block) and (bare := _WORD.search(_TEXT.sub(b'""', block))):
            word = bare[0].decode()
            raise FileFormatError(f'{self.path}: {word} is not JSON; write the text "{word}", or null.')
        options = {
            "read_options": json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            "parse_options": json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="error"),
        }
        if self._schema is None:
            options["parse_options"] = json.ParseOptions()
        for text in (block, _QUOTED_NUMBER.sub(rb"\1\2", block)):
            try:
                return json.read_json(self._arrow.BufferReader(text), **options)
            except self._arrow.ArrowInvalid as error:
                why = str(error)
        why = why.rstrip(".")
        raise FileFormatError(f"{self.path}, from line {line or 1} on: {why}. Is each line one object, all alike?")

    def _first_length(self, name: str) -> int:
        known = self._first.column(name).combine_chunks().drop_null()
        return len(known[0].as_py()) if len(known) else 0


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, list, type(None))) else str(value)
