""".csv and .tsv: one row of numbers per line, with or without a header, from a file or a pipe.

The first line is a header if any of its fields is not a number, or if its fields are 0, 1, 2, ... (what
pandas writes above a matrix). Fields are separated by commas, or by tabs or semicolons if the first line
holds any; they may be quoted, but hold no line breaks. Numbers are read as float64, kept columns as texts.

pyarrow parses where it is installed and there is enough text to be worth its import. Python parses all else, and any
block that pyarrow refuses: it decides what counts as a number, and finds the line to blame.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from normscale.errors import FileFormatError, InvalidInput
from normscale.rows.columns import LABELS, TEXT, logit_columns
from normscale.rows.files import need_arrow, register_format
from normscale.rows.reader import KEPT, Block, Columns, TableReader
from normscale.rows.streams import GZIP, OwningGzip, first_line, whole_lines
from normscale.rows.writing import Sink, texts_of

_ARROW_PAYS = 1 << 20  # bytes of text after which importing pyarrow is made up for
_Parsed = tuple[dict[int, NDArray[Any]], dict[int, NDArray[Any]]]
"""Columns of numbers and columns of texts, by their places in a line."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextSink(Sink):
    """Lines of text, compressed where the name says so, or on standard output."""

    def open(self) -> None:
        self._text: IO[str] = sys.stdout
        if self.path != "-":
            raw: Any = open(self.file, "wb")  # noqa: SIM115 - closed by finish
            stream = OwningGzip(raw, "wb") if self.path.lower().endswith(".gz") else raw
            self._text = io.TextIOWrapper(stream, encoding="utf-8", newline="")

    def finish(self) -> None:
        self._text.flush() if self.path == "-" else self._text.close()

    abandon = finish


class CsvSink(TextSink):
    """A line of names, and one for each row, written as they come."""

    def open(self) -> None:
        for name in self.columns:
            if "\n" in name or "\r" in name:
                raise InvalidInput(
                    f"{self.path}: the name {name!r} holds a line break, which a .csv or .tsv file cannot keep. "
                    "Write .parquet, .npz or .safetensors instead."
                )
        super().open()
        self.delimiter = "\t" if _is_tsv(self.path) else ","
        self._text.write(self.delimiter.join(map(self._quoted, self.columns)) + "\n")

    def write(self, columns: Columns) -> None:
        fields = []
        for name, array in columns.items():
            if array.dtype.kind == "b":
                fields.append(np.where(array, "true", "false").tolist())
            elif array.dtype.kind in "fiu":
                fields.append(list(map(repr, array.tolist())))
            else:
                fields.append(list(map(self._quoted, texts_of(array, self.columns[name]))))
        self._text.write("\n".join(map(self.delimiter.join, zip(*fields, strict=True))) + "\n")
        if self.path == "-":
            self._text.flush()  # whoever reads the pipe sees them now

    def _quoted(self, text: str) -> str:
        """A text as a field: in quotes where it would be taken for more than one, or show another delimiter."""
        if not any(mark in text for mark in (self.delimiter, '"', "\n", "\r", ";", "\t")):
            return text
        return '"' + text.replace('"', '""') + '"'


class TextReader(TableReader):
    """Base class of formats that are lines of text, from a file or a pipe, compressed by gzip or not."""

    is_text = streams = by_columns = True

    def _lines(self) -> Any:
        stream = self.source.open()
        if self.source.once:
            return stream
        is_compressed = stream.read(2) == GZIP
        stream.seek(0)
        return OwningGzip(stream) if is_compressed else stream

    def _line_blocks(self, skipped: int) -> Iterator[bytes]:
        """The bytes behind the first ``skipped``, cut behind line breaks; the last block may lack one."""
        with self._lines() as stream:
            stream.read(skipped)
            yield from whole_lines(stream.read1 if self.source.once else stream.read)


@register_format
class Csv(TextReader):
    """Fields between commas, or what the first line or the file's name shows."""

    name, described, suffixes = "csv", "a .csv file (one row of numbers per line)", (".csv", ".tsv")
    keeps, sink = frozenset({"labels", "class names"}), CsvSink

    def _read_head(self) -> None:
        with self._lines() as stream:
            self._head, self._rest = first_line(getattr(stream, "read1", stream.read))
        if not self._head.strip():
            raise self._damaged("there is no line with anything on it")
        text = self._decoded(self._head.removeprefix(_BYTE_ORDER_MARK)).strip("\r\n")
        outside = "\t" if _is_tsv(self.path) else "".join(text.split('"')[::2])  # of quotes
        self._delimiter = next((mark for mark in "\t;" if mark in outside), ",")
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
        place_of = {name: i for i, name in enumerate(self._names)}
        arrays = {name: [place_of[column] for column in self.array_columns[name]] for name in self.widths}
        numbers = sorted({place for places in arrays.values() for place in places})
        kept = {KEPT + name: place_of[name] for name in self.columns}
        kept |= {LABELS: self._layout.label} if self._layout.label is not None else {}
        texts = sorted(set(kept.values()))
        line = 1 + (self._head.count(b"\n") if self._has_header else 0)
        mark = len(_BYTE_ORDER_MARK) if self._head.startswith(_BYTE_ORDER_MARK) else 0
        seen = 0
        for text in self._line_blocks(len(self._head) if self._has_header else mark):
            seen += len(text)
            if text.strip():
                values, words = self._parse(text, numbers, texts, line, seen)
                block = {name: np.stack([values[place] for place in places], axis=1) for name, places in arrays.items()}
                yield block | {name: words[place] for name, place in kept.items()}
            line += text.count(b"\n")

    def _parse(self, text: bytes, numbers: list[int], texts: list[int], line: int, seen: int) -> _Parsed:
        """The numbers of some columns of some whole lines, and the texts of others, to the letter; by their places."""
        found = None
        alone = b"\r" in text and text.count(b"\r") != text.count(b"\r\n")  # pyarrow takes any for a line break
        if seen > _ARROW_PAYS and has_arrow() and not alone and b"(" not in text:  # it takes nan(x) for a number
            found = self._parse_arrow(text, numbers, texts)
        return self._parse_slowly(text, numbers, texts, line) if found is None else found

    def _parse_arrow(self, text: bytes, numbers: list[int], texts: list[int]) -> _Parsed | None:
        arrow, arrow_csv = need_arrow("pyarrow", self.path), need_arrow("pyarrow.csv", self.path)
        kinds = dict.fromkeys(map(str, texts), arrow.string()) | dict.fromkeys(map(str, numbers), arrow.float64())
        names = list(map(str, range(len(self._names))))
        try:
            if set(texts) & set(numbers):
                return None
            table = arrow_csv.read_csv(
                arrow.BufferReader(text),
                read_options=arrow_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
                parse_options=arrow_csv.ParseOptions(delimiter=self._delimiter),
                convert_options=arrow_csv.ConvertOptions(column_types=kinds, include_columns=[*kinds], null_values=[]),
            )
        except arrow.ArrowException:
            return None
        if b'"' in text and table.num_rows != sum(bool(line.strip()) for line in text.splitlines()):
            return None  # in quotes it lets a field go on over the end of its line
        values, words = ({place: table.column(str(place)).to_numpy() for place in some} for some in (numbers, texts))
        return values, words

    def _parse_slowly(self, text: bytes, numbers: list[int], texts: list[int], line: int) -> _Parsed:
        rows = []
        for number, one in enumerate(self._decoded(text).split("\n"), start=line):
            if not one.strip():
                continue
            try:
                fields = _fields(one.rstrip("\r"), self._delimiter)
            except csv.Error as error:
                raise FileFormatError(f"{self.path}, line {number}: {error}.") from None
            if len(fields) != len(self._names):
                raise FileFormatError(
                    f"{self.path}, line {number}: expected {len(self._names)} fields, got "
                    f"{len(fields)}. Is the line cut off, or are decimal commas used?"
                )
            for i in numbers:
                if not _is_number(fields[i]):
                    shown = repr(fields[i][:40]) if fields[i].strip() else "an empty field"
                    raise FileFormatError(
                        f"{self.path}, line {number}: expected a number in column {i} ({self._names[i]!r}), "
                        f"got {shown}. Drop or fill the line; if the column is no logit, name those that are "
                        "logit_<class>."
                    )
            rows.append(fields)
        values = {i: np.array([float(row[i]) for row in rows]) for i in numbers}
        return values, {i: np.array([row[i] for row in rows], TEXT) for i in texts}

    def _decoded(self, line: bytes) -> str:
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged(f"it is not UTF-8 text ({error})") from None


def _is_tsv(path: str) -> bool:
    return path.lower().partition("?")[0].removesuffix(".gz").endswith(".tsv")


def has_arrow() -> bool:
    """Whether pyarrow is installed, found out without importing it."""
    return importlib.util.find_spec("pyarrow") is not None


def _fields(line: str, delimiter: str) -> list[str]:
    if "\r" in line:
        raise csv.Error("a carriage return stands alone; end lines with a line feed")
    return next(csv.reader([line], delimiter=delimiter), [])


def _is_number(field: str) -> bool:
    """Whether both parsers would take the field for a number; Python alone takes 1_000 too."""
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field and field.isascii()
