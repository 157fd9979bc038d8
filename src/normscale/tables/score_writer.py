"""Write scores as they are made: a table of a few columns, appended to chunk by chunk.

A file appears whole when the writer is closed, and not at all when an error comes before that.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from normscale._atomic import atomic_path
from normscale._validate import to_numpy
from normscale.encoding.json_text import write_json
from normscale.errors import InvalidInput
from normscale.tables.arrow import need_arrow
from normscale.tables.compressed import create_text
from normscale.tables.formats import format_by_suffix
from normscale.tables.kept_columns import TEXT
from normscale.tables.table_writer import check_folder
from normscale.tables.write_npz import write_npz

SCORE_COLUMNS: Mapping[str, DTypeLike] = {"score": np.float64, "is_ood": np.bool_, "predicted": np.int64}
"""The columns that need no dtype when named: the score (higher is more OoD), whether it is flagged, the class."""

_ROW_GROUP = 1 << 16  # rows that a Parquet file gathers: a row group of a few rows would cost more than they


class ScoreWriter(ABC):
    """A table of scores that is being written; made by :func:`open_score_writer`.

    Use it in a ``with`` statement, or call :meth:`close` at the end, or :meth:`discard` to leave no trace.
    """

    def __init__(self, path: str, columns: Mapping[str, np.dtype[Any]]) -> None:
        """Prepare to write ``columns``; a file is made beside ``path``."""
        self.path = path
        self.columns = dict(columns)
        self.n_rows = 0
        self._open = True
        self._atomic: AbstractContextManager[str] | None = None
        self._file = path
        if path != "-":
            check_folder(path)
            self._atomic = atomic_path(path)
            self._file = self._atomic.__enter__()
        try:
            self._begin()
        except BaseException:
            self._leave()
            raise

    def append(self, **columns: ArrayLike) -> None:
        """Add rows: one array of shape (n,) for each column."""
        if not self._open:
            raise InvalidInput(f"{self.path} is closed; open another writer.")
        if set(columns) != set(self.columns):
            raise InvalidInput(
                f"append needs the columns {', '.join(self.columns)}; got {', '.join(columns) or 'none'}."
            )
        arrays = {}
        n_rows = None
        for name, dtype in self.columns.items():
            array = np.asarray(columns[name], object) if dtype == TEXT else to_numpy(columns[name], name)
            if array.ndim != 1 or (n_rows is not None and array.shape[0] != n_rows):
                raise InvalidInput(f"{name} must have shape ({'n' if n_rows is None else n_rows},); got {array.shape}.")
            n_rows = array.shape[0]
            arrays[name] = array.astype(dtype, copy=True)
        if n_rows:
            self._write(arrays)
            self.n_rows += n_rows

    @abstractmethod
    def _begin(self) -> None:
        """Open ``self._file`` and write its head."""

    @abstractmethod
    def _write(self, columns: dict[str, Any]) -> None:
        """Take checked columns of one length, at least one row."""

    @abstractmethod
    def _finish(self) -> None:
        """Write what is left and close the file."""

    @abstractmethod
    def _abandon(self) -> None:
        """Close the file without caring for its content."""

    def close(self) -> None:
        """Finish the table and put it in its place. Closing twice does nothing."""
        if not self._open:
            return
        try:
            self._finish()
        except BaseException:
            self.discard()
            raise
        self._open = False
        if self._atomic is not None:
            self._atomic.__exit__(None, None, None)

    def discard(self) -> None:
        """Stop; an older file of that name stays as it was."""
        if not self._open:
            return
        self._open = False
        try:
            self._abandon()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Remove the temporary file."""
        if self._atomic is not None:
            self._atomic.__exit__(_Discarded, _Discarded(), None)

    def __enter__(self) -> ScoreWriter:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the table, or discard it when the body raised."""
        if kind is None:
            self.close()
        else:
            self.discard()


class _Discarded(Exception):
    """Tells the atomic file to go away; never seen by callers."""


def open_score_writer(
    path: str | os.PathLike[str], columns: Sequence[str] | Mapping[str, DTypeLike] = ("score",)
) -> ScoreWriter:
    """Start a table of scores.

    Parameters
    ----------
    path : str or path
        Ending in .npz, .npy (which keeps the score alone), .safetensors, .parquet (needs
        ``normscale[arrow]``), .csv, .tsv or .jsonl (also compressed: .csv.gz); or ``-`` for CSV on standard output.
        Text and Parquet are written as the rows come; the others are gathered in memory, 8 bytes for each score,
        until the writer is closed.
    columns : sequence of str, or mapping from name to dtype
        A dtype of object stands for texts. Names alone must be among
        ``score`` (float64), ``is_ood`` (bool) and ``predicted`` (int64).

    Examples
    --------
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "scores.csv")
    >>> with open_score_writer(path, ["score", "is_ood"]) as writer:
    ...     writer.append(score=[0.5, -1.25], is_ood=[True, False])
    ...     writer.append(score=[3.0], is_ood=[True])
    >>> with open(path) as file:
    ...     print(file.read())
    score,is_ood
    0.5,true
    -1.25,false
    3.0,true
    <BLANKLINE>
    """
    name = os.fspath(path)
    if not isinstance(columns, Mapping):
        unknown = [entry for entry in columns if entry not in SCORE_COLUMNS]
        if unknown:
            raise InvalidInput(
                f"columns must be among {', '.join(SCORE_COLUMNS)}; got {', '.join(map(repr, unknown))}. "
                "Give other columns as a mapping from name to dtype."
            )
        columns = {entry: SCORE_COLUMNS[entry] for entry in columns}
    dtypes = {entry: np.dtype(dtype) for entry, dtype in columns.items()}
    if not dtypes or any(dtype.kind not in "fiub" and dtype != TEXT for dtype in dtypes.values()):
        raise InvalidInput(f"columns must be one or more columns of numbers, or of texts (object); got {columns!r}.")
    kind = "csv" if name == "-" else format_by_suffix(name)
    if kind in ("csv", "tsv"):
        return _CsvScores(name, dtypes, "\t" if kind == "tsv" else ",")
    if kind == "jsonl":
        return _JsonScores(name, dtypes)
    if kind == "safetensors" and TEXT in dtypes.values():
        raise InvalidInput(f"{name}: a .safetensors file holds no texts. Write .parquet, .csv, .jsonl or .npz instead.")
    if kind == "parquet":
        return _ParquetScores(name, dtypes)
    return _GatheredScores(name, dtypes, kind)


class _Lines(ScoreWriter):
    """Lines of text, written as they come."""

    def _begin(self) -> None:
        self._text: IO[str] = sys.stdout if self.path == "-" else create_text(self._file, named=self.path)

    def _write_lines(self, lines: list[str]) -> None:
        self._text.write("\n".join(lines) + "\n")
        if self.path == "-":
            self._text.flush()  # whoever reads the pipe sees the rows now

    def _finish(self) -> None:
        if self.path == "-":
            self._text.flush()
        else:
            self._text.close()

    def _abandon(self) -> None:
        if self.path != "-":
            self._text.close()


class _CsvScores(_Lines):
    """A line of fields for each row."""

    def __init__(self, path: str, columns: Mapping[str, np.dtype[Any]], delimiter: str) -> None:
        self._delimiter = delimiter
        super().__init__(path, columns)

    def _begin(self) -> None:
        super()._begin()
        self._text.write(self._delimiter.join(map(self._quoted, self.columns)) + "\n")

    def _write(self, columns: dict[str, Any]) -> None:
        fields = []
        for array in columns.values():
            if array.dtype.kind == "b":
                fields.append(np.where(array, "true", "false").tolist())
            elif array.dtype == TEXT:
                fields.append(list(map(self._quoted, array.tolist())))
            else:
                fields.append(list(map(repr, array.tolist())))
        self._write_lines(fields[0] if len(fields) == 1 else list(map(self._delimiter.join, zip(*fields, strict=True))))

    def _quoted(self, text: str) -> str:
        """A text as a field: in quotes where it would be taken for more than one."""
        if not any(mark in text for mark in (self._delimiter, '"', "\n", "\r")):
            return text
        return '"' + text.replace('"', '""') + '"'


class _JsonScores(_Lines):
    """A JSON object for each row."""

    def _write(self, columns: dict[str, Any]) -> None:
        values = [array.tolist() for array in columns.values()]
        self._write_lines([write_json(dict(zip(columns, row, strict=True))) for row in zip(*values, strict=True)])


class _ParquetScores(ScoreWriter):
    """Row groups of one size, each written when it is full."""

    def _begin(self) -> None:
        self._arrow = need_arrow("pyarrow", self.path)
        parquet = need_arrow("pyarrow.parquet", self.path)
        fields = [
            (name, self._arrow.string() if dtype == TEXT else self._arrow.from_numpy_dtype(dtype))
            for name, dtype in self.columns.items()
        ]
        self._schema = self._arrow.schema(fields)
        self._writer = parquet.ParquetWriter(self._file, self._schema)
        self._waiting: list[dict[str, Any]] = []
        self._n_waiting = 0

    def _write(self, columns: dict[str, Any]) -> None:
        self._waiting.append(columns)
        self._n_waiting += len(next(iter(columns.values())))
        if self._n_waiting >= _ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            columns = [np.concatenate([part[name] for part in self._waiting]) for name in self.columns]
            arrays = [
                self._arrow.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)
            ]
            self._writer.write_table(self._arrow.table(arrays, schema=self._schema))
            self._waiting, self._n_waiting = [], 0

    def _finish(self) -> None:
        self._flush()
        self._writer.close()

    def _abandon(self) -> None:
        self._writer.close()


class _GatheredScores(ScoreWriter):
    """Formats whose head holds the number of rows: gathered, and written at the end."""

    def __init__(self, path: str, columns: Mapping[str, np.dtype[Any]], kind: str) -> None:
        self._kind = kind
        super().__init__(path, columns)

    def _begin(self) -> None:
        names = list(self.columns)
        if self._kind == "npy":
            names = ["score"] if "score" in names else names[:1]
        self._parts: dict[str, list[Any]] = {name: [] for name in names}

    def _write(self, columns: dict[str, Any]) -> None:
        for name, parts in self._parts.items():
            parts.append(columns[name])

    def _finish(self) -> None:
        arrays = {
            name: np.concatenate([np.empty(0, self.columns[name]), *parts]) for name, parts in self._parts.items()
        }
        if self._kind == "safetensors":
            from safetensors.numpy import save_file

            save_file(arrays, self._file)
            return
        if self._kind == "npz":
            texts = {name: array.astype(np.str_) for name, array in arrays.items() if array.dtype == TEXT}
            write_npz(self._file, {**arrays, **texts})
            return
        with open(self._file, "wb") as file:
            np.save(file, next(iter(arrays.values())), allow_pickle=False)

    def _abandon(self) -> None:
        self._parts = {}
