""".parquet: a column per class, or one column of lists; read in batches, so that any number of rows will do.

The columns are chosen as :mod:`normscale.tables.columns` says, and those of logits must be floating-point
unless their names begin with ``logit_``. A column ``logits`` of lists holds whole rows instead, and then
``features`` may be a column of lists too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from normscale._validate import Rows
from normscale.errors import InvalidInput
from normscale.tables.arrow import need_arrow
from normscale.tables.columns import LABEL_NAMES, LOGIT, ColumnLayout
from normscale.tables.reader import DAMAGE, Block, TableReader

# Arrow reads a whole column chunk at once unless it has a buffer size; a row group may hold gigabytes.
_BUFFER_BYTES = 1 << 22
_BATCH_ROWS = 1 << 16  # Arrow's own copies are of this size, not of a chunk's


class ParquetReader(TableReader):
    """Batches of a Parquet file, turned into matrices."""

    format = "parquet"

    def _read_head(self) -> None:
        self._arrow = need_arrow("pyarrow", self.path)
        self._parquet = need_arrow("pyarrow.parquet", self.path)
        self._damage = (*DAMAGE, self._arrow.ArrowException)
        with self._parquet.ParquetFile(self._file) as file:
            self._schema = file.schema_arrow
            self.n_rows = file.metadata.num_rows
            names: list[str] = self._schema.names
            if "logits" in names and self._is_list("logits"):
                self._read_list_head(file, names)
            else:
                self._read_column_head(names)

    def _is_list(self, name: str) -> bool:
        kind, types = self._schema.field(name).type, self._arrow.types
        return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))

    def _read_column_head(self, names: list[str]) -> None:
        types = self._arrow.types
        if len(set(names)) < len(names):
            raise self._layout_error("two columns have the same name; every column needs its own.")
        layout = ColumnLayout(self.path, names)
        self._lists = False
        self._label = None if layout.label is None else names[layout.label]
        self._logits = [names[i] for i in layout.logits]
        self._features = [names[i] for i in layout.features]
        self.n_classes, self.class_names = len(self._logits), layout.class_names
        self.n_features = len(self._features) or None
        self.has_labels = self._label is not None
        for name in self._logits + self._features:
            kind = self._schema.field(name).type
            marked = name.startswith(LOGIT) or name in self._features
            if not (types.is_floating(kind) or (marked and types.is_integer(kind))):
                raise self._layout_error(
                    f"column {name!r} holds {kind}, and logits are floating-point numbers. Where it is no "
                    "logit, leave it out or name the columns of logits logit_<class>."
                )
        self._check_label_type()
        self._dtype = self._common_dtype(self._logits)

    def _read_list_head(self, file: Any, names: list[str]) -> None:
        self._lists = True
        self._logits = ["logits"]
        self._features = ["features"] if "features" in names and self._is_list("features") else []
        self._label = next((name for name in names if name.lower() in LABEL_NAMES), None)
        self.has_labels = self._label is not None
        for name in self._logits + self._features:
            kind = self._schema.field(name).type.value_type
            if not (self._arrow.types.is_floating(kind) or self._arrow.types.is_integer(kind)):
                raise self._layout_error(f"column {name!r} holds lists of {kind}; expected lists of numbers.")
        self._check_label_type()
        self._dtype = _numpy_dtype(self._schema.field("logits").type.value_type)
        self.n_classes = self._list_width(file, "logits")
        if self._features:
            self.n_features = self._list_width(file, "features")
        if self.n_classes < 2:
            raise self._layout_error(f"logits must be lists of n_classes >= 2 numbers; the first has {self.n_classes}.")

    def _list_width(self, file: Any, name: str) -> int:
        """The length of the lists: written in the type, or else that of the first."""
        kind = self._schema.field(name).type
        if self._arrow.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for batch in file.iter_batches(batch_size=1, columns=[name], use_threads=False):
            if batch.num_rows:
                return len(batch.column(0)[0].as_py() or ())
        raise self._layout_error(f"it has no rows, so the number of {name} is not known.")

    def _check_label_type(self) -> None:
        if self._label is not None:
            kind = self._schema.field(self._label).type
            if not self._arrow.types.is_integer(kind):
                raise self._layout_error(
                    f"column {self._label!r} holds {kind}; labels are whole numbers, -1 if not known."
                )

    def _common_dtype(self, names: list[str]) -> np.dtype[Any]:
        return np.result_type(*(_numpy_dtype(self._schema.field(name).type) for name in names))

    def _blocks(self) -> Iterator[Block]:
        wanted = [*self._logits, *self._features, *([self._label] if self._label is not None else [])]
        buffer = max(1 << 14, _BUFFER_BYTES // len(wanted))
        first_row = 0
        with self._parquet.ParquetFile(self._file, buffer_size=buffer, pre_buffer=False) as file:
            for batch in file.iter_batches(min(self.chunk_rows, _BATCH_ROWS), columns=wanted, use_threads=False):
                columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
                logits = self._matrix(columns, self._logits, self.n_classes, first_row)
                features = labels = None
                if self.n_features is not None:
                    features = self._matrix(columns, self._features, self.n_features, first_row)
                if self._label is not None:
                    labels = self._numbers(columns[self._label], self._label, first_row)
                first_row += batch.num_rows
                yield logits, features, labels

    def _matrix(self, columns: dict[str, Any], names: list[str], width: int, first_row: int) -> Rows:
        """The named columns side by side, or the lists below each other, as an array of its own."""
        if self._lists:
            return self._list_rows(columns[names[0]], names[0], width, first_row)
        n_rows = len(columns[names[0]])
        matrix = np.empty((n_rows, width), self._common_dtype(names))
        for j, name in enumerate(names):
            matrix[:, j] = self._numbers(columns[name], name, first_row)
        return matrix

    def _list_rows(self, column: Any, name: str, width: int, first_row: int) -> Rows:
        self._refuse_nulls(column, name, first_row)
        if not self._arrow.types.is_fixed_size_list(column.type):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            if (lengths != width).any():
                row = int(np.argmax(lengths != width))
                raise InvalidInput(
                    f"{self.path}: {name} row {first_row + row} has {lengths[row]} numbers, the first has "
                    f"{width}; all rows must have the same length."
                )
        values = column.flatten()
        if values.null_count:
            row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) // width
            raise self._null(name, first_row + row)
        return np.array(values.to_numpy(zero_copy_only=False)).reshape(-1, width)

    def _numbers(self, column: Any, name: str, first_row: int) -> Rows:
        self._refuse_nulls(column, name, first_row)
        numbers: Rows = column.to_numpy(zero_copy_only=False)
        return numbers

    def _refuse_nulls(self, column: Any, name: str, first_row: int) -> None:
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise self._null(name, first_row + row)

    def _null(self, name: str, row: int) -> InvalidInput:
        return InvalidInput(f"{self.path}: column {name!r} is null in row {row}. Drop the row or fill it.")


def _numpy_dtype(kind: Any) -> np.dtype[Any]:
    """The dtype to read a column as; whole numbers become float64."""
    dtype = np.dtype(kind.to_pandas_dtype())
    return dtype if dtype.kind == "f" else np.dtype(np.float64)
