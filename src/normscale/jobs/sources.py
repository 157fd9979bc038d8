"""The rows of a job: tables that are read as one, and how they are cut into pieces.

Pieces follow from the files alone, never from the number of workers. Scores are made file by file
(:meth:`RowSource.file_pieces`). A fit counts rows over all files (:meth:`RowSource.row_pieces`), so that the same rows
give the same bits in one file or in many.
"""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale._validate import ON_INVALID, at_least, one_of
from normscale.errors import EmptyTable, FileFormatError, InvalidInput
from normscale.input_checks import log_of_probabilities, look_at_first_rows
from normscale.jobs.running import PIECE_ROWS, JobOptions, Paths, Say
from normscale.outputs import LOGITS, ModelOutputs, mask_of_finite_rows
from normscale.rows import (
    CHUNK_ELEMENTS,
    SourceFile,
    TableReader,
    find_files,
    is_pipe,
    is_remote,
    open_table,
)
from normscale.rows.arrays import CLASS_NAMES
from normscale.rows.columns import LABELS, LOGIT, class_order, in_class_order
from normscale.rows.files import ByteSource
from normscale.rows.formats.npy import Npz, NpzSink
from normscale.rows.reader import Chunk, even_chunks, gather

SAMPLE = "sample:"
LISTED = 1000
"""How many skipped rows of a piece are named; all are counted."""
_LISTING_THREADS = 16
_LEFT_OPEN = 64
"""Up to so many files stay open between the look at their heads and the reading of their rows."""
_WORKER_BYTES = 500 << 20
"""Of a process that has loaded Python, numpy, pyarrow, the kernels and Ray: measured by benchmarks/engines.py."""

_MEMORY = 8 << 30
"""The bound in bytes where the system does not say how much memory is free."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


class Span(NamedTuple):
    """Some consecutive rows of a file."""

    file: SourceFile
    n_rows: int | None = None
    """None where only reading tells: text."""
    n_bytes: int = 0
    """On disk."""
    rows: range | None = None
    """Their numbers in the file; None: all."""


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
    """Empty for formats that hold arrays."""
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


class MemoryBound:
    """Counts rows that are kept in memory, and refuses more than may be; by default half of what is free.

    Examples
    --------
    >>> MemoryBound("1.5 GB").n_bytes, MemoryBound("2GiB").n_bytes, MemoryBound(1000).n_bytes
    (1500000000, 2147483648, 1000)
    """

    def __init__(self, given: int | str | None = None, why: str = "", advice: str = "", copies: int = 1) -> None:
        self._why, self._advice, self._copies = why, advice, copies
        self.n_bytes, self._because = _bytes_of(given)
        self._used = 0

    def add(self, outputs: ModelOutputs, n_rows: int | None = None) -> None:
        """Count rows of which there will be ``n_rows`` in all, if that is known; raise where they will not fit."""
        more = self._copies * sum(outputs.array(name).nbytes for name in outputs.names)
        self._used += more
        expected = self._used if n_rows is None or not len(outputs) else max(self._used, more * n_rows // len(outputs))
        if expected > self.n_bytes:
            least = "at least " if n_rows is None else ""
            raise InvalidInput(
                f"{self._why}: they take {least}{_shown(expected)} of memory, and the bound is {_shown(self.n_bytes)} "
                f"({self._because}). Pass memory={_shown(expected)!r} or more, or {self._advice}."
            )


class PieceRows:
    """The rows of a piece for a detector, without those that hold NaN or infinity where they are to be skipped.

    A row must be finite in the arrays ``names``; ``on_invalid`` says what becomes of others: "raise" or "skip".
    """

    def __init__(self, chunks: Iterable[Chunk], layout: Layout, names: Sequence[str], on_invalid: str) -> None:
        self._chunks = even_chunks(chunks, max(1, CHUNK_ELEMENTS // sum(layout.widths.values())))
        self._names = [*dict.fromkeys(names)]
        self.skips = one_of(on_invalid, "on_invalid", ON_INVALID) == "skip"
        self._last: Chunk | None = None
        self.skipped = Skipped()
        self.n_rows = 0

    def __iter__(self) -> Iterator[ModelOutputs]:
        for chunk, good in self.with_masks():
            yield chunk.outputs if good is None or good.all() else chunk.outputs[good]

    def with_masks(self) -> Iterator[tuple[Chunk, NDArray[np.bool_] | None]]:
        """Iterate over all rows and which of them are good; None where bad rows are not to be skipped."""
        for chunk in self._chunks:
            self._last = chunk
            good = mask_of_finite_rows(chunk.outputs, self._names) if self.skips else None
            if good is not None and (bad := np.flatnonzero(~good)).size:
                room = max(0, LISTED - len(self.skipped.rows))
                self.skipped += Skipped(bad.size, tuple(chunk.origin(int(row)) for row in bad[:room]))
            self.n_rows += len(chunk.outputs) if good is None else int(good.sum())
            yield chunk, good

    def gathered(
        self,
        n_rows: int | None,
        bound: MemoryBound,
        watch: Callable[[Iterable[ModelOutputs]], Iterable[ModelOutputs]] = iter,
    ) -> ModelOutputs | None:
        """All rows in one place, by way of ``watch``; ``n_rows`` is how many there will be, where that is known."""
        origins: list[tuple[str, int, int]] = []

        def within() -> Iterator[ModelOutputs]:
            for outputs in self:
                bound.add(outputs, n_rows)
                origins.extend(() if self._last is None else self._last.origins)
                yield outputs

        found = gather(watch(within()), n_rows)
        self._last = None if found is None else Chunk(found, {}, tuple(origins))
        return found

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Let an error of the body tell the file, and the row that is to blame where one is not finite."""
        try:
            yield
        except InvalidInput as error:
            raise self._explained(error) from None

    def _explained(self, error: InvalidInput) -> InvalidInput:
        """The error with the file and the row.

        The row is looked for in the last chunk, or in all rows where they were gathered.
        """
        chunk = self._last
        if chunk is None:
            return error
        names = [name for name in self._names if name in chunk.outputs.names]
        good = mask_of_finite_rows(chunk.outputs, names)
        if good.all() or self.skips:
            path = chunk.origins[0][0]
            is_one = len({path for path, _, _ in chunk.origins}) == 1
            return error if path in str(error) or not is_one else type(error)(f"{path}: {error}")
        row = int(np.argmin(good))
        name = next(name for name in names if not np.isfinite(chunk.outputs.array(name)[row]).all())
        path, number = chunk.origin(row)
        values = chunk.outputs.array(name)[row]
        column = int(np.argmin(np.isfinite(values)))
        what = "NaN" if np.isnan(values[column]) else "infinity"
        return InvalidInput(
            f'{path}: row {number} holds {what} in column {column} of {name}. Drop the row or pass on_invalid="skip".'
        )


class _Head(NamedTuple):
    """What the head of a file says."""

    layout: Layout
    n_rows: int | None
    edges: list[int]
    """The first row of every row group, and the number of all rows."""
    reader: TableReader | None
    """Left open where files are few, so that this process opens them once."""


class RowSource:
    """Tables that are read as one; only their heads are read yet. In another process it knows its layout alone.

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
        alone = next(filter(_is_no_file, given), None)
        if alone is not None and len(given) > 1:
            raise InvalidInput(f"{alone} cannot be read together with other tables; give files and folders.")
        self.pipe = alone if alone is not None and is_pipe(alone) else None
        """What no other process can read."""
        files = find_files(given) if alone is None else [SourceFile(alone, 0, None)]
        self.is_one_table = alone is not None or (len(given) == 1 and os.path.isfile(given[0]))
        wanted = None if names is None else list(dict.fromkeys(names))
        heads = _read_heads(files, {"names": wanted, "keep": keep, "class_names": class_names})
        self._heads = {file.path: head for file, head in zip(files, heads, strict=True) if head is not None}
        self._readers = {path: head.reader for path, head in self._heads.items() if head.reader is not None}
        self.files = [file for file in files if file.path in self._heads]
        self.n_empty = len(files) - len(self.files)
        if not self.files:
            raise FileFormatError(f"{self.path} holds no rows; a table has a row for every input.")
        self.n_rows = self.whole().n_rows
        """Rows of all files; None where only reading tells."""
        self.n_bytes = sum(file.size for file in self.files)
        """On disk, of all files."""
        self.notes: list[str] = []
        self.layout = self._common_layout(class_names, probabilities)
        self._begun: Iterator[Chunk] | None = None
        self._close_pipe: Callable[[], None] = lambda: None

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self.layout, "files": (), "_readers": {}, "_begun": None}

    def _common_layout(self, class_names: Sequence[str] | None, probabilities: bool) -> Layout:
        first_path, first = next(iter(self._heads.items()))
        root = _common_folder([path.partition("?")[0].replace(os.sep, "/") for path in self._heads])
        layout = first.layout._replace(probabilities=probabilities, root=root)
        for path, head in self._heads.items():
            _require_same(layout, head.layout, first_path, path)
        if (names := layout.class_names) is None:
            return layout
        order = class_order(class_names, names, first_path)
        if order is not None:
            taken = tuple(names[place] for place in order)
            if left := [name for name in names if name not in taken]:
                text = f"{first_path}: columns that are no class of the detector are left out: {', '.join(left)}"
                self.notes.append(text)
            if (np.diff(order) < 0).any():
                self.notes.append(
                    f"{first_path}: the columns of logits are matched by name; they stand in another order"
                )
            widths = layout.widths | ({LOGITS: len(taken)} if layout.has_logits else {})
            layout = layout._replace(widths=widths, n_classes=len(taken), class_names=taken)
        for path, head in self._heads.items():
            class_order(layout.class_names, head.layout.class_names, path)  # raises where a class is missing
        return layout

    def refuse_pieces(self, advice: str) -> None:
        """Raise where the rows come from a pipe, which other processes cannot read."""
        if self.pipe:
            self._close_pipe()
            raise InvalidInput(f"{self.pipe} cannot be read in pieces by other processes; {advice}.")

    def whole(self) -> Piece:
        """All rows as one piece."""
        return Piece(0, tuple(self._span(file) for file in self.files))

    def file_pieces(self, piece_rows: int = PIECE_ROWS) -> list[Piece]:
        """Pieces of one file each: row groups are put together up to so many rows."""
        at_least(piece_rows, "piece_rows", 1)
        spans = []
        for file in self.files:
            edges, cuts = self._heads[file.path].edges, [0]
            for before, after in itertools.pairwise(edges):
                if after - cuts[-1] > piece_rows and before > cuts[-1]:
                    cuts.append(before)
            spans += [self._span(file, *cut) for cut in itertools.pairwise([*cuts, edges[-1]])]
        return [Piece(number, (span,)) for number, span in enumerate(spans)]

    def row_pieces(self, piece_rows: int = PIECE_ROWS) -> list[Piece]:
        """Pieces of exactly so many rows, whatever files they are in; one piece where all rows are fewer.

        Of text the number of rows is not known before it is read, so its files are pieces of their own.
        """
        at_least(piece_rows, "piece_rows", 1)
        pieces: list[list[Span]] = [[]]
        room = piece_rows
        for file in self.files:
            start, n_rows = 0, self._heads[file.path].n_rows
            if n_rows is None:
                pieces += [[self._span(file)], []]
                room = piece_rows
            while start < (n_rows or 0):
                stop = min(start + room, n_rows or 0)
                pieces[-1].append(self._span(file, start, stop))
                room -= stop - start
                start = stop
                if not room:
                    pieces.append([])
                    room = piece_rows
        return [Piece(number, tuple(spans)) for number, spans in enumerate(filter(None, pieces))]

    def _span(self, file: SourceFile, start: int = 0, stop: int | None = None) -> Span:
        """The rows from ``start`` to ``stop`` of a file."""
        n_rows = self._heads[file.path].n_rows
        if n_rows is None or stop is None or stop - start == n_rows:
            return Span(file, n_rows, file.size)
        return Span(file, stop - start, file.size * (stop - start) // n_rows, range(start, stop))

    def chunks(self, piece: Piece) -> Generator[Chunk, None, None]:
        """The rows of a piece as the files have them; a chunk comes from one file.

        Raises where a file is not the one that was planned with.
        """
        layout = self.layout
        for span in piece.spans:
            path = span.file.path
            reader = self._readers.pop(path, None)
            span.file.check()
            if reader is None:
                options = {"names": list(layout.widths), "keep": list(layout.kept), "class_names": layout.class_names}
                reader = _open(path, options)
            reader.arrange(layout.columns)
            order = class_order(layout.class_names, reader.class_names, path)
            try:
                for chunk in reader.blocks(span.rows):
                    outputs = chunk.outputs if order is None else in_class_order(chunk.outputs, order)
                    if layout.probabilities and layout.has_logits:
                        outputs = outputs.replace(logits=log_of_probabilities(outputs.logits, path))
                    yield chunk._replace(outputs=outputs)
            except BaseException:
                reader.close()
                raise
            span.file.check()
            if span.rows is not None and len(self._readers) < _LEFT_OPEN:
                self._readers[path] = reader  # the next piece goes on in it
            else:
                reader.close()

    def look(self, say: Say, *, reads_logits: bool = True, check_labels: bool = False) -> None:
        """Look at the first rows: refuse what is surely wrong, and say what probably is."""
        chunks = self.chunks(self.whole())
        first = next((chunk for chunk in chunks if len(chunk.outputs)), None)
        if first is None:
            raise InvalidInput(f"{self.path} holds no rows.")
        self._begun, self._close_pipe = itertools.chain([first], chunks), chunks.close
        self.has_head = first.outputs.head is not None
        remarks = look_at_first_rows(
            first.outputs,
            first.origins[0][0],
            self.layout.class_names,
            probabilities=self.layout.probabilities,
            reads_logits=reads_logits,
            check_labels=check_labels,
        )
        for remark in self.notes + remarks:
            say(remark)

    def rows(self, piece: Piece | None, names: Sequence[str], on_invalid: str) -> PieceRows:
        """The rows of a piece, or all; all go on with the rows that :meth:`look` read."""
        chunks = None
        is_whole = piece is None or (len(piece.spans) == len(self.files) and piece == self.whole())
        if is_whole and self._begun is not None:
            chunks, self._begun = self._begun, None
        if chunks is None:
            chunks = self.chunks(self.whole() if piece is None else piece)
        return PieceRows(chunks, self.layout, names, on_invalid)


def read(
    paths: Paths | RowSource,
    names: Sequence[str] | None = None,
    *,
    class_names: Sequence[str] | None = None,
    reads_logits: bool = True,
    check_labels: bool = False,
    advice: str = "give a sample of the rows",
    **options: Any,
) -> ModelOutputs:
    """All rows of tables in one record, within a bound of memory, looked at as a job looks at them.

    ``names`` are the arrays to read beside logits, by default all; a source has them already. Columns of logits are
    matched by ``class_names``. Probabilities are no mistake where logits are not read (``reads_logits``). With
    ``check_labels`` labels that do not go with the logits are told. ``advice`` says what to do where the rows do not
    fit into memory. ``options`` are ``probabilities``, ``on_invalid``, ``memory`` and ``say`` of
    :class:`~normscale.jobs.JobOptions`.
    """
    job = JobOptions(**options)
    source = paths
    if not isinstance(source, RowSource):
        arrays = None if names is None else [*names, LOGITS]
        source = RowSource(source, arrays, class_names=class_names, probabilities=job.probabilities)
    source.look(job.say, reads_logits=reads_logits, check_labels=check_labels)
    rows = source.rows(None, tuple(source.layout.widths), job.on_invalid)
    bound = MemoryBound(job.memory, f"the rows of {source.path} are read into one place", advice)
    found = rows.gathered(source.n_rows, bound)
    if found is None:
        raise InvalidInput(f"{source.path} holds no rows.")
    if rows.skipped.n:
        total = rows.n_rows + rows.skipped.n
        job.say(f"{source.path}: {rows.skipped.n} of {total} rows hold NaN or infinity and are left out")
    return found


def describe(paths: Paths, names: Sequence[str] | None, piece_rows: int = PIECE_ROWS, *, by_file: bool) -> str:
    """What a fit, or a score ``by_file``, will read, and about what a worker needs at most, in lines."""
    source = RowSource(paths, names)
    pieces = source.file_pieces(piece_rows) if by_file else source.row_pieces(piece_rows)
    empty = f", and {source.n_empty} without rows" if source.n_empty else ""
    rows = "an unknown number of" if source.n_rows is None else f"{source.n_rows:,}"
    largest = max(piece.n_rows or 0 for piece in pieces)
    numbers = min(CHUNK_ELEMENTS, largest * sum(source.layout.widths.values()) or CHUNK_ELEMENTS)
    scores = 4 * 17 * largest  # score, class and flag, joined and written
    fetched = max(piece.n_bytes if is_remote(piece.file.path) else 0 for piece in pieces)  # few large requests
    memory = _WORKER_BYTES + 3 * 8 * numbers + scores + fetched
    return os.linesep.join(
        [
            f"{len(source.files)} files{empty}",
            f"{rows} rows in {len(pieces)} pieces, {sum(piece.n_bytes for piece in pieces) / 1e6:,.1f} MB to read",
            f"about {memory / 1e6:,.0f} MB of memory per worker",
        ]
    )


def _bytes_of(given: int | str | None) -> tuple[int, str]:
    if given is None:
        try:
            with open("/proc/meminfo", encoding="ascii") as file:
                free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
        except (OSError, StopIteration, ValueError):
            return _MEMORY, "the default"
        return free // 2, "half of what is free"
    found = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([kmgt]?i?)b?\s*", str(given).lower())
    if found is None or found[2] not in _UNITS:
        raise InvalidInput(f"memory must be a number of bytes, such as 500MB or 8GiB; got {given!r}.")
    return int(float(found[1]) * _UNITS[found[2]]), "as given"


def _shown(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f}GB" if n_bytes >= 10**8 else f"{-(-n_bytes // 1000)}kB"


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
    are_named = layout.class_names is not None and own.class_names is not None  # then logits are matched by these
    for name in (layout.columns.keys() & own.columns.keys()) - ({LOGITS} if are_named else set()):
        here, there = ({one.removeprefix(LOGIT): one for one in of.columns[name]} for of in (layout, own))
        if strange := here.keys() ^ there.keys():
            raise FileFormatError(
                f"{path} and {first} do not have the same columns of {name}: only one has "
                f"{(here | there)[min(strange)]!r}."
            )


def _read_heads(files: list[SourceFile], options: dict[str, Any]) -> Iterable[_Head | None]:
    def read_head(file: SourceFile) -> _Head | None:
        try:
            reader = _open(file.path, options)
        except EmptyTable:
            return None
        own = reader.has_labels, reader.n_classes, reader.class_names, dict(reader.columns)
        layout = Layout(reader.widths, reader.array_columns, *own)
        edges, is_left_open = reader.edges, len(files) <= _LEFT_OPEN and reader.n_rows != 0
        if not is_left_open:
            reader.close()
        return None if reader.n_rows == 0 else _Head(layout, reader.n_rows, edges, reader if is_left_open else None)

    if len(files) == 1:
        return map(read_head, files)
    with ThreadPoolExecutor(min(_LISTING_THREADS, len(files))) as pool:
        return pool.map(read_head, files)


def _is_no_file(path: str) -> bool:
    return path.startswith(SAMPLE) or is_pipe(path)


def _open(path: str, options: dict[str, Any]) -> TableReader:
    return _open_sample(path, options) if path.startswith(SAMPLE) else open_table(path, **options)


def _open_sample(path: str, options: dict[str, Any]) -> TableReader:
    """A set of the embedded sample, as the table that it would be in a file."""
    from normscale.sample import load_sample

    sample = load_sample()
    outputs = sample.sets.get(path.removeprefix(SAMPLE))
    if outputs is None:
        known = ", ".join(SAMPLE + name for name in sample.sets)
        raise InvalidInput(f"the embedded sample has no set {path.removeprefix(SAMPLE)!r}; it has {known}.")
    data = io.BytesIO()
    sink = NpzSink(data, path, {}, outputs.head, {CLASS_NAMES: sample.class_names})
    labels = {} if outputs.labels is None else {LABELS: outputs.labels}
    sink.write({name: outputs.array(name) for name in outputs.names} | labels)
    sink.finish()
    return Npz(ByteSource.of_bytes(data.getvalue(), path), **options)
