""".csv: one row of numbers per line, with or without a header, from a file or a pipe.

The first line is a header if any of its fields is not a number, or if its fields are 0, 1, 2, ... (what
pandas writes above a matrix). Fields are separated by commas, or by tabs or semicolons if the first line
holds any; they may be quoted, but hold no line breaks. Numbers are read as float64.

Three parsers stand behind each other and give the same numbers: pyarrow where it is installed and there is
enough text to be worth its import, numpy otherwise, and a slow one for any block that those refuse, which
decides what counts as a number and finds the line to blame.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from normscale._validate import FloatArray
from normscale.errors import FileFormatError
from normscale.outputs import FEATURES, LOGITS
from normscale.tables.arrays import LABELS
from normscale.tables.arrow import has_arrow, need_arrow
from normscale.tables.columns import ColumnLayout, names_of_logits
from normscale.tables.kept_columns import KEPT, TEXT
from normscale.tables.line_reader import LineReader
from normscale.tables.reader import Block

_ARROW_PAYS = 1 << 22  # bytes of text after which importing pyarrow is made up for
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CsvReader(LineReader):
    """Lines of numbers from a file, or from a pipe as they come."""

    format = "csv"

    def __init__(self, path: str, chunk_rows: int | None, *, delimiter: str | None = None, **options: Any) -> None:
        """Fields are cut at ``delimiter``, or at the one that the first line shows; options of :class:`LineReader`."""
        self._given_delimiter = delimiter
        super().__init__(path, chunk_rows, **options)

    def _read_head(self) -> None:
        self._read_first_line()
        text = self._text(self._head.removeprefix(_BYTE_ORDER_MARK)).strip("\r\n")
        if not text.strip():
            raise self._damaged("there is no line with anything on it")
        self._delimiter = self._given_delimiter or _delimiter(text)
        try:
            fields = [field.strip() for field in _fields(text, self._delimiter)]
        except csv.Error as error:
            raise self._damaged(f"its first line cannot be split ({error})") from None
        self._has_header = not all(_is_number(field) for field in fields) or self._is_numbering(fields)
        if not self._has_header and len(fields) < 2:
            raise self._layout_error(
                f"every line must hold at least two numbers, one per class; the first is {text[:60]!r}."
            )
        names = fields if self._has_header else names_of_logits(len(fields))
        self._layout = layout = ColumnLayout(self.path, names, leave_out=self._keep)
        self.columns = {name: TEXT for name in self._keep if name in layout.names}
        self.columns_there = tuple(layout.names)
        self.widths[LOGITS], self.class_names = len(layout.logits), layout.class_names
        if layout.features:
            self.widths[FEATURES] = len(layout.features)
        self.has_labels = layout.label is not None

    def _is_numbering(self, fields: list[str]) -> bool:
        """Whether the first line is 0, 1, ..., which number the columns; two of them may be logits beside others."""
        if fields != [str(i) for i in range(len(fields))]:
            return False
        following = self._rest.lstrip().partition(b"\n")[0].decode("utf-8", "replace")
        return len(fields) > 2 or not all(one.strip().lstrip("-").isdigit() for one in following.split(self._delimiter))

    def _blocks(self) -> Iterator[Block]:
        layout = self._layout
        places = {column: place for place, column in enumerate(layout.used)}
        columns = {LOGITS: layout.logits, FEATURES: layout.features}
        chosen = {name: _as_slice([places[i] for i in columns[name]]) for name in self.widths}
        for numbers, texts in self._number_blocks():
            block: Block = {name: numbers[:, place] for name, place in chosen.items()}
            block |= {KEPT + name: column for name, column in texts.items()}
            if layout.label is not None:
                block[LABELS] = numbers[:, places[layout.label]]
            yield block

    def _number_blocks(self) -> Iterator[tuple[FloatArray, dict[str, Any]]]:
        """The used columns of all lines as numbers, and those that are kept as texts, in blocks of whole lines."""
        seen = 0
        line = 1 + (self._head.count(b"\n") if self._has_header else 0)
        mark = len(_BYTE_ORDER_MARK) if self._head.startswith(_BYTE_ORDER_MARK) else 0
        for text in self._line_blocks(len(self._head) if self._has_header else mark):
            seen += len(text)
            numbers = self._parse(text, line, seen)
            line += text.count(b"\n")
            if len(numbers):
                yield numbers, self._texts(text) if self.columns else {}

    def _parse(self, text: bytes, first_line: int, seen: int) -> FloatArray:
        """The numbers of some whole lines, shape (n_lines, n_used_columns)."""
        if not text.strip():
            return np.empty((0, len(self._layout.used)))
        if b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
            return self._parse_slowly(text, first_line)  # the quick ones take any for a line break
        quick = self._parse_arrow if seen > _ARROW_PAYS and has_arrow() else self._parse_numpy
        numbers = quick(text)
        return self._parse_slowly(text, first_line) if numbers is None else numbers

    def _parse_arrow(self, text: bytes) -> FloatArray | None:
        arrow, arrow_csv = need_arrow("pyarrow", self.path), need_arrow("pyarrow.csv", self.path)
        if b"(" in text:  # it takes nan(x) for a number
            return None
        names = [str(i) for i in range(self._layout.n_columns)]
        used = [str(i) for i in self._layout.used]
        try:
            table = arrow_csv.read_csv(
                arrow.BufferReader(text),
                read_options=arrow_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
                parse_options=arrow_csv.ParseOptions(delimiter=self._delimiter),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(used, arrow.float64()), include_columns=used, null_values=[]
                ),
            )
        except arrow.ArrowException:
            return None
        if b'"' in text and table.num_rows != sum(bool(line.strip()) for line in text.splitlines()):
            return None  # in quotes it lets a field go on over the end of its line
        numbers = np.empty((table.num_rows, len(used)))
        for j, name in enumerate(used):
            numbers[:, j] = table.column(name).to_numpy()
        return numbers

    def _parse_numpy(self, text: bytes) -> FloatArray | None:
        if len(self._layout.used) < self._layout.n_columns:
            return None  # numpy checks the length of lines only when it reads all columns
        try:
            numbers: FloatArray = np.loadtxt(
                io.BytesIO(text), np.float64, comments=None, delimiter=self._delimiter, quotechar='"',
                ndmin=2, encoding="utf-8",
            )  # fmt: skip
        except ValueError:
            return None
        return numbers if numbers.shape[1] == self._layout.n_columns else None

    def _parse_slowly(self, text: bytes, first_line: int) -> FloatArray:
        used, names = self._layout.used, self._layout.names
        rows = []
        for number, line in enumerate(self._text(text).split("\n"), start=first_line):
            if not line.strip():
                continue
            try:
                fields = _fields(line.rstrip("\r"), self._delimiter)
            except csv.Error as error:
                raise FileFormatError(f"{self.path}, line {number}: {error}.") from None
            if len(fields) != self._layout.n_columns:
                raise FileFormatError(
                    f"{self.path}, line {number}: expected {self._layout.n_columns} fields, got "
                    f"{len(fields)}. Is the line cut off, or are decimal commas used?"
                )
            for i in used:
                if not _is_number(fields[i]):
                    shown = repr(fields[i][:40]) if fields[i].strip() else "an empty field"
                    raise FileFormatError(
                        f"{self.path}, line {number}: expected a number in column {i} ({names[i]!r}), "
                        f"got {shown}. Drop or fill the line; if the column is no logit, name those that are "
                        "logit_<class>."
                    )
            rows.append([float(fields[i]) for i in used])
        return np.array(rows, dtype=np.float64).reshape(-1, len(used))

    def _texts(self, text: bytes) -> dict[str, Any]:
        """The kept columns of lines that were parsed, to the letter."""
        places = [self._layout.names.index(name) for name in self.columns]
        lines = [line.rstrip("\r") for line in self._text(text).split("\n") if line.strip()]
        rows = list(csv.reader(lines, delimiter=self._delimiter))
        if len(rows) != len(lines):  # a quote that is never closed takes what follows for its own
            rows = [_fields(line, self._delimiter) for line in lines]
        columns: dict[str, Any] = {}
        for name, place in zip(self.columns, places, strict=True):
            columns[name] = np.empty(len(rows), object)
            columns[name][:] = [row[place] for row in rows]
        return columns

    def _text(self, line: bytes) -> str:
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged(f"it is not UTF-8 text ({error})") from None

    def _damaged(self, reason: str) -> FileFormatError:
        if self._source is not None:
            return self._source.damaged(self.format, reason)
        return super()._damaged(reason)


def _delimiter(line: str) -> str:
    """Tab or semicolon if the line holds one outside quotes, else comma."""
    outside = "".join(line.split('"')[::2])
    return next((mark for mark in "\t;" if mark in outside), ",")


def _fields(line: str, delimiter: str) -> list[str]:
    if "\r" in line:
        raise csv.Error("a carriage return stands alone; end lines with a line feed")
    return next(csv.reader([line], delimiter=delimiter), [])


def _is_number(field: str) -> bool:
    """Whether all three parsers would take the field for a number; Python alone takes 1_000 too."""
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field and field.isascii()


def _as_slice(places: list[int]) -> slice | list[int]:
    """Consecutive places as a slice, which selects without copying."""
    run = range(places[0], places[0] + len(places)) if places else range(0)
    return slice(run.start, run.stop) if places == list(run) else places
