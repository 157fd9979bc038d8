""".parquet: a column per class and columns of lists; read in batches, so that any number of rows will do.

The columns are chosen as :mod:`normscale.tables.columns` says, and those of logits must be floating-point
unless their names begin with ``logit_``. A column ``logits`` of lists holds whole rows of logits instead. A null is
NaN, and in the labels "not known". The network's head, and class names where no column has them, are in the file's
metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from normscale._validate import Rows
from normscale.encoding.json_text import read_json
from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import FEATURES, LOGITS, check_name
from normscale.tables.arrays import CLASS_NAMES, LABELS, RESERVED, checked_head
from normscale.tables.arrow import need_arrow
from normscale.tables.columns import LOGIT, ColumnLayout
from normscale.tables.head_text import HEAD, head_from_text
from normscale.tables.kept_columns import KEPT, TEXT, as_column
from normscale.tables.reader import DAMAGE, Block, TableReader

# Arrow reads a whole column chunk at once unless it has a buffer size; a row group may hold gigabytes.
_BUFFER_BYTES = 1 << 22
_BATCH_ROWS = 1 << 16  # Arrow's own copies are of this size, not of a chunk's
_WIDEST = 1 << 24  # numbers in a list: more in a row is a mistake


class ParquetReader(TableReader):
    """Batches of a Parquet file, turned into matrices."""

    format = "parquet"
    _row_groups: range | None = None
    """Which parts of the file are read; None: all."""

    def _opened(self, **options: Any) -> Any:
        return self._parquet.ParquetFile(self._file, **options)

    def _read_head(self) -> None:
        self._arrow = need_arrow("pyarrow", self.path)
        self._parquet = need_arrow("pyarrow.parquet", self.path)
        self._damage = (*DAMAGE, self._arrow.ArrowException)
        self._columns: dict[str, list[str]] = {}
        """Array -> the columns that make it: one column of lists, or several of numbers."""
        self._lists: set[str] = set()
        with self._opened() as file:
            self._schema = file.schema_arrow
            self.n_rows = file.metadata.num_rows
            names: list[str] = self._schema.names
            if len(set(names)) < len(names):
                raise self._layout_error("two columns have the same name; every column needs its own.")
            for name in names:
                if self._is_list(name) and name not in self._keep:
                    self._read_list_head(file, name)
            plain = [name for name in names if not self._is_list(name)]
            self.columns_there = tuple(plain)
            self.columns = {name: self._kept_dtype(file, name) for name in self._keep if name in plain}
            self._read_column_head(plain)
        if not self._columns:
            raise self._layout_error(
                f"it holds no array of numbers among the columns {', '.join(map(repr, names[:8]))}."
            )
        # logits first, features next, as everywhere
        self.widths = dict(sorted(self.widths.items(), key=lambda item: (item[0] != LOGITS, item[0] != FEATURES)))
        self._read_metadata(self._schema.metadata or {})

    def _kept_dtype(self, file: Any, name: str) -> np.dtype[Any]:
        """Numbers stay numbers; what may be missing, or is no number, is kept as text."""
        kind, types = self._schema.field(name).type, self._arrow.types
        if not (types.is_floating(kind) or types.is_integer(kind)):
            return TEXT
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype if types.is_floating(kind) or not self._may_be_null(file, name) else TEXT

    @staticmethod
    def _may_be_null(file: Any, name: str) -> bool:
        """Whether a column may hold a null, as far as the file's statistics know."""
        place = [file.schema.column(i).path for i in range(len(file.schema))].index(name)  # a struct has several leaves
        for group in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(group).column(place).statistics
            if statistics is None or not statistics.has_null_count or statistics.null_count:
                return True
        return False

    def _is_list(self, name: str) -> bool:
        kind, types = self._schema.field(name).type, self._arrow.types
        return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))

    def _read_list_head(self, file: Any, name: str) -> None:
        """Take a column of lists for an array; one that cannot be is left out, unless it must be one."""
        try:
            if name in RESERVED:
                raise self._layout_error(f"column {name!r} holds lists, and that name has another meaning.")
            try:
                check_name(name)
            except InvalidInput as error:
                raise self._layout_error(str(error)) from None
            kind, types = self._schema.field(name).type.value_type, self._arrow.types
            if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
                raise self._layout_error(f"column {name!r} holds lists of {kind}; expected lists of numbers.")
            width, least = self._list_width(file, name), 2 if name == LOGITS else 1
            if width < least:
                what = "n_classes" if name == LOGITS else "width"
                raise self._layout_error(f"{name} must be lists of {what} >= {least} numbers; the first has {width}.")
            if width > _WIDEST:
                raise self._layout_error(f"{name} has lists of {width} numbers; at most {_WIDEST} are read.")
        except FileFormatError as error:
            if name in (LOGITS, FEATURES, *(self._wanted or ())):
                raise
            self.left_out[name] = str(error)
            return
        self.widths[name] = width
        column = self._schema.field(name)
        may_be_null = column.nullable or column.type.value_field.nullable
        self._dtypes[name] = _float_dtype(kind) if may_be_null else np.dtype(kind.to_pandas_dtype())
        self._columns[name] = [name]
        self._lists.add(name)

    def _list_width(self, file: Any, name: str) -> int:
        """The length of the lists: written in the type, or else that of the first."""
        kind = self._schema.field(name).type
        if self._arrow.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for batch in file.iter_batches(batch_size=64, columns=[name], use_threads=False):
            known = batch.column(0).drop_null()
            if len(known):
                return len(known[0].as_py())
        raise self._layout_error(f"it has no rows, so the number of {name} is not known.")

    def _read_column_head(self, names: list[str]) -> None:
        types = self._arrow.types
        layout = ColumnLayout(self.path, names, beside_lists=bool(self._lists), leave_out=self._keep)
        for array, places in ((LOGITS, layout.logits), (FEATURES, layout.features)):
            if not places or array in self._lists:
                continue
            columns = [names[i] for i in places]
            for name in columns:
                kind = self._schema.field(name).type
                marked = name.startswith(LOGIT) or array == FEATURES
                if not (types.is_floating(kind) or (marked and types.is_integer(kind))):
                    raise self._layout_error(
                        f"column {name!r} holds {kind}, and logits are floating-point numbers. Where it is no "
                        "logit, leave it out or name the columns of logits logit_<class>."
                    )
            self._columns[array] = columns
            self.widths[array] = len(columns)
            self._dtypes[array] = np.result_type(*(_float_dtype(self._schema.field(name).type) for name in columns))
            if array == LOGITS:
                self.class_names = layout.class_names
        if layout.label is not None:
            self._label = names[layout.label]
            self.has_labels = True
            kind = self._schema.field(self._label).type
            if not types.is_integer(kind):
                raise self._layout_error(
                    f"column {self._label!r} holds {kind}; labels are whole numbers, -1 if not known."
                )

    def _read_metadata(self, metadata: dict[bytes, bytes]) -> None:
        if HEAD in metadata:
            weight, bias = head_from_text(self.path, metadata[HEAD])
            self.head = checked_head(self.path, weight, bias, self.widths)
        try:
            names = read_json(metadata.get(CLASS_NAMES.encode(), b"null"))
        except ValueError:
            return  # somebody else's key of the same name
        if isinstance(names, list) and self.class_names is None:
            self.class_names = tuple(map(str, names))

    def _blocks(self) -> Iterator[Block]:
        wanted = [column for name in self.widths for column in self._columns[name]]
        wanted += [self._label] if self.has_labels else []
        wanted += [name for name in self.columns if name not in wanted]
        buffer = max(1 << 14, _BUFFER_BYTES // len(wanted))
        first_row = 0
        with self._opened(buffer_size=buffer, pre_buffer=False) as file:
            batches = file.iter_batches(
                min(self.chunk_rows, _BATCH_ROWS), row_groups=self._row_groups, columns=wanted, use_threads=False
            )
            for batch in batches:
                columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
                block = {name: self._matrix(columns, name, first_row) for name in self.widths}
                if self.has_labels:
                    block[LABELS] = self._labels(columns[self._label])
                for name, dtype in self.columns.items():
                    block[KEPT + name] = self._kept(columns[name], dtype)
                first_row += batch.num_rows
                yield block

    def _matrix(self, columns: dict[str, Any], array: str, first_row: int) -> Rows:
        """The columns of an array side by side, or its lists below each other, in memory of its own."""
        names = self._columns[array]
        if array in self._lists:
            return self._list_rows(columns[array], array, self.widths[array], first_row)
        matrix = np.empty((len(columns[names[0]]), len(names)), self._dtypes[array])
        for j, name in enumerate(names):
            matrix[:, j] = columns[name].to_numpy(zero_copy_only=False)  # a null is NaN
        return matrix

    def _list_rows(self, column: Any, name: str, width: int, first_row: int) -> Rows:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        if not self._arrow.types.is_fixed_size_list(column.type):
            lengths = column.value_lengths().fill_null(width).to_numpy(zero_copy_only=False)
            if (lengths != width).any():
                row = int(np.argmax(lengths != width))
                raise InvalidInput(
                    f"{self.path}: {name} row {first_row + row} has {lengths[row]} numbers, the first has "
                    f"{width}; all rows must have the same length."
                )
        values = column.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(-1, width)  # a null is NaN
        if not missing.any():
            return np.array(values, self._dtypes[name])
        rows = np.full((len(column), width), np.nan, self._dtypes[name])
        rows[~missing] = values
        return rows

    def _labels(self, column: Any) -> Rows:
        """A label that is null is not known."""
        labels: Rows = column.fill_null(-1).to_numpy(zero_copy_only=False)
        return labels

    def _kept(self, column: Any, dtype: np.dtype[Any]) -> Rows:
        """A column that is carried along; texts where it is none of numbers."""
        if dtype != TEXT:
            numbers: Rows = column.to_numpy(zero_copy_only=False)
            return numbers.astype(dtype, copy=False)
        try:
            texts = column.cast(self._arrow.string()).to_pylist()
        except self._arrow.ArrowException:  # lists and the like have no text of their own
            texts = [None if value is None else str(value) for value in column.to_pylist()]
        return as_column(texts, TEXT)


def _float_dtype(kind: Any) -> np.dtype[Any]:
    """The dtype to read a column of numbers as; whole numbers become float64."""
    dtype = np.dtype(kind.to_pandas_dtype())
    return dtype if dtype.kind == "f" else np.dtype(np.float64)
