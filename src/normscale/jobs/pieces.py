"""Pieces of a job's rows: what a task reads, in any process, in the layout that the job was planned with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.errors import InvalidInput
from normscale.input_checks.logits import log_of_probabilities
from normscale.input_checks.tables import class_order, in_class_order
from normscale.outputs import LOGITS, ModelOutputs, mask_of_finite_rows
from normscale.rows import CHUNK_ELEMENTS, SourceFile, TableReader, is_pipe, open_table

SAMPLE = "sample:"
LISTED = 1000
"""How many skipped rows of a piece are named; all are counted."""

Columns = dict[str, NDArray[Any]]


class Span(NamedTuple):
    """Some consecutive rows of a file."""

    file: SourceFile
    parts: range | None = None
    """Row groups of a Parquet file; None: the whole file."""
    first_row: int = 0
    """The number of the first row of these parts in the file."""
    start: int = 0
    stop: int | None = None
    """The rows that are read, by their numbers in the file; None: to the end."""


class Piece(NamedTuple):
    """What one task reads."""

    number: int
    """Its place among all pieces."""
    spans: tuple[Span, ...]
    n_rows: int | None
    """None where only reading tells: text."""
    n_bytes: int
    """On disk."""

    @property
    def file(self) -> SourceFile:
        """The file of the first row."""
        return self.spans[0].file


class Layout(NamedTuple):
    """What is read of every file: the arrays, the columns of each in the order of the first file, and the classes."""

    widths: dict[str, int]
    columns: dict[str, list[str]]
    """Of Parquet files; empty for other formats."""
    has_labels: bool
    n_classes: int | None
    class_names: tuple[str, ...] | None
    """In the order in which logits are read; columns in another order are rearranged."""
    kept: dict[str, Any]
    """Further columns that come with the rows, and their types."""
    probabilities: bool = False
    """Whether the logarithm of the logits is taken."""
    root: str = ""
    """The folder that all files are in, with a slash at its end."""

    def name_of(self, path: str) -> str:
        """The path of a file below the folder that all are in."""
        return path.partition("?")[0].removeprefix(self.root)

    @property
    def has_logits(self) -> bool:
        """Whether predicted classes are known."""
        return LOGITS in self.widths

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk."""
        return max(1, CHUNK_ELEMENTS // sum(self.widths.values()))

    def __str__(self) -> str:
        return " + ".join([f"{width} {name}" for name, width in self.widths.items()] + ["labels"] * self.has_labels)


class Skipped(NamedTuple):
    """Rows with NaN or infinity that were left out."""

    n: int = 0
    rows: tuple[tuple[str, int], ...] = ()
    """File and number of the row in it, from 0; of every piece at most :data:`LISTED`."""

    def __add__(self, other: object) -> Skipped:
        assert isinstance(other, Skipped)
        return Skipped(self.n + other.n, self.rows + other.rows)


class Chunk(NamedTuple):
    """Some consecutive rows, in order."""

    outputs: ModelOutputs
    columns: Columns
    """The columns that are kept."""
    origins: tuple[tuple[str, int, int], ...]
    """Where they come from: file, number of the first row there, how many."""

    def origin(self, row: int) -> tuple[str, int]:
        """The file and the number in it of a row of this chunk."""
        for path, first_row, n in self.origins:
            if row < n:
                return path, first_row + row
            row -= n
        raise IndexError(row)

    def cut(self, start: int, stop: int) -> Chunk:
        """Some rows of a chunk that comes from one file."""
        if start == 0 and stop == len(self.outputs):
            return self
        path, first_row, _ = self.origins[0]
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        return Chunk(self.outputs[start:stop], columns, ((path, first_row + start, stop - start),))


def stays_here(path: str) -> bool:
    """Whether no other process can read a table: a pipe, or the sample."""
    return path.startswith(SAMPLE) or is_pipe(path)


def read_piece(piece: Piece, layout: Layout, readers: dict[str, TableReader] | None = None) -> Iterator[Chunk]:
    """The rows of a piece as the files have them; a chunk comes from one file.

    Raises where a file is not the one that was planned with. ``readers`` of whole files that are open already are used
    up.
    """
    for span in piece.spans:
        yield from _read_span(span, layout, readers or {})


def _read_span(span: Span, layout: Layout, readers: dict[str, TableReader]) -> Iterator[Chunk]:
    path = span.file.path
    is_file = not stays_here(path)
    if is_file:
        span.file.check()
    reader = readers.pop(path, None) if span.parts is None else None
    if reader is None:
        names, keep = list(layout.widths), list(layout.kept)
        reader = open_table(path, names=names, keep=keep, class_names=layout.class_names, parts=span.parts)
    with reader:
        if layout.columns:
            reader.arrange(layout.columns)
        order = class_order(layout.class_names, reader.class_names, path)
        row = span.first_row
        for outputs, columns in reader.chunks_and_columns():
            first, last = max(span.start - row, 0), len(outputs) if span.stop is None else span.stop - row
            last = min(last, len(outputs))
            if first < last:
                if order is not None:
                    outputs = in_class_order(outputs, order)
                if layout.probabilities and layout.has_logits:
                    outputs = outputs.replace(logits=log_of_probabilities(outputs.logits, path))
                yield Chunk(outputs, columns, ((path, row, len(outputs)),)).cut(first, last)
            row += len(outputs)
            if span.stop is not None and row >= span.stop:
                break
    if is_file:
        span.file.check()


def even_chunks(chunks: Iterable[Chunk], n_rows: int) -> Iterator[Chunk]:
    """The same rows in chunks of so many, whatever files they are in."""
    waiting: list[Chunk] = []
    n_waiting = 0
    for chunk in chunks:
        start, length = 0, len(chunk.outputs)
        while start < length:
            stop = min(length, start + n_rows - n_waiting)
            waiting.append(chunk.cut(start, stop))
            n_waiting += stop - start
            start = stop
            if n_waiting == n_rows:
                yield _joined(waiting)
                waiting, n_waiting = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    columns = {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}
    origins = tuple(origin for chunk in chunks for origin in chunk.origins)
    return Chunk(ModelOutputs.concatenate([chunk.outputs for chunk in chunks]), columns, origins)


class PieceRows:
    """The rows of a piece for a detector, without those that hold NaN or infinity where they are to be skipped.

    Parameters
    ----------
    chunks : iterable of Chunk
    layout : Layout
    names : sequence of str
        Arrays in which a row must be finite.
    on_invalid : {"raise", "skip"}
    """

    def __init__(self, chunks: Iterable[Chunk], layout: Layout, names: Sequence[str], on_invalid: str) -> None:
        self._chunks = even_chunks(chunks, layout.chunk_rows)
        self._names = [*dict.fromkeys(names)]
        self.skips = on_invalid == "skip"
        self._last: Chunk | None = None
        self._origins: list[tuple[str, int, int]] = []
        self.skipped = Skipped()
        self.n_rows = 0

    def __iter__(self) -> Iterator[ModelOutputs]:
        """Iterate over the good rows."""
        for chunk, good in self.with_masks():
            yield chunk.outputs if good is None or good.all() else chunk.outputs[good]

    def with_masks(self) -> Iterator[tuple[Chunk, NDArray[np.bool_] | None]]:
        """Iterate over all rows and which of them are good; None where bad rows are not to be skipped."""
        for chunk in self._chunks:
            self._last = chunk
            self._origins += chunk.origins
            good = self._good(chunk) if self.skips else None
            self.n_rows += len(chunk.outputs) if good is None else int(good.sum())
            yield chunk, good

    def _good(self, chunk: Chunk) -> NDArray[np.bool_]:
        """Which rows are finite; the others are counted and listed."""
        good = mask_of_finite_rows(chunk.outputs, self._names)
        bad = np.flatnonzero(~good)
        if bad.size:
            room = max(0, LISTED - len(self.skipped.rows))
            self.skipped += Skipped(bad.size, tuple(chunk.origin(int(row)) for row in bad[:room]))
        return good

    def explain(self, error: InvalidInput, gathered: ModelOutputs | None = None) -> InvalidInput:
        """The error with the file, and with the row that is to blame where one is not finite.

        The row is looked for in the last chunk, or in all rows where they were ``gathered``.
        """
        chunk = self._last if gathered is None else Chunk(gathered, {}, tuple(self._origins))
        if chunk is None:
            return error
        names = [name for name in self._names if name in chunk.outputs.names]
        good = mask_of_finite_rows(chunk.outputs, names)
        if not good.all() and not self.skips:
            row = int(np.argmin(good))
            name = next(name for name in names if not np.isfinite(chunk.outputs.array(name)[row]).all())
            path, number = chunk.origin(row)
            values = chunk.outputs.array(name)[row]
            column = int(np.argmin(np.isfinite(values)))
            what = "NaN" if np.isnan(values[column]) else "infinity"
            return InvalidInput(
                f"{path}: row {number} holds {what} in column {column} of {name}. Drop the row or pass "
                'on_invalid="skip".'
            )
        path = chunk.origins[0][0]
        return error if path in str(error) or gathered is not None else type(error)(f"{path}: {error}")
