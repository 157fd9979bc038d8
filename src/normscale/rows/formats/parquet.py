""".parquet: a column per class and columns of lists; read in batches, so that any number of rows will do.

The columns are chosen as :mod:`normscale.rows.columns` says, and those of logits must be floating-point
unless their names begin with ``logit_``. A column ``logits`` of lists holds whole rows of logits instead. A null is
NaN, and in the labels "not known". The network's head, and class names where no column has them, are in the file's
metadata. Kept columns keep their types.
"""

from __future__ import annotations

import base64
import bisect
import itertools
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from normscale._validate import Rows
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import EmptyTable, FileFormatError, InvalidInput
from normscale.outputs import FEATURES, LOGITS, check_name
from normscale.rows.arrays import CLASS_NAMES, RESERVED, native
from normscale.rows.columns import LABELS, LOGIT
from normscale.rows.files import ByteSource, need_arrow, register_format
from normscale.rows.reader import CHUNK_ELEMENTS, DAMAGE, KEPT, Block, Columns, TableReader
from normscale.rows.writing import GatheringSink

# Arrow reads a whole column chunk at once unless it has a buffer size; a row group may hold gigabytes.
_BUFFER_BYTES = 1 << 15
_BATCH_ROWS = 1 << 16  # Arrow's own copies are of this size, not of a chunk's
_WIDEST = 1 << 24  # numbers in a list: more in a row is a mistake
_ROW_GROUP = 1 << 16  # rows of scores that are gathered: a row group of a few rows would cost more than they
_HEAD = b"normscale.head"


class ParquetSink(GatheringSink):
    """Row groups of bounded size; what is a number is never null, so that whole numbers need not become floats."""

    def open(self) -> None:
        super().open()
        self._arrow, parquet = (need_arrow(module, self.path) for module in ("pyarrow", "pyarrow.parquet"))
        metadata: dict[Any, Any] = {name: write_json(texts) for name, texts in self.texts.items()}
        if self.head is not None:
            tensors = {name: np.ascontiguousarray(native(one)) for name, one in self.head._asdict().items()}
            metadata[_HEAD] = base64.b64encode(save(tensors))
        fields = [self._field(*item) for item in self.columns.items()]
        repeating = [field.name for field in fields if not self._arrow.types.is_floating(field.type)]
        self._schema = self._arrow.schema(fields, metadata=metadata or None)
        options = {"use_dictionary": repeating, "write_page_checksum": True}
        self._writer = parquet.ParquetWriter(self.file, self._schema, **options)
        self._n_waiting = 0
        widths = [1 if not isinstance(kind, np.dtype) else int(np.prod(kind.shape)) for kind in self.columns.values()]
        self._group_rows = max(1, min(_ROW_GROUP, CHUNK_ELEMENTS // sum(widths)))

    def _field(self, name: str, kind: Any) -> Any:
        arrow = self._arrow
        if not isinstance(kind, np.dtype):
            return arrow.field(name, kind)
        if kind.hasobject:
            return arrow.field(name, arrow.string())
        flat = arrow.from_numpy_dtype(kind.base)
        if kind.shape:
            flat = arrow.list_(arrow.field("item", flat, nullable=False), kind.shape[0])
        return arrow.field(name, flat, nullable=kind.kind == "M")

    def write(self, columns: Columns) -> None:
        super().write(columns)
        self._n_waiting += len(next(iter(columns.values())))
        if self._n_waiting >= self._group_rows:
            self.save(self._gathered())

    def save(self, arrays: Columns) -> None:
        """Write some row groups."""
        columns = [self._array(arrays[field.name], field.type) for field in self._schema]
        table = self._arrow.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(table, row_group_size=self._group_rows)
        self._n_waiting = 0

    def _array(self, column: NDArray[Any], kind: Any) -> Any:
        if column.ndim == 2:
            flat = self._arrow.array(np.ascontiguousarray(column).reshape(-1))
            return self._arrow.FixedSizeListArray.from_arrays(flat, type=kind)
        return self._arrow.array(column.tolist() if column.dtype.kind == "O" else column, kind)

    def finish(self) -> None:
        if self._n_waiting:
            self.save(self._gathered())
        self._writer.close()

    def abandon(self) -> None:
        self._writer.close()


class ArrowReader(TableReader):
    """Base class of formats that pyarrow reads: columns of numbers or of lists, with a schema.

    A format sets ``_schema`` and calls :meth:`_choose_columns` in its ``_read_head``; it has :meth:`_batches` and
    :meth:`_first_length`.
    """

    by_columns = True
    _schema: Any
    _first_row = 0

    @abstractmethod
    def _batches(self, columns: list[str]) -> Iterator[Any]:
        """Record batches of these columns."""

    @abstractmethod
    def _first_length(self, name: str) -> int:
        """The length of the first list of a column."""

    def _need_arrow(self) -> None:
        self._arrow = need_arrow("pyarrow", self.path)
        self._types = self._arrow.types
        self._damage = (*DAMAGE, self._arrow.ArrowException)

    def _choose_columns(self) -> None:
        names: list[str] = self._schema.names
        if len(set(names)) < len(names):
            raise self._layout_error("two columns have the same name; every column needs its own.")
        is_list = (self._types.is_list, self._types.is_large_list, self._types.is_fixed_size_list)
        self._lists = {field.name for field in self._schema if any(check(field.type) for check in is_list)}
        for name in names:
            if name in self._lists and name not in self._keep:
                self._take_list(name)
        plain = [name for name in names if name not in self._lists]
        self.columns_there = tuple(plain)
        self.columns = {name: self._value_type(name) for name in self._keep if name in plain}
        self._take_columns(plain)
        for array, columns in self.array_columns.items():
            if columns[0] not in self._lists:
                self._check_columns(array)
        if self._label is not None:
            kind = self._value_type(self._label)
            checks = (self._types.is_integer, self._types.is_string, self._types.is_large_string)
            if not any(check(kind) for check in checks):
                raise self._layout_error(
                    f"column {self._label!r} holds {kind}; labels are whole numbers, -1 if not known, or names of "
                    "classes."
                )
        if not self.widths:
            raise self._layout_error(
                f"it holds no array of numbers among the columns {', '.join(map(repr, names[:8]))}."
            )

    def _value_type(self, name: str) -> Any:
        kind = self._schema.field(name).type
        return kind.value_type if self._types.is_dictionary(kind) else kind

    def _take_list(self, name: str) -> None:
        """Take a column of lists for an array; one that cannot be is left out, unless it must be one."""
        try:
            width = self._list_width(name)
        except InvalidInput as error:
            if name in (LOGITS, FEATURES, *(self._wanted or ())):
                raise self._layout_error(str(error)) from None
            return
        self.widths[name], self.array_columns[name] = width, [name]
        column = self._schema.field(name)
        may_be_null = column.nullable or column.type.value_field.nullable
        kind = column.type.value_type
        self._dtypes[name] = _float_dtype(kind) if may_be_null else np.dtype(kind.to_pandas_dtype())

    def _list_width(self, name: str) -> int:
        if name in RESERVED:
            raise InvalidInput(f"column {name!r} holds lists, and that name has another meaning.")
        check_name(name)
        kind, types = self._schema.field(name).type, self._types
        of = kind.value_type
        if not (types.is_floating(of) or types.is_integer(of) or types.is_boolean(of)):
            raise InvalidInput(f"column {name!r} holds lists of {of}; expected lists of numbers.")
        width = int(kind.list_size) if types.is_fixed_size_list(kind) else self._first_length(name)
        what, least = ("n_classes", 2) if name == LOGITS else ("width", 1)
        if not least <= width <= _WIDEST:
            raise InvalidInput(f"{name} must be lists of {what} >= {least} numbers, at most {_WIDEST}; got {width}.")
        return width

    def _check_columns(self, array: str) -> None:
        kinds = {name: self._schema.field(name).type for name in self.array_columns[array]}
        for name, kind in kinds.items():
            marked = name.startswith(LOGIT) or array == FEATURES
            if not (self._types.is_floating(kind) or (marked and self._types.is_integer(kind))):
                raise self._layout_error(
                    f"column {name!r} holds {kind}, and logits are floating-point numbers. Where it is no logit, leave "
                    "it out or name the columns of logits logit_<class>."
                )
        self._dtypes[array] = np.result_type(*map(_float_dtype, set(kinds.values())))

    def _blocks(self) -> Iterator[Block]:
        arrays = [column for name in self.widths for column in self.array_columns[name]]
        others = {KEPT + name: name for name in self.columns} | ({LABELS: self._label} if self._label else {})
        wanted = list(dict.fromkeys([*arrays, *others.values()]))
        first_row = self._first_row
        for batch in self._batches(wanted):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            block = {name: self._matrix(columns, name, first_row) for name in self.widths}
            first_row += batch.num_rows
            yield block | {key: self._values(columns[name]) for key, name in others.items()}

    def _matrix(self, columns: dict[str, Any], array: str, first_row: int) -> Rows:
        """The columns of an array side by side, or its lists below each other, in memory of its own."""
        names = self.array_columns[array]
        if names[0] in self._lists:
            return self._list_rows(columns[array], array, self.widths[array], first_row)
        matrix = np.empty((len(columns[names[0]]), len(names)), self._dtypes[array])
        for j, name in enumerate(names):
            matrix[:, j] = _numbers(columns[name])
        return matrix

    def _list_rows(self, column: Any, name: str, width: int, first_row: int) -> Rows:
        known = column.drop_null() if column.null_count else column
        if not self._types.is_fixed_size_list(column.type):
            lengths = _numbers(known.value_lengths())
            if (lengths != width).any():
                row = int(np.argmax(lengths != width))
                raise InvalidInput(
                    f"{self.path}: {name} row {first_row + row} has {lengths[row]} numbers; all rows must have {width}."
                )
        values = _numbers(known.flatten()).reshape(-1, width)
        if not column.null_count:
            return np.array(values, self._dtypes[name])
        rows = np.full((len(column), width), np.nan, self._dtypes[name])
        rows[column.is_valid().to_numpy(zero_copy_only=False)] = values
        return rows

    def _values(self, column: Any) -> NDArray[Any]:
        """A column as numpy has it: numbers, times, or objects where there are nulls or anything else."""
        types = self._types
        column = column.dictionary_decode() if types.is_dictionary(column.type) else column
        kind = column.type
        plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        if types.is_timestamp(kind) or types.is_date(kind) or (plain and not column.null_count):
            values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
            return values
        objects = np.empty(len(column), object)
        objects[:] = column.to_pylist()
        return objects


@register_format
class Parquet(ArrowReader):
    """Columns, compressed, in row groups that can be read on their own. The file is opened once."""

    name, described, suffixes = "parquet", "a .parquet file", (".parquet",)
    magic, sink = (b"PAR1",), ParquetSink
    largest_head = 1 << 25
    """Arrow keeps metadata in memory several times over, and refuses texts beyond 100 MB."""

    def close(self) -> None:
        self._parquet_file.close()
        super().close()

    def _read_head(self) -> None:
        self._need_arrow()
        file = self._parquet_file = open_parquet(self.source)
        self._schema = file.schema_arrow
        self.n_rows = file.metadata.num_rows
        try:
            self._choose_columns()
        except FileFormatError as error:
            if file.metadata.num_rows:
                raise
            raise EmptyTable(str(error)) from None
        metadata = self._schema.metadata or {}
        if _HEAD in metadata:
            if (size := len(metadata[_HEAD])) > 2 * self.largest_head:
                raise self._layout_error(f"its head takes {size} bytes; at most {2 * self.largest_head} are read.")
            try:
                tensors = load(base64.b64decode(metadata[_HEAD], validate=True))
                head = tensors["weight"], tensors["bias"]
            except (SafetensorError, ValueError, KeyError) as error:
                raise self._layout_error(f"its head is damaged ({error}). Make it again.") from error
            self._take_head(*head)
        if CLASS_NAMES.encode() in metadata and self.class_names is None:
            try:
                names = read_json(metadata[CLASS_NAMES.encode()])
            except ValueError:
                return  # somebody else's key of the same name
            self.class_names = tuple(map(str, names)) if isinstance(names, list) else None

    @property
    def edges(self) -> list[int]:
        metadata = self._parquet_file.metadata
        return [0, *itertools.accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))]

    def _seek(self, rows: range) -> int:
        edges = self.edges
        first = max(0, bisect.bisect_right(edges, rows.start) - 1)
        self._groups = range(first, bisect.bisect_left(edges, rows.stop, hi=len(edges) - 1))
        self._first_row = edges[first]
        return self._first_row

    def _batches(self, columns: list[str]) -> Iterator[Any]:
        rows = min(self.chunk_rows, _BATCH_ROWS)
        batches: Iterator[Any] = self._parquet_file.iter_batches(
            rows, row_groups=self._groups, columns=columns, use_threads=False
        )
        return batches

    def _first_length(self, name: str) -> int:
        for batch in self._parquet_file.iter_batches(batch_size=64, columns=[name], use_threads=False):
            known = batch.column(0).drop_null()
            if len(known):
                return len(known[0].as_py())
        raise InvalidInput(f"it has no rows, so the number of {name} is not known.")


def _numbers(column: Any) -> NDArray[Any]:
    """A column of numbers; a null is NaN."""
    if column.null_count or str(column.type) == "bool":
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values
    return np.from_dlpack(column)  # to_numpy would load pandas where it is installed: 40 MB


def _float_dtype(kind: Any) -> np.dtype[Any]:
    dtype = np.dtype(kind.to_pandas_dtype())
    return dtype if dtype.kind == "f" else np.dtype(np.float64)


def open_parquet(source: ByteSource) -> Any:
    """pyarrow's view of a file, here or in an object store."""
    parquet = need_arrow("pyarrow.parquet", source.shown)
    if source.path is not None:
        options = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
        return parquet.ParquetFile(source.path, **options)
    return parquet.ParquetFile(source.open(), pre_buffer=True)  # few large requests
