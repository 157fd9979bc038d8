"""The one way to read a table of any format: look at its shape, then take its rows chunk by chunk."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale._validate import IntArray, Rows, as_labels, as_rows, at_least
from normscale.errors import FileFormatError, InvalidInput, MissingOutput
from normscale.outputs import FEATURES, LOGITS, Head, ModelOutputs
from normscale.rows.arrays import LABELS
from normscale.rows.columns import label_numbers
from normscale.rows.format import TableFormat, damaged, explained
from normscale.rows.source import ByteSource, Pipe

Block = dict[str, Rows]
"""Some consecutive rows, as a format gives them: arrays by name, and ``labels`` where the table has any."""

KEPT = "keep:"
"""Before the name of a kept column in a block of rows; no array can be called so."""

CHUNK_ELEMENTS = 1 << 22
"""Numbers in a chunk unless told otherwise: 32 MB in float64, large enough to keep numpy busy."""

DAMAGE: tuple[type[Exception], ...] = (OSError, ValueError, EOFError, KeyError, MemoryError, zlib.error)
"""What reading a damaged file may raise, to become :class:`FileFormatError`; false sizes exhaust memory."""


class ReadOptions(NamedTuple):
    """What is wanted of a table; see :func:`normscale.rows.open_table`."""

    chunk_rows: int | None = None
    names: Sequence[str] | None = None
    keep: Sequence[str] = ()
    class_names: Sequence[str] | None = None
    parts: range | None = None


class TablePart(NamedTuple):
    """A part of a file that can be read on its own."""

    n_rows: int | None
    """None where only reading tells: text."""
    n_bytes: int | None
    """On disk; None: those of the whole file."""


class TableReader(ABC):
    """A table of outputs on disk, in a pipe or in memory; made by :func:`normscale.rows.open_table`.

    Opening reads only the head of a file. A format has two methods: :meth:`_read_head`, which fills the attributes,
    and :meth:`_blocks`, which gives the rows.

    Attributes
    ----------
    path : str
        What messages call it: the path as the caller gave it.
    n_rows : int or None
        None where it is known only at the end: text and pipes.
    widths : dict
        Columns of every array that is read, by name.
    n_classes : int or None
        None without logits and without a head.
    class_names : tuple of str, or None
    has_labels : bool
    head : Head or None
        The network's last layer.
    left_out : dict
        Arrays of the file that are no part of the outputs, by name, and why.
    columns : dict
        Further columns that are kept, by name, and their types: numpy's (object: texts) or pyarrow's.
    array_columns : dict
        The columns of the file that make an array, by its name; empty where a file holds arrays.
    parts : list of TablePart
        What can be read on its own: the row groups of a Parquet file.
    chunk_rows : int
        Rows of every chunk but the last.
    """

    _damage: tuple[type[Exception], ...] = DAMAGE

    def __init__(self, format: TableFormat, source: ByteSource, options: ReadOptions) -> None:
        """Read the head of ``source``."""
        self._format = format
        self.format = format.name
        self.source = source
        self.path = source.shown
        self._wanted = options.names
        self._keep = list(dict.fromkeys(options.keep))
        self._class_names = options.class_names
        self._chosen_parts = options.parts
        self.columns: dict[str, Any] = {}
        self.columns_there: tuple[str, ...] = ()
        self.n_rows: int | None = None
        self.widths: dict[str, int] = {}
        self.array_columns: dict[str, list[str]] = {}
        self.class_names: tuple[str, ...] | None = None
        self.has_labels = False
        self.head: Head | None = None
        self.left_out: dict[str, str] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        explained(self._read_head, self._damage, self._damaged)
        self.widths = dict(sorted(self.widths.items(), key=lambda item: (item[0] != LOGITS, item[0] != FEATURES)))
        self.n_classes = self.widths.get(LOGITS, None if self.head is None else self.head.n_classes)
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            self.class_names = None
        if options.names is not None:
            self._choose(options.names)
        if lost := [name for name in self._keep if name not in self.columns]:
            there = ", ".join(map(repr, self.columns_there)) or "none that can be kept"
            raise InvalidInput(f"{self.path} has no column {lost[0]!r} to keep; it has {there}.")
        width = sum(self.widths.values())
        given = options.chunk_rows
        self.chunk_rows = max(1, CHUNK_ELEMENTS // width) if given is None else at_least(given, "chunk_rows", 1)

    @abstractmethod
    def _read_head(self) -> None:
        """Fill the attributes from the head of the file."""

    @abstractmethod
    def _blocks(self) -> Iterator[Block]:
        """Give the rows from the first to the last, in blocks of bounded but any size.

        Only the arrays in :attr:`widths` are wanted, the labels where :attr:`has_labels`, and the kept columns.
        """

    @property
    def parts(self) -> list[TablePart]:
        """What can be read on its own."""
        return [TablePart(self.n_rows, None)]

    def arrange(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Read the columns of arrays in this order; not those of logits, whose order is that of labels and head."""
        for name, order in columns.items():
            if name != LOGITS and name in self.array_columns:
                self.array_columns[name] = list(order)

    def _choose(self, names: Sequence[str]) -> None:
        kept = {name: width for name, width in self.widths.items() if name in names}
        if not kept:
            raise MissingOutput(f"{self.path} has no {' and no '.join(names)}; it has {', '.join(self.widths)}.")
        self.widths = kept

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays that are read."""
        return tuple(self.widths)

    @property
    def n_features(self) -> int | None:
        """The number of features; None without any."""
        return self.widths.get(FEATURES)

    def chunks(self) -> Iterator[ModelOutputs]:
        """Iterate over the rows, ``chunk_rows`` at a time.

        Every call starts at the first row again, except on a pipe, which can be read once.
        """
        return (chunk for chunk, _ in self.chunks_and_columns())

    def chunks_and_columns(self) -> Iterator[tuple[ModelOutputs, dict[str, NDArray[Any]]]]:
        """Iterate over chunks as :meth:`chunks` does, with the columns that are kept beside them."""
        first_row = 0
        for block in self._exact(self._explained_blocks()):
            n_rows = _length(block)
            try:
                chunk = self._outputs(block, n_rows)
            except InvalidInput as error:
                rows = f"rows {first_row} to {first_row + n_rows - 1}"
                raise InvalidInput(f"{self.path}, {rows}: {error}") from None
            first_row += n_rows
            yield chunk, {name: block[KEPT + name] for name in self.columns}

    def read(self) -> ModelOutputs:
        """Read all rows at once."""
        chunks = self.chunks()
        if self.n_rows is None or self.n_rows <= self.chunk_rows:
            parts = list(chunks)
            return ModelOutputs.concatenate(parts) if len(parts) > 1 else self._one(parts)
        # The size is known, so fill in place: concatenating would need twice the memory.
        first = next(chunks, self._one([]))
        arrays = {name: np.empty((self.n_rows, w), first.array(name).dtype) for name, w in self.widths.items()}
        labels = None if first.labels is None else np.empty(self.n_rows, np.int64)
        start = 0
        part: ModelOutputs | None = first
        while part is not None:
            rows = slice(start, start + len(part))
            for name, array in arrays.items():
                array[rows] = part.array(name)
            if labels is not None and part.labels is not None:
                labels[rows] = part.labels
            start = rows.stop
            part = next(chunks, None)
        if start != self.n_rows:
            raise self._damaged(f"it says {self.n_rows} rows but holds {start}")
        return ModelOutputs._trusted(arrays, labels, self.head)

    def _outputs(self, block: Block, n_rows: int) -> ModelOutputs:
        """A chunk. Shapes were checked with the head of the file, and the network's head once for all chunks."""
        labels: IntArray | None = None
        if self.has_labels:
            found = block[LABELS]
            if found.dtype.kind in "OU":
                found = label_numbers(found.tolist(), self.class_names or self._class_names)
            labels = as_labels(found, LABELS, length=n_rows, n_classes=self.n_classes)
        arrays = {name: as_rows(block[name], name, width=width) for name, width in self.widths.items()}
        return ModelOutputs._trusted(arrays, labels, self.head)

    def _one(self, parts: list[ModelOutputs]) -> ModelOutputs:
        """The only part, or a table without rows."""
        if parts:
            return parts[0]
        empty: Block = {name: np.empty((0, width), self._dtypes.get(name)) for name, width in self.widths.items()}
        if self.has_labels:
            empty[LABELS] = np.empty(0, np.int64)
        return self._outputs(empty, 0)

    def close(self) -> None:
        """Let go of what the reader holds."""
        self.source.close()

    def __enter__(self) -> TableReader:
        """Return the reader itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the reader."""
        self.close()

    def __repr__(self) -> str:
        """Describe the table in one line."""
        rows = "?" if self.n_rows is None else self.n_rows
        parts = [f"{width} {name}" for name, width in self.widths.items()]
        parts += ["labels"] * self.has_labels + ["head"] * (self.head is not None)
        return f"<{self.format} table {self.path!r}: {rows} rows of {' + '.join(parts)}>"

    def _damaged(self, reason: str) -> FileFormatError:
        if isinstance(self.source, Pipe):
            return self.source.damaged(self.format, reason)
        return damaged(self.source.head(), self._format, reason, self.path)

    def _explained_blocks(self) -> Iterator[Block]:
        blocks = self._blocks()
        while (block := explained(lambda: next(blocks, None), self._damage, self._damaged)) is not None:
            yield block

    def _exact(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Cut and join blocks so that each has ``chunk_rows`` rows; blocks that fit already pass uncopied."""
        waiting: list[Block] = []
        n_waiting = 0
        for block in blocks:
            start, length = 0, _length(block)
            while length - start >= self.chunk_rows - n_waiting:
                stop = start + self.chunk_rows - n_waiting
                chunk = _joined([*waiting, _rows_of(block, start, stop)])
                waiting, n_waiting, start = [], 0, stop  # let go of the parts before the caller works
                yield chunk
            if start < length:
                waiting.append(_rows_of(block, start, length))
                n_waiting += length - start
        if waiting:
            yield _joined(waiting)

    def _layout_error(self, rule: str) -> FileFormatError:
        """The error for a file that is whole but holds something else than a table of outputs."""
        return FileFormatError(f"{self.path}: {rule}")


def _length(block: Block) -> int:
    return int(next(iter(block.values())).shape[0])


def _rows_of(block: Block, start: int, stop: int) -> Block:
    if start == 0 and stop == _length(block):
        return block
    return {name: array[start:stop] for name, array in block.items()}


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
