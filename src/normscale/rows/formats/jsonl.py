""".jsonl: one JSON object, or list of logits, per line, from a file or a pipe.

The keys of the first line tell what the table holds. A list of numbers is an array by its name (``logits``,
``features``, ...), a number is a column as :mod:`normscale.rows.columns` says (``logit_<class>``, ``label``). A null
is NaN, or -1 for a label. The JSON is strict: NaN and infinity are texts (:mod:`normscale.encoding.json_text`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._validate import Rows
from normscale.encoding.json_text import number_in_json, read_json, write_json
from normscale.errors import FileFormatError
from normscale.outputs import LOGITS
from normscale.rows.arrays import RESERVED, can_be_name
from normscale.rows.columns import LABELS, TEXT
from normscale.rows.format import register_format
from normscale.rows.reader import KEPT, Block
from normscale.rows.text_lines import LineReader, LineSink
from normscale.rows.writing import Columns, texts_of


class JsonlSink(LineSink):
    """An object for each row; times are texts."""

    def write(self, columns: Columns) -> None:
        """Write a line for each row."""
        values = [
            texts_of(one, self.columns[name]) if one.dtype.kind in "MO" else one.tolist()
            for name, one in columns.items()
        ]
        self.write_lines([write_json(dict(zip(columns, row, strict=True))) for row in zip(*values, strict=True)])


@register_format
class Jsonl(LineReader):
    """Lines of JSON from a file, or from a pipe as they come."""

    name, described, suffixes = "jsonl", "a .jsonl file (one JSON object per line)", (".jsonl",)
    prefers_lists, sink = True, JsonlSink
    keeps = frozenset({"arrays", "labels", "class names"})

    @classmethod
    def begins(cls, head: bytes) -> bool:
        """An object or a list, behind a byte order mark and blanks."""
        return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")

    def _read_head(self) -> None:
        self._read_first_line()
        first = self._record(self._head.strip(), self._head.count(b"\n") or 1)
        self._is_list = isinstance(first, list)
        record: dict[str, Any] = {LOGITS: first} if isinstance(first, list) else first
        named = {key: value for key, value in record.items() if key not in (*self._keep, *RESERVED)}
        for key, value in named.items():
            if isinstance(value, list) and value and all(map(_is_scalar, value)) and can_be_name(key):
                self.widths[key], self.array_columns[key] = len(value), [key]
        self._lists = set(self.widths)
        self._take_columns([key for key, value in record.items() if key not in self._lists and _is_scalar(value)])
        if not self.widths or self.widths.get(LOGITS, 2) < 2:
            keys = ", ".join(map(repr, record))
            raise self._layout_error(
                f"every line must hold logits of two or more classes; the first has the keys {keys}."
            )
        self.columns = {key: _as_column([record[key]]).dtype for key in self._keep if key in record}
        self.columns_there = tuple(record)

    def _blocks(self) -> Iterator[Block]:
        line = 1
        for text in self._line_blocks():
            numbered = enumerate(text.split(b"\n"), start=line)
            records = [(number, self._record(one, number)) for number, one in numbered if one.strip()]
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
            rows = [self._values(record, name, width, line) for line, record in records]
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
                line, odd = next((n, one.get(key)) for n, one in records if _fails(_as_column, [one.get(key)], dtype))
                kind = "a number" if dtype.kind == "f" else "a whole number of at most 64 bits"
                raise FileFormatError(
                    f"{self.path}, line {line}: {key!r} is {write_json(odd)[:40]}, and in the first lines {kind}; a "
                    "column that is kept is of one kind. Write texts, or numbers with a point, in all lines."
                ) from None
        return block

    def _values(self, record: Any, name: str, width: int, line: int) -> list[Any]:
        """The numbers of an array in one line, as they stand there."""
        keys = self.array_columns[name]
        try:
            whole = record if self._is_list else record[name] if name in self._lists else [record[key] for key in keys]
        except (KeyError, TypeError, IndexError):
            raise FileFormatError(
                f"{self.path}, line {line}: {', '.join(keys[:3])} must be there in every line, as in the first."
            ) from None
        values = [None] * width if whole is None else whole  # a row that is missing, as nulls in other tables are
        if not isinstance(values, list) or len(values) != width:
            raise FileFormatError(f"{self.path}, line {line}: {name} must be {width} numbers, as in the first.")
        return values

    def _numbers(self, rows: list[list[Any]], records: list[tuple[int, Any]], name: str) -> Rows:
        try:
            array = np.array(rows)
            if array.dtype.kind in "fiu":
                return array.astype(np.float64)
            return np.array([list(map(number_in_json, row)) for row in rows], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            for (line, _), row in zip(records, rows, strict=True):
                for value in row:
                    if not _is_scalar(value) or _fails(number_in_json, value):
                        raise FileFormatError(
                            f"{self.path}, line {line}: expected numbers in {name}, got {str(value)[:40]!r}."
                        ) from None
            raise


def _fails(function: Any, *arguments: Any) -> bool:
    try:
        function(*arguments)
    except (TypeError, ValueError, OverflowError):
        return True
    return False


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
    raise ValueError("these are not all numbers of one kind")
