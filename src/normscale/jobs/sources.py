"""The rows of a job: tables that are read as one, cut into pieces that any process can read.

Pieces follow from the files alone, never from the number of workers. Scores are made file by file
(:meth:`RowSource.file_pieces`). A fit counts rows over all files (:meth:`RowSource.row_pieces`), so that the same rows
give the same bits in one file or in many.
"""

from __future__ import annotations

import glob
import io
import itertools
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale._validate import ON_INVALID, IntArray, at_least, one_of
from normscale.errors import EmptyTable, FileFormatError, InvalidInput
from normscale.input_checks.class_order import class_order, in_class_order
from normscale.input_checks.first_rows import look_at_first_rows
from normscale.input_checks.softmaxed import log_of_probabilities
from normscale.outputs import LOGITS, ModelOutputs, finite_rows
from normscale.rows import (
    CHUNK_ELEMENTS,
    ReadOptions,
    SourceFile,
    TablePart,
    TableReader,
    find_files,
    format_of,
    is_pipe,
    is_remote,
    open_table,
)
from normscale.rows.source import ByteSource
from normscale.state import load_header

SAMPLE = "sample:"
PIECE_ROWS = 500_000
"""Rows of a piece, unless a single row group has more."""
LISTED = 1000
"""How many skipped rows of a piece are named; all are counted."""
_LISTING_THREADS = 16
_LEFT_OPEN = 64
"""Up to so many files stay open between the look at their heads and the reading of their rows."""
_WORKER_BYTES = 500 << 20
"""Of a process that has loaded Python, numpy, pyarrow, the kernels and Ray: measured by benchmarks/engines.py."""

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Columns = dict[str, NDArray[Any]]


class Span(NamedTuple):
    """Some consecutive rows of a file."""

    file: SourceFile
    parts: range | None
    """Row groups of a Parquet file; None: the whole file."""
    first_row: int
    """The number of the first row of these parts in the file."""
    start: int
    stop: int | None
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
    """In the order in which logits are read; a file whose columns stand in another order is turned."""
    kept: dict[str, Any]
    """Further columns that come with the rows, and their types."""
    probabilities: bool = False
    """Whether the logarithm of the logits is taken."""
    root: str = ""
    """The folder that all files are in, with a slash at its end."""

    def name_of(self, path: str) -> str:
        """What a file is called among the others: its path below the folder that all are in."""
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


class _Head(NamedTuple):
    """What the head of a file says."""

    layout: Layout
    n_rows: int | None
    parts: list[TablePart]
    reader: TableReader | None
    """Left open where files are few, so that this process opens them once."""


class Skipped(NamedTuple):
    """Rows with NaN or infinity that were left out."""

    n: int = 0
    rows: tuple[tuple[str, int], ...] = ()
    """File and number of the row in it, from 0; of every piece at most :data:`LISTED`."""

    def __add__(self, other: object) -> Skipped:
        """Both; in the order of their rows."""
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


def input_named(item: str, taken: Container[str] = ()) -> tuple[str, str]:
    """Name and path of a table given as ``NAME=PATH`` or ``PATH``; without a name that of the file or folder serves.

    What stands before ``=`` is no name where it has a slash: it is part of a path, or an object store's options.

    Examples
    --------
    >>> input_named("near=sample:unseen_digits"), input_named("sets/noise.npz")
    (('near', 'sample:unseen_digits'), ('noise', 'sets/noise.npz'))
    >>> input_named("far=sets/*.parquet"), input_named("sets/day=1/*.parquet")
    (('far', 'sets/*.parquet'), ('day=1', 'sets/day=1/*.parquet'))
    """
    name, equals, path = item.partition("=")
    if not equals or "/" in name:
        path, plain = item, item.removeprefix(SAMPLE).partition("?")[0] if "://" in item else item.removeprefix(SAMPLE)
        parts = [part for part in plain.replace(os.sep, "/").split("/") if part and not glob.has_magic(part)]
        name = os.path.splitext(parts[-1])[0] if parts else plain
    if name in taken:
        raise InvalidInput(f"another table is called {name!r}; name this one: OTHER={path}.")
    return name, path


class RowSource:
    """Tables that are read as one; only their heads are read yet.

    Parameters
    ----------
    paths : path, or several
        Files, folders and globs, here or in an object store; ``-`` or a named pipe; ``sample:NAME``.
    names : sequence of str, optional
        Read these arrays only, as far as the files have them; labels and head are always read. By default all.
    class_names : sequence of str, optional
        The classes of a detector: columns of logits are matched by these names where files have any, and columns of
        no class are left out. By default the order is that of the first file.
    probabilities : bool
        The logits are probabilities; their logarithm is taken.
    keep : sequence of str
        Further columns that come with the rows.

    Raises
    ------
    FileFormatError
        When files do not hold the same arrays; they may hold the columns of an array in another order.
    InvalidInput
        When a class has no column.
    """

    def __init__(
        self,
        paths: Paths,
        names: Sequence[str] | None = None,
        *,
        class_names: Sequence[str] | None = None,
        probabilities: bool = False,
        keep: Sequence[str] = (),
    ) -> None:
        given = [os.fspath(one) for one in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
        self.path = given[0] if given else ""
        """The first, as it was given."""
        self.stays_here = next(filter(_stays_here, given), "")
        """What no other process can read: a pipe, or the sample."""
        wanted = None if names is None else list(dict.fromkeys(names))
        files = [SourceFile(one, 0, 0) for one in given] if self.stays_here else find_files(given)
        if self.stays_here and len(given) > 1:
            raise InvalidInput(f"{self.stays_here} cannot be read together with other tables; give files and folders.")
        self.is_one_table = len(given) == 1 and (bool(self.stays_here) or os.path.isfile(given[0]))
        heads = _read_heads(files, {"names": wanted, "keep": keep, "class_names": class_names})
        self._heads = {file.path: head for file, head in zip(files, heads, strict=True) if head is not None}
        self.files = [file for file in files if file.path in self._heads]
        self.empty = [file.path for file in files if file.path not in self._heads]
        if not self.files:
            raise FileFormatError(f"{self.path} holds no rows.")
        self.notes: list[str] = []
        self.layout = self._common_layout(class_names, probabilities)
        self._begun: Iterator[Chunk] | None = None

    def _common_layout(self, class_names: Sequence[str] | None, probabilities: bool) -> Layout:
        first_path, first = next(iter(self._heads.items()))
        root = _common_folder([path.partition("?")[0].replace(os.sep, "/") for path in self._heads])
        layout = first.layout._replace(probabilities=probabilities, root=root)
        for path, head in self._heads.items():
            _require_same(layout, head.layout, first_path, path)
        order = class_order(class_names, layout.class_names, first_path)
        if order is not None and layout.class_names is not None:
            layout = self._reordered(layout, order, first_path)
        for path, head in self._heads.items():
            class_order(layout.class_names, head.layout.class_names, path)  # raises where a class is missing
        return layout

    def _reordered(self, layout: Layout, order: IntArray, path: str) -> Layout:
        taken = tuple((layout.class_names or ())[place] for place in order)
        if left := [name for name in layout.class_names or () if name not in taken]:
            self.notes.append(f"{path}: columns that are no class of the detector are left out: {', '.join(left)}")
        if (np.diff(order) < 0).any():
            self.notes.append(f"{path}: the columns of logits are matched by name; they stand in another order")
        widths = layout.widths | ({LOGITS: len(taken)} if layout.has_logits else {})
        return layout._replace(widths=widths, n_classes=len(taken), class_names=taken)

    @property
    def n_rows(self) -> int | None:
        """Rows of all files; None where only reading tells."""
        sizes = [head.n_rows for head in self._heads.values()]
        return None if None in sizes else sum(size or 0 for size in sizes)

    @property
    def n_bytes(self) -> int:
        """On disk, of all files."""
        return sum(file.size for file in self.files)

    def whole(self) -> Piece:
        """All rows as one piece."""
        spans = tuple(Span(file, None, 0, 0, None) for file in self.files)
        return Piece(0, spans, self.n_rows, self.n_bytes)

    def file_pieces(self, piece_rows: int = PIECE_ROWS) -> list[Piece]:
        """Pieces of one file each: row groups are put together up to so many rows."""
        at_least(piece_rows, "piece_rows", 1)
        pieces: list[Piece] = []
        for file in self.files:
            pieces += cut_parts(len(pieces), file, self._heads[file.path].parts, piece_rows)
        return pieces

    def row_pieces(self, piece_rows: int = PIECE_ROWS) -> list[Piece]:
        """Pieces of exactly so many rows, whatever files they are in; one piece where all rows are fewer.

        Of text the number of rows is not known before it is read, so its files are pieces of their own.
        """
        at_least(piece_rows, "piece_rows", 1)
        if self.n_rows is None:
            return self.file_pieces(piece_rows) if not self.stays_here else [self.whole()]
        if self.n_rows <= piece_rows:
            return [self.whole()]
        pieces: list[list[Span]] = [[]]
        room = piece_rows
        for file in self.files:
            start, head = 0, self._heads[file.path]
            n_rows = head.n_rows or 0
            while start < n_rows:
                if not room:
                    pieces.append([])
                    room = piece_rows
                stop = min(n_rows, start + room)
                pieces[-1].append(_span(file, head.parts, start, stop))
                room -= stop - start
                start = stop
        per_row = self.n_bytes / self.n_rows
        counts = [sum((span.stop or 0) - span.start for span in spans) for spans in pieces]
        return [
            Piece(number, tuple(spans), count, int(per_row * count))
            for number, (spans, count) in enumerate(zip(pieces, counts, strict=True))
        ]

    def look(self, *, reads_logits: bool = True, check_labels: bool = False) -> None:
        """Look at the first rows: refuse what is surely wrong, and note what probably is."""
        chunks = _read_spans(self.whole(), self.layout, self._heads)
        first = next((chunk for chunk in chunks if len(chunk.outputs)), None)
        if first is None:
            raise InvalidInput(f"{self.path} holds no rows.")
        self._begun = itertools.chain([first], chunks)
        self.notes += look_at_first_rows(
            first.outputs,
            first.origins[0][0],
            self.layout.class_names,
            probabilities=self.layout.probabilities,
            reads_logits=reads_logits,
            check_labels=check_labels,
        )

    def chunks(self) -> Iterator[Chunk]:
        """All rows, read by this process; goes on with the rows that :meth:`look` read."""
        begun, self._begun = self._begun, None
        return _prepared(begun or _read_spans(self.whole(), self.layout, self._heads), self.layout)

    def worker_bytes(self, pieces: Sequence[Piece]) -> int:
        """About what a worker needs at most: some chunks of float64 numbers and the scores of a piece."""
        largest = max(piece.n_rows or 0 for piece in pieces)
        width = sum(self.layout.widths.values())
        chunk = 3 * np.dtype(np.float64).itemsize * min(CHUNK_ELEMENTS, largest * width or CHUNK_ELEMENTS)
        scores = 4 * 17 * largest  # score, class and flag, joined and written
        fetched = max(piece.n_bytes if is_remote(piece.file.path) else 0 for piece in pieces)  # few large requests
        return _WORKER_BYTES + chunk + scores + fetched

    def describe(self, pieces: Sequence[Piece]) -> str:
        """What a job of these pieces will read and need, in lines."""
        empty = f", and {len(self.empty)} without rows" if self.empty else ""
        rows = "an unknown number of" if self.n_rows is None else f"{self.n_rows:,}"
        return os.linesep.join(
            [
                f"{len(self.files)} files{empty}",
                f"{rows} rows in {len(pieces)} pieces, {sum(piece.n_bytes for piece in pieces) / 1e6:,.1f} MB to read",
                f"about {self.worker_bytes(pieces) / 1e6:,.0f} MB of memory per worker",
            ]
        )


class PieceRows:
    """The rows of a piece for a detector, without those that hold NaN or infinity where they are to be skipped.

    Parameters
    ----------
    chunks : iterable of Chunk
    names : sequence of str
        Arrays in which a row must be finite.
    on_invalid : {"raise", "skip"}
    """

    def __init__(self, chunks: Iterable[Chunk], names: Sequence[str], on_invalid: str) -> None:
        self._chunks, self._names = chunks, [*dict.fromkeys(names)]
        self.skips = one_of(on_invalid, "on_invalid", ON_INVALID) == "skip"
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
        good = finite_rows(chunk.outputs, self._names)
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
        good = finite_rows(chunk.outputs, names)
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


def read_piece(piece: Piece, layout: Layout) -> Iterator[Chunk]:
    """The rows of a piece, in any process; raises where a file is not the one that was planned with."""
    return _prepared(_read_spans(piece, layout, {}), layout)


def _prepared(chunks: Iterable[Chunk], layout: Layout) -> Iterator[Chunk]:
    """The same rows in chunks of :attr:`Layout.chunk_rows`, whatever files they are in; probabilities become logits."""
    waiting: list[Chunk] = []
    n_waiting = 0
    for chunk in chunks:
        if layout.probabilities and layout.has_logits:
            logs = log_of_probabilities(chunk.outputs.logits, chunk.origins[0][0])
            chunk = chunk._replace(outputs=chunk.outputs.replace(logits=logs))
        start, length = 0, len(chunk.outputs)
        while length - start >= layout.chunk_rows - n_waiting:
            stop = start + layout.chunk_rows - n_waiting
            yield _joined([*waiting, _cut(chunk, start, stop)])
            waiting, n_waiting, start = [], 0, stop
        if start < length:
            waiting.append(_cut(chunk, start, length))
            n_waiting += length - start
    if waiting:
        yield _joined(waiting)


def _read_spans(piece: Piece, layout: Layout, heads: dict[str, _Head]) -> Iterator[Chunk]:
    """The rows of a piece as the files give them; a chunk comes from one file."""
    return itertools.chain.from_iterable(_read_span(span, layout, heads) for span in piece.spans)


def _read_span(span: Span, layout: Layout, heads: dict[str, _Head]) -> Iterator[Chunk]:
    path = span.file.path
    is_file = not _stays_here(path)
    if is_file:
        span.file.check()
    reader = heads[path].reader if path in heads and span.parts is None else None
    if reader is not None:
        heads[path] = heads[path]._replace(reader=None)  # it is closed afterwards
    else:
        options: dict[str, Any] = {"names": list(layout.widths), "keep": list(layout.kept)}
        options |= {"class_names": layout.class_names}
        reader = open_table(path, parts=span.parts, **options)
    with reader:
        if layout.columns:
            reader.arrange(layout.columns)
        order = class_order(layout.class_names, reader.class_names, path)
        row = span.first_row
        for outputs, columns in reader.chunks_and_columns():
            first, last = max(span.start - row, 0), len(outputs) if span.stop is None else span.stop - row
            if last > first and first < len(outputs):
                turned = outputs if order is None else in_class_order(outputs, order)
                yield _cut(Chunk(turned, columns, ((path, row, len(outputs)),)), first, min(last, len(outputs)))
            row += len(outputs)
            if span.stop is not None and row >= span.stop:
                break
    if is_file:
        span.file.check()


def _cut(chunk: Chunk, start: int, stop: int | None) -> Chunk:
    """Some rows of a chunk that comes from one file."""
    n = len(chunk.outputs)
    stop = n if stop is None else stop
    if start == 0 and stop == n:
        return chunk
    rows = slice(start, stop)
    columns = {name: column[rows] for name, column in chunk.columns.items()}
    path, first_row, _ = chunk.origins[0]
    return Chunk(chunk.outputs[rows], columns, ((path, first_row + start, stop - start),))


def _joined(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    columns = {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}
    origins = tuple(origin for chunk in chunks for origin in chunk.origins)
    return Chunk(ModelOutputs.concatenate([chunk.outputs for chunk in chunks]), columns, origins)


def cut_parts(index: int, file: SourceFile, parts: Sequence[TablePart], piece_rows: int) -> list[Piece]:
    """Put parts of a file together to pieces of so many rows; an empty part goes with its neighbour."""
    if len(parts) == 1:
        return [Piece(index, (Span(file, None, 0, 0, None),), parts[0].n_rows, parts[0].n_bytes or 0)]
    pieces: list[Piece] = []
    start, first_row, rows, n_bytes = 0, 0, 0, 0

    def close(stop: int) -> None:
        span = Span(file, range(start, stop), first_row, first_row, first_row + rows)
        pieces.append(Piece(index + len(pieces), (span,), rows, n_bytes))

    for place, (more, size) in enumerate((part.n_rows, part.n_bytes or 0) for part in parts):
        if rows and rows + (more or 0) > piece_rows:
            close(place)
            start, first_row, rows, n_bytes = place, first_row + rows, 0, 0
        rows, n_bytes = rows + (more or 0), n_bytes + size
    close(len(parts))
    return pieces


def _span(file: SourceFile, parts: Sequence[TablePart], start: int, stop: int) -> Span:
    """The rows from ``start`` to ``stop`` of a file, and the row groups that hold them."""
    if len(parts) == 1:
        return Span(file, None, 0, start, stop)
    edges = np.cumsum([0, *(part.n_rows or 0 for part in parts)])
    first = int(np.searchsorted(edges, start, side="right")) - 1
    last = int(np.searchsorted(edges, stop, side="left"))
    return Span(file, range(first, last), int(edges[first]), start, stop)


def _common_folder(paths: Sequence[str]) -> str:
    """The folder that all paths are in, with a slash at its end.

    Examples
    --------
    >>> _common_folder(["/in/day=1/a.npz", "/in/day=12/a.npz"]), _common_folder(["s3://b/a.parquet"])
    ('/in/', 's3://b/')
    """
    levels = zip(*(path.split("/")[:-1] for path in paths), strict=False)
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, levels)
    return "".join(f"{level[0]}/" for level in shared)


def _require_same(layout: Layout, own: Layout, first: str, path: str) -> None:
    if own.widths != layout.widths or own.has_labels != layout.has_labels:
        raise FileFormatError(f"{path} holds {own}, and {first} holds {layout}; all must be alike.")
    for name, columns in layout.columns.items():
        others = own.columns.get(name, columns)
        if sorted(others) != sorted(columns):
            strange = min(set(others) ^ set(columns))
            raise FileFormatError(
                f"{path} and {first} do not have the same columns of {name}: only one has {strange!r}."
            )


def _require_table(path: str) -> None:
    """Raise where a file holds a detector."""
    if path.endswith(".safetensors") and not is_remote(path):
        try:
            name = load_header(path)["detector"]
        except (FileFormatError, KeyError):
            return
        raise FileFormatError(
            f"{path} is a detector ({name}), and a table of outputs is expected here. A detector comes before the "
            "tables: normscale score DETECTOR TABLE."
        )


def _stays_here(path: str) -> bool:
    return path.startswith(SAMPLE) or is_pipe(path)


def _read_heads(files: list[SourceFile], options: dict[str, Any]) -> list[_Head | None]:
    """The head of every file; None for one without rows."""
    left_open = len(files) <= _LEFT_OPEN
    if len(files) == 1:
        return [_read_head(files[0], options, left_open)]
    with ThreadPoolExecutor(min(_LISTING_THREADS, len(files))) as pool:
        return list(pool.map(lambda file: _read_head(file, options, left_open), files))


def _read_head(file: SourceFile, options: dict[str, Any], left_open: bool) -> _Head | None:
    path = file.path
    _require_table(path)
    try:
        reader = _open_sample(path, options) if path.startswith(SAMPLE) else open_table(path, **options)
    except EmptyTable:
        return None
    columns = reader.array_columns if reader.format == "parquet" else {}
    kept = dict(reader.columns)
    layout = Layout(reader.widths, columns, reader.has_labels, reader.n_classes, reader.class_names, kept)
    parts = [part if part.n_bytes is not None else part._replace(n_bytes=file.size) for part in reader.parts]
    if reader.n_rows == 0 or not left_open:
        reader.close()
    return None if reader.n_rows == 0 else _Head(layout, reader.n_rows, parts, reader if left_open else None)


def _open_sample(path: str, options: dict[str, Any]) -> TableReader:
    """A set of the embedded sample, as the table that it would be in a file."""
    from normscale.sample import load_sample

    sample = load_sample()
    sets = {"train": sample.train, "validation": sample.validation, "test": sample.test, **sample.ood}
    outputs = sets.get(path.removeprefix(SAMPLE))
    if outputs is None:
        known = ", ".join(SAMPLE + name for name in sets)
        raise InvalidInput(f"the embedded sample has no set {path.removeprefix(SAMPLE)!r}; it has {known}.")
    arrays = {name: outputs.array(name) for name in outputs.names} | {"class_names": np.array(sample.class_names)}
    if outputs.labels is not None:
        arrays["labels"] = outputs.labels
    if outputs.head is not None:
        arrays |= {"head_weight": outputs.head.weight, "head_bias": outputs.head.bias}
    data = io.BytesIO()
    np.savez(data, **arrays)  # type: ignore[arg-type]
    return format_of("sample.npz").open(ByteSource.of_bytes(data.getvalue(), path), ReadOptions(**options))
