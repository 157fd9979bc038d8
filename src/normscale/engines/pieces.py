"""What a job is cut into: pieces, each some row groups of a Parquet file, or a file of another format.

Pieces follow from the files alone, never from the number of workers: order, output name, starting state and proof of
completion are those of a piece's number.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from normscale._validate import at_least
from normscale.engines.locations import SourceFile, file_system, find_files, is_remote
from normscale.errors import FileFormatError
from normscale.input_checks.class_order import class_order, in_class_order
from normscale.outputs import LOGITS, ModelOutputs
from normscale.tables import open_table
from normscale.tables.arrow import need_arrow
from normscale.tables.formats import format_by_suffix
from normscale.tables.read_parquet import ParquetReader
from normscale.tables.reader import TableReader

PIECE_ROWS = 500_000
"""Rows of a piece, unless a single row group has more."""
_LISTING_THREADS = 16


class Piece(NamedTuple):
    """Some consecutive rows of a file."""

    number: int
    """Its place among all pieces."""
    file: SourceFile
    row_groups: range | None
    """Of a Parquet file; None: the whole file."""
    first_row: int
    """The number of its first row in the file."""
    n_rows: int | None
    """None where only reading tells: text."""
    n_bytes: int
    """On disk."""


class Layout(NamedTuple):
    """What is read of every file: the arrays, the columns of each in the order of the first file, and the classes."""

    widths: dict[str, int]
    columns: dict[str, list[str]]
    """Of Parquet files; empty for other formats."""
    has_labels: bool
    n_classes: int | None
    class_names: tuple[str, ...] | None
    """In the order in which logits are read; a file whose columns stand in another order is turned."""

    @property
    def has_logits(self) -> bool:
        """Whether predicted classes are known."""
        return LOGITS in self.widths


class Pieces(NamedTuple):
    """All pieces of some files, and how they are read."""

    layout: Layout
    pieces: list[Piece]
    empty: list[str]
    """Files without rows."""

    @property
    def n_bytes(self) -> int:
        """On disk, of all pieces."""
        return sum(piece.n_bytes for piece in self.pieces)


def open_parquet(path: str, **options: Any) -> Any:
    """A Parquet file, here or in an object store; ``options`` are for files here."""
    parquet = need_arrow("pyarrow.parquet", path)
    if is_remote(path):
        system, inside = file_system(path)
        return parquet.ParquetFile(inside, filesystem=system, pre_buffer=True)  # few large requests
    return parquet.ParquetFile(path, page_checksum_verification=True, **options)


class PieceReader(ParquetReader):
    """Some row groups of a Parquet file, here or in an object store."""

    def __init__(self, path: str, names: Sequence[str] | None, row_groups: range | None = None) -> None:
        self._row_groups = row_groups
        super().__init__(path, None, names=names)

    def _opened(self, **options: Any) -> Any:
        return open_parquet(self._file, **options)

    def group_sizes(self) -> list[tuple[int, int]]:
        """Rows and bytes of every row group."""
        with self._opened() as file:
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            return [
                (group.num_rows, sum(group.column(i).total_compressed_size for i in range(group.num_columns)))
                for group in groups
            ]

    @property
    def array_columns(self) -> dict[str, list[str]]:
        """Array -> the columns that make it."""
        return {name: self._columns[name] for name in self.widths}

    def arrange(self, columns: dict[str, list[str]]) -> None:
        """Read the columns in this order; not those of logits, whose order is that of the labels and the head."""
        self._columns |= {name: names for name, names in columns.items() if name != LOGITS}


def plan_pieces(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    names: Sequence[str] | None = None,
    *,
    piece_rows: int = PIECE_ROWS,
    class_names: Sequence[str] | None = None,
) -> Pieces:
    """Cut files into pieces; only the heads of the files are read.

    Parameters
    ----------
    paths : path, or several
        As in :func:`~normscale.engines.locations.find_files`.
    names : sequence of str, optional
        Read these arrays only, as far as the files have them. By default all.
    piece_rows : int
        Row groups are put together up to this number of rows; one that is larger is a piece of its own.
    class_names : sequence of str, optional
        The classes of a detector: columns of logits are matched by these names where files have any, and columns of
        no class are left out. By default the order is that of the first file.

    Raises
    ------
    FileFormatError
        When files do not hold the same arrays; they may hold the columns of an array in another order.
    InvalidInput
        When a class has no column.
    """
    at_least(piece_rows, "piece_rows", 1)
    wanted = None if names is None else list(dict.fromkeys(names))
    files = find_files(paths)
    with ThreadPoolExecutor(min(_LISTING_THREADS, len(files))) as pool:
        heads = list(pool.map(lambda file: _head(file, wanted), files))
    filled = [(file, head) for file, head in zip(files, heads, strict=True) if head is not None]
    empty = [file.path for file, head in zip(files, heads, strict=True) if head is None]
    if not filled:
        raise FileFormatError(f"{files[0].path}{' and the others hold' if len(files) > 1 else ' holds'} no rows.")
    first = filled[0][1][0]
    layout = _in_order(first, class_names, filled[0][0].path)
    pieces: list[Piece] = []
    for file, (own, groups) in filled:
        _require_same(first, own, filled[0][0].path, file.path)
        class_order(layout.class_names, own.class_names, file.path)  # raises where a class is missing
        pieces += cut_pieces(len(pieces), file, groups, piece_rows)
    return Pieces(layout, pieces, empty)


def _in_order(layout: Layout, class_names: Sequence[str] | None, path: str) -> Layout:
    """The layout with the classes that are wanted."""
    order = class_order(class_names, layout.class_names, path)
    if order is None or layout.class_names is None:
        return layout
    taken = tuple(layout.class_names[place] for place in order)
    widths = layout.widths | ({LOGITS: len(taken)} if layout.has_logits else {})
    return layout._replace(widths=widths, n_classes=len(taken), class_names=taken)


def read_piece(piece: Piece, layout: Layout) -> Iterator[ModelOutputs]:
    """The rows of a piece, chunk by chunk; raises where the file is not the one that was planned with."""
    piece.file.check()
    reader = _open(piece.file.path, list(layout.widths), piece.row_groups)
    if isinstance(reader, PieceReader):
        reader.arrange(layout.columns)
    order = class_order(layout.class_names, reader.class_names, piece.file.path)
    for chunk in reader.chunks():
        yield chunk if order is None else in_class_order(chunk, order)
    piece.file.check()


Groups = list[tuple[int | None, int]]
"""Rows and bytes of the parts of a file that can be read on their own."""


def _head(file: SourceFile, names: list[str] | None) -> tuple[Layout, Groups] | None:
    """What a file holds; None where it holds no rows."""
    if format_by_suffix(file.path.partition("?")[0]) == "parquet" and _has_no_rows(file):
        return None
    reader = _open(file.path, names)
    columns: dict[str, list[str]] = {}
    groups: Groups = [(reader.n_rows, file.size)]
    if isinstance(reader, PieceReader):
        columns = reader.array_columns
        groups = list(reader.group_sizes())
    if reader.n_rows == 0:
        return None
    return Layout(reader.widths, columns, reader.has_labels, reader.n_classes, reader.class_names), groups


def _has_no_rows(file: SourceFile) -> bool:
    try:
        with open_parquet(file.path) as table:
            return bool(table.metadata.num_rows == 0)
    except (OSError, ValueError):
        return False  # the reader says what is wrong


def _open(path: str, names: list[str] | None, row_groups: range | None = None) -> TableReader:
    kind = format_by_suffix(path.partition("?")[0] if is_remote(path) else path)
    if kind == "parquet":
        return PieceReader(path, names, row_groups)
    if is_remote(path):
        raise FileFormatError(f"{path}: object stores are read as .parquet only; copy the file here first.")
    return open_table(path, names=names)


def _require_same(layout: Layout, own: Layout, first: str, path: str) -> None:
    if own.widths != layout.widths or own.has_labels != layout.has_labels:
        raise FileFormatError(f"{path} holds {_shown(own)}, and {first} holds {_shown(layout)}; all must be alike.")
    for name, columns in layout.columns.items():
        others = own.columns.get(name, columns)
        if sorted(others) != sorted(columns):
            strange = min(set(others) ^ set(columns))
            raise FileFormatError(
                f"{path} and {first} do not have the same columns of {name}: only one has {strange!r}."
            )


def _shown(layout: Layout) -> str:
    arrays = [f"{width} {name}" for name, width in layout.widths.items()]
    return " + ".join(arrays + ["labels"] * layout.has_labels)


def cut_pieces(index: int, file: SourceFile, groups: Groups, piece_rows: int) -> Iterator[Piece]:
    """Put row groups together to pieces; an empty one goes with its neighbour."""
    start, first_row, rows, n_bytes = 0, 0, 0, 0
    if len(groups) == 1:
        yield Piece(index, file, None, 0, *groups[0])
        return
    for i, (more, size) in enumerate(groups):
        more = more or 0
        if rows and rows + more > piece_rows:
            yield Piece(index, file, range(start, i), first_row, rows, n_bytes)
            index, start, first_row, rows, n_bytes = index + 1, i, first_row + rows, 0, 0
        rows, n_bytes = rows + more, n_bytes + size
    yield Piece(index, file, range(start, len(groups)), first_row, rows, n_bytes)
