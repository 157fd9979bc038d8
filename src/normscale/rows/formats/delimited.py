""".csv and .tsv: one row of numbers per line, with or without a header, from a file or a pipe.

The first line is a header if any of its fields is not a number, or if its fields are 0, 1, 2, ... (what
pandas writes above a matrix). Fields are separated by commas, or by tabs or semicolons if the first line
holds any; they may be quoted, but hold no line breaks. Numbers are read as float64, kept columns as texts.

Three parsers stand behind each other and give the same numbers: pyarrow where it is installed and there is
enough text to be worth its import, numpy otherwise, and a slow one for any block that those refuse, which
decides what counts as a number and finds the line to blame.
"""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from normscale._validate import FloatArray
from normscale.errors import FileFormatError, InvalidInput
from normscale.rows.columns import LABELS, TEXT, logit_columns
from normscale.rows.format import register_format
from normscale.rows.reader import KEPT, Block
from normscale.rows.source import need_arrow
from normscale.rows.text_lines import LineReader, LineSink
from normscale.rows.writing import About, Columns, texts_of

_ARROW_PAYS = 1 << 22  # bytes of text after which importing pyarrow is made up for
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CsvSink(LineSink):
    """A line of names, and one for each row."""

    delimiter = ","

    def __init__(self, file: str, path: str, columns: Mapping[str, Any], about: About) -> None:
        for name in columns:
            if "\n" in name or "\r" in name:
                raise InvalidInput(
                    f"{path}: the name {name!r} holds a line break, which a .csv or .tsv file cannot keep. "
                    "Write .parquet, .npz or .safetensors instead."
                )
        super().__init__(file, path, columns, about)
        self._text.write(self.delimiter.join(map(self._quoted, columns)) + "\n")

    def write(self, columns: Columns) -> None:
        """Write a line for each row; the text of a number is the shortest that gives the same float64."""
        fields = []
        for name, array in columns.items():
            if array.dtype.kind == "b":
                fields.append(np.where(array, "true", "false").tolist())
            elif array.dtype.kind in "fiu":
                fields.append(list(map(repr, array.tolist())))
            else:
                fields.append(list(map(self._quoted, texts_of(array, self.columns[name]))))
        self.write_lines(fields[0] if len(fields) == 1 else list(map(self.delimiter.join, zip(*fields, strict=True))))

    def _quoted(self, text: str) -> str:
        """A text as a field: in quotes where it would be taken for more than one, or show another delimiter."""
        if not any(mark in text for mark in (self.delimiter, '"', "\n", "\r", ";", "\t")):
            return text
        return '"' + text.replace('"', '""') + '"'


class TsvSink(CsvSink):
    """The same between tabs."""

    delimiter = "\t"


@register_format
class Csv(LineReader):
    """Fields between commas, or what the first line shows."""

    name, described, suffixes = "csv", "a .csv file (one row of numbers per line)", (".csv",)
    keeps, sink = frozenset({"labels", "class names"}), CsvSink

    def _find_delimiter(self, line: str) -> str:
        """Tab or semicolon if the line holds one outside quotes, else comma."""
        outside = "".join(line.split('"')[::2])
        return next((mark for mark in "\t;" if mark in outside), ",")

    def _read_head(self) -> None:
        self._read_first_line()
        text = self._decoded(self._head.removeprefix(_BYTE_ORDER_MARK)).strip("\r\n")
        self._delimiter = self._find_delimiter(text)
        try:
            fields = [field.strip() for field in _fields(text, self._delimiter)]
        except csv.Error as error:
            raise self._damaged(f"its first line cannot be split ({error})") from None
        self._has_header = not all(map(_is_number, fields)) or self._is_numbering(fields)
        if not self._has_header and len(fields) < 2:
            raise self._layout_error(
                f"every line must hold at least two numbers, one per class; the first is {text[:60]!r}."
            )
        self._names = fields if self._has_header else logit_columns(len(fields))
        self._take_columns(self._names)
        self.columns = {name: TEXT for name in self._keep if name in self._names}
        self.columns_there = tuple(self._names)

    def _is_numbering(self, fields: list[str]) -> bool:
        """Whether the first line is 0, 1, ..., which number the columns; two of them may be logits beside others."""
        if fields != [str(i) for i in range(len(fields))]:
            return False
        following = self._rest.lstrip().partition(b"\n")[0].decode("utf-8", "replace")
        return len(fields) > 2 or not all(one.strip().lstrip("-").isdigit() for one in following.split(self._delimiter))

    def _blocks(self) -> Iterator[Block]:
        label, used = self._layout.label, self._layout.used
        place_of = {name: i for i, name in enumerate(self._names)}
        texts = {KEPT + name: place_of[name] for name in self.columns}
        line = 1 + (self._head.count(b"\n") if self._has_header else 0)
        mark = len(_BYTE_ORDER_MARK) if self._head.startswith(_BYTE_ORDER_MARK) else 0
        chosen: dict[str, Any] = {}
        seen = 0
        for text in self._line_blocks(len(self._head) if self._has_header else mark):
            if not chosen and text.strip():
                if label is not None and self._labels_are_texts(text, label):
                    texts[LABELS] = label
                    used = [i for i in used if i != label]
                rank = {i: place for place, i in enumerate(used)}
                for name in self.widths:
                    chosen[name] = _as_slice([rank[place_of[column]] for column in self.array_columns[name]])
                if label in rank:
                    chosen[LABELS] = rank[label]
            seen += len(text)
            numbers = self._parse(text, used, line, seen)
            line += text.count(b"\n")
            if len(numbers):
                block: Block = {name: numbers[:, place] for name, place in chosen.items()}
                yield block | self._texts(text, texts) if texts else block

    def _labels_are_texts(self, text: bytes, label: int) -> bool:
        """Whether the first row has a label that is no number."""
        try:
            fields = _fields(self._decoded(text.strip().partition(b"\n")[0]).rstrip("\r"), self._delimiter)
        except csv.Error:
            return False
        return len(fields) == len(self._names) and not _is_number(fields[label])

    def _parse(self, text: bytes, used: list[int], first_line: int, seen: int) -> FloatArray:
        """The numbers of the used columns of some whole lines."""
        if not text.strip():
            return np.empty((0, len(used)))
        if b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
            return self._parse_slowly(text, used, first_line)  # the quick ones take any for a line break
        quick = self._parse_arrow if seen > _ARROW_PAYS and has_arrow() else self._parse_numpy
        numbers = quick(text, used)
        return self._parse_slowly(text, used, first_line) if numbers is None else numbers

    def _parse_arrow(self, text: bytes, used: list[int]) -> FloatArray | None:
        arrow, arrow_csv = need_arrow("pyarrow", self.path), need_arrow("pyarrow.csv", self.path)
        if b"(" in text:  # it takes nan(x) for a number
            return None
        names, wanted = list(map(str, range(len(self._names)))), list(map(str, used))
        try:
            table = arrow_csv.read_csv(
                arrow.BufferReader(text),
                read_options=arrow_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
                parse_options=arrow_csv.ParseOptions(delimiter=self._delimiter),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(wanted, arrow.float64()), include_columns=wanted, null_values=[]
                ),
            )
        except arrow.ArrowException:
            return None
        if b'"' in text and table.num_rows != sum(bool(line.strip()) for line in text.splitlines()):
            return None  # in quotes it lets a field go on over the end of its line
        numbers = np.empty((table.num_rows, len(wanted)))
        for j, name in enumerate(wanted):
            numbers[:, j] = table.column(name).to_numpy()
        return numbers

    def _parse_numpy(self, text: bytes, used: list[int]) -> FloatArray | None:
        if len(used) < len(self._names):
            return None  # numpy checks the length of lines only when it reads all columns
        try:
            numbers: FloatArray = np.loadtxt(
                io.BytesIO(text), np.float64, comments=None, delimiter=self._delimiter, quotechar='"',
                ndmin=2, encoding="utf-8",
            )  # fmt: skip
        except ValueError:
            return None
        return numbers if numbers.shape[1] == len(self._names) else None

    def _parse_slowly(self, text: bytes, used: list[int], first_line: int) -> FloatArray:
        label, rows = self._layout.label, []
        for number, line in enumerate(self._decoded(text).split("\n"), start=first_line):
            if not line.strip():
                continue
            try:
                fields = _fields(line.rstrip("\r"), self._delimiter)
            except csv.Error as error:
                raise FileFormatError(f"{self.path}, line {number}: {error}.") from None
            if len(fields) != len(self._names):
                raise FileFormatError(
                    f"{self.path}, line {number}: expected {len(self._names)} fields, got "
                    f"{len(fields)}. Is the line cut off, or are decimal commas used?"
                )
            if label is not None and not fields[label].strip():
                fields[label] = "-1"  # not known
            for i in used:
                if not _is_number(fields[i]):
                    shown = repr(fields[i][:40]) if fields[i].strip() else "an empty field"
                    raise FileFormatError(
                        f"{self.path}, line {number}: expected a number in column {i} ({self._names[i]!r}), "
                        f"got {shown}. Drop or fill the line; if the column is no logit, name those that are "
                        "logit_<class>."
                    )
            rows.append([float(fields[i]) for i in used])
        return np.array(rows, dtype=np.float64).reshape(-1, len(used))

    def _texts(self, text: bytes, places: Mapping[str, int]) -> dict[str, Any]:
        """Columns of lines that were parsed, to the letter."""
        lines = [line.rstrip("\r") for line in self._decoded(text).split("\n") if line.strip()]
        rows = list(csv.reader(lines, delimiter=self._delimiter))
        if len(rows) != len(lines):  # a quote that is never closed takes what follows for its own
            rows = [_fields(line, self._delimiter) for line in lines]
        columns: dict[str, Any] = {}
        for name, place in places.items():
            columns[name] = np.empty(len(rows), object)
            columns[name][:] = [row[place] for row in rows]
        return columns

    def _decoded(self, line: bytes) -> str:
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged(f"it is not UTF-8 text ({error})") from None


@register_format
class Tsv(Csv):
    """Fields between tabs. On a pipe text is taken for CSV, which may have tabs."""

    name, described, suffixes = "tsv", "a .tsv file (one row of numbers per line)", (".tsv",)
    sink = TsvSink

    def _find_delimiter(self, line: str) -> str:
        return "\t"


def has_arrow() -> bool:
    """Whether pyarrow is installed, found out without importing it."""
    return importlib.util.find_spec("pyarrow") is not None


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
