""".jsonl: one JSON object, or list of logits, per line, from a file or a pipe.

The keys of the first line tell what the table holds: a list of numbers is an array by its name (``logits``,
``features``, ...), a number is a column as :mod:`normscale.rows.columns` says (``logit_<class>``, ``label``). A null
is NaN, or -1 for a label. The JSON is strict: NaN and infinity are texts (:mod:`normscale.encoding.json_text`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._validate import Rows
from normscale.encoding.json_text import number_in_json, read_json, write_json
from normscale.errors import FileFormatError
from normscale.outputs import FEATURES, LOGITS
from normscale.rows.arrays import LABELS, RESERVED, can_be_name
from normscale.rows.columns import TEXT, ColumnLayout
from normscale.rows.format import TableFormat, register_format
from normscale.rows.reader import KEPT, Block, ReadOptions, TableReader
from normscale.rows.source import ByteSource
from normscale.rows.text_lines import LineReader, LineSink
from normscale.rows.writing import About, Columns, Sink, texts_of


@register_format
class Jsonl(TableFormat):
    """Lines of JSON."""

    name, described, suffixes = "jsonl", "a .jsonl file (one JSON object per line)", (".jsonl",)
    is_text = by_columns = prefers_lists = True
    keeps = frozenset({"arrays", "labels", "class names"})

    def begins(self, head: bytes) -> bool:
        """An object or a list, behind a byte order mark and blanks."""
        return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")

    def open(self, source: ByteSource, options: ReadOptions) -> TableReader:
        """Read the first line."""
        return JsonlReader(self, source, options)

    def sink(self, file: str, path: str, columns: Mapping[str, Any], about: About) -> Sink:
        """Write an object for each row."""
        return _JsonSink(file, path, columns, about)


class _JsonSink(LineSink):
    def write(self, columns: Columns) -> None:
        """Write an object for each row; times are texts."""
        values = [
            texts_of(one, self.columns[name]) if one.dtype.kind in "MO" else one.tolist()
            for name, one in columns.items()
        ]
        self.write_lines([write_json(dict(zip(columns, row, strict=True))) for row in zip(*values, strict=True)])


class JsonlReader(LineReader):
    """Lines of JSON from a file, or from a pipe as they come."""

    def _read_head(self) -> None:
        self._read_first_line()
        if not self._head.strip():
            raise self._damaged("there is no line with anything on it")
        first = self._record(self._head.strip(), self._head.count(b"\n") or 1)
        self._is_list = isinstance(first, list)
        record: dict[str, Any] = {LOGITS: first} if isinstance(first, list) else first
        self._lists = {key: len(value) for key, value in record.items() if self._is_array(key, value)}
        for name, width in self._lists.items():
            self.widths[name], self.array_columns[name] = width, [name]
        taken = {*self._lists, *self._keep}
        plain = [key for key, value in record.items() if key not in taken and _is_scalar(value)]
        layout = ColumnLayout(self.path, plain, beside_lists=bool(self._lists))
        for name, places in ((LOGITS, layout.logits), (FEATURES, layout.features)):
            if places and name not in self._lists:
                self.widths[name], self.array_columns[name] = len(places), [plain[i] for i in places]
                self.class_names = layout.class_names if name == LOGITS else self.class_names
        self._label = None if layout.label is None else plain[layout.label]
        self.has_labels = self._label is not None
        if not self.widths or self.widths.get(LOGITS, 2) < 2:
            raise self._layout_error(
                f"every line must hold logits of two or more classes; the first has the keys "
                f"{', '.join(map(repr, record))}."
            )
        self.columns = {key: _as_column([record[key]]).dtype for key in self._keep if key in record}
        self.columns_there = tuple(record)

    def _is_array(self, key: str, value: object) -> bool:
        return (
            isinstance(value, list)
            and key not in self._keep
            and key not in RESERVED
            and can_be_name(key)
            and bool(value)
            and all(_is_scalar(one) for one in value)
        )

    def _blocks(self) -> Iterator[Block]:
        line = 1
        for text in self._line_blocks():
            records = []
            for number, one in enumerate(text.split(b"\n"), start=line):
                if one.strip():
                    records.append((number, self._record(one, number)))
            line += text.count(b"\n")
            if records:
                yield self._block(records)

    def _record(self, text: bytes, line: int) -> Any:
        try:
            record = read_json(text, words=False)
        except ValueError as error:
            raise FileFormatError(f"{self.path}, line {line}: not JSON ({error}). Is the line cut off?") from None
        if not isinstance(record, (dict, list)):
            raise FileFormatError(f"{self.path}, line {line}: expected an object or a list; got {str(record)[:40]!r}.")
        return record

    def _block(self, records: list[tuple[int, Any]]) -> Block:
        block: Block = {}
        for name, width in self.widths.items():
            keys = self.array_columns[name]
            rows = []
            for line, record in records:
                values = record if self._is_list else self._get(record, keys, line, name in self._lists)
                if values is None:
                    values = [None] * width  # a row that is missing, as nulls in other tables are
                if not isinstance(values, list) or len(values) != width:
                    raise FileFormatError(f"{self.path}, line {line}: {name} must be {width} numbers, as in the first.")
                rows.append(values)
            block[name] = self._numbers(rows, records, name)
        if self._label is not None:
            labels = [-1 if record.get(self._label) is None else record[self._label] for _, record in records]
            if any(isinstance(label, str) for label in labels):
                block[LABELS] = np.array(labels, object)
            else:
                block[LABELS] = self._numbers([[label] for label in labels], records, LABELS)[:, 0]
        for key, dtype in self.columns.items():
            try:
                block[KEPT + key] = _as_column([record.get(key) for _, record in records], dtype)
            except ValueError:
                line, odd = next((n, one.get(key)) for n, one in records if not _fits(one.get(key), dtype))
                kind = "a number" if dtype.kind == "f" else "a whole number of at most 64 bits"
                raise FileFormatError(
                    f"{self.path}, line {line}: {key!r} is {write_json(odd)[:40]}, and in the first lines {kind}; a "
                    "column that is kept is of one kind. Write texts, or numbers with a point, in all lines."
                ) from None
        return block

    def _get(self, record: Any, keys: list[str], line: int, is_list: bool) -> Any:
        try:
            return record[keys[0]] if is_list else [record[key] for key in keys]
        except (KeyError, TypeError, IndexError):
            raise FileFormatError(
                f"{self.path}, line {line}: {', '.join(keys[:3])} must be there in every line, as in the first."
            ) from None

    def _numbers(self, rows: list[list[Any]], records: list[tuple[int, Any]], name: str) -> Rows:
        try:
            array = np.array(rows)
            if array.dtype.kind in "fiu":
                return array.astype(np.float64)
            return np.array([[number_in_json(value) for value in row] for row in rows], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            for (line, _), row in zip(records, rows, strict=True):
                wrong = [value for value in row if not _is_scalar(value) or not _is_number(value)]
                if wrong:
                    raise FileFormatError(
                        f"{self.path}, line {line}: expected numbers in {name}, got {str(wrong[0])[:40]!r}."
                    ) from None
            raise


def _fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a value can stand in a kept column of that kind."""
    try:
        _as_column([value], dtype)
    except ValueError:
        return False
    return True


def _is_number(value: Any) -> bool:
    try:
        number_in_json(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, (int, float, str))


def _as_column(values: Sequence[Any], dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    """Values as numbers where all of them are, as texts otherwise; what is missing is an empty text."""
    if dtype is None:
        array = np.array(values) if all(type(value) in (int, float) for value in values) else np.empty(0, object)
        dtype = array.dtype if array.dtype.kind in "if" and array.size else TEXT
    if dtype == TEXT:
        texts = np.empty(len(values), object)
        texts[:] = texts_of(np.fromiter(values, object, len(values)))
        return texts
    try:
        numbers = np.array(values)
        if numbers.ndim == 1 and numbers.dtype.kind in "iuf" and np.can_cast(numbers.dtype, dtype):
            return numbers.astype(dtype)
        if dtype.kind == "f":
            return np.array([np.nan if value is None else float(value) for value in values], dtype)
    except (ValueError, OverflowError, TypeError):
        pass
    raise ValueError(f"these are not all {'numbers' if dtype.kind == 'f' else 'whole numbers of 64 bits'}")
