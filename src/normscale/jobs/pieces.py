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
from normscale.rows.chunks import Chunk, even_chunks

SAMPLE = "sample:"
LISTED = 1000
"""How many skipped rows of a piece are named; all are counted."""


class Span(NamedTuple):
    """Some consecutive rows of a file."""

    file: SourceFile
    n_rows: int | None = None
    """None where only reading tells: text."""
    n_bytes: int = 0
    """On disk."""
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

    @property
    def file(self) -> SourceFile:
        """The file of the first row."""
        return self.spans[0].file

    @property
    def n_rows(self) -> int | None:
        """None where only reading tells."""
        counts = [span.n_rows for span in self.spans]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def n_bytes(self) -> int:
        """On disk."""
        return sum(span.n_bytes for span in self.spans)


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

    @property
    def has_logits(self) -> bool:
        """Whether predicted classes are known."""
        return LOGITS in self.widths

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


def stays_here(path: str) -> bool:
    """Whether no other process can read a table: a pipe, or the sample."""
    return path.startswith(SAMPLE) or is_pipe(path)


def read_piece(piece: Piece, layout: Layout, readers: dict[str, TableReader] | None = None) -> Iterator[Chunk]:
    """The rows of a piece as the files have them; a chunk comes from one file.

    Raises where a file is not the one that was planned with. ``readers`` of whole files that are open already are used
    up.
    """
    for span in piece.spans:
        path, is_file = span.file.path, not stays_here(span.file.path)
        if is_file:
            span.file.check()
        reader = readers.pop(path, None) if readers and span.parts is None else None
        if reader is None:
            names, keep = list(layout.widths), list(layout.kept)
            reader = open_table(path, names=names, keep=keep, class_names=layout.class_names, parts=span.parts)
        with reader:
            yield from _read_span(span, layout, reader)
        if is_file:
            span.file.check()


def _read_span(span: Span, layout: Layout, reader: TableReader) -> Iterator[Chunk]:
    path, row = span.file.path, span.first_row
    reader.arrange(layout.columns)
    order = class_order(layout.class_names, reader.class_names, path)
    for chunk in reader.blocks():
        outputs, columns, _ = chunk
        n_rows = len(outputs)
        first, last = max(span.start - row, 0), min(n_rows, n_rows if span.stop is None else span.stop - row)
        if first < last:
            if order is not None:
                outputs = in_class_order(outputs, order)
            if layout.probabilities and layout.has_logits:
                outputs = outputs.replace(logits=log_of_probabilities(outputs.logits, path))
            yield Chunk(outputs, columns, ((path, row, n_rows),)).cut(first, last)
        row += n_rows
        if span.stop is not None and row >= span.stop:
            return


class PieceRows:
    """The rows of a piece for a detector, without those that hold NaN or infinity where they are to be skipped.

    A row must be finite in the arrays ``names``; ``on_invalid`` says what becomes of others: "raise" or "skip".
    """

    def __init__(self, chunks: Iterable[Chunk], layout: Layout, names: Sequence[str], on_invalid: str) -> None:
        self._chunks = even_chunks(chunks, max(1, CHUNK_ELEMENTS // sum(layout.widths.values())))
        self._names = [*dict.fromkeys(names)]
        self.skips = on_invalid == "skip"
        self._last: Chunk | None = None
        self._origins: list[tuple[str, int, int]] = []
        self.skipped = Skipped()
        self.n_rows = 0

    def __iter__(self) -> Iterator[ModelOutputs]:
        for chunk, good in self.with_masks():
            yield chunk.outputs if good is None or good.all() else chunk.outputs[good]

    def with_masks(self) -> Iterator[tuple[Chunk, NDArray[np.bool_] | None]]:
        """Iterate over all rows and which of them are good; None where bad rows are not to be skipped."""
        for chunk in self._chunks:
            self._last = chunk
            self._origins += chunk.origins
            good = mask_of_finite_rows(chunk.outputs, self._names) if self.skips else None
            if good is not None and (bad := np.flatnonzero(~good)).size:
                room = max(0, LISTED - len(self.skipped.rows))
                self.skipped += Skipped(bad.size, tuple(chunk.origin(int(row)) for row in bad[:room]))
            self.n_rows += len(chunk.outputs) if good is None else int(good.sum())
            yield chunk, good

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
