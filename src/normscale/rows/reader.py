"""The one way to read rows of any format from a file or a pipe: its head, then its rows chunk by chunk."""

from __future__ import annotations

import itertools
import os
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from normscale._validate import IntArray, Rows, as_labels, as_rows, at_least
from normscale.errors import FileFormatError, InvalidInput, MissingOutput, NormscaleError
from normscale.outputs import FEATURES, LOGITS, Head, ModelOutputs
from normscale.rows.columns import LABELS, ColumnLayout, label_numbers
from normscale.rows.files import ByteSource, format_of, format_of_content, is_pipe, source_of

if TYPE_CHECKING:
    from normscale.rows.writing import Sink

Columns = dict[str, NDArray[Any]]
Block = dict[str, Rows]
"""Some consecutive rows, as a format gives them: arrays by name, and ``labels`` where the table has any."""
KEPT = "keep:"
"""Before the name of a kept column in a block of rows; no array can be called so."""
CHUNK_ELEMENTS = 1 << 22
"""Numbers in a chunk by default: 32 MB in float64, large enough to keep numpy busy."""
DAMAGE: tuple[type[Exception], ...] = (OSError, ValueError, EOFError, KeyError, MemoryError, zlib.error)
"""What reading a damaged file may raise, to become :class:`FileFormatError`; false sizes exhaust memory."""


class Chunk(NamedTuple):
    """Some rows, in order, with where they come from."""

    outputs: ModelOutputs
    columns: Columns
    """The columns that are kept."""
    origins: tuple[tuple[str, int, int], ...]
    """Runs of consecutive rows: file, number of the first row there, how many."""

    def origin(self, row: int) -> tuple[str, int]:
        """The file and the number in it of a row of this chunk."""
        for path, first_row, n in self.origins:
            if row < n:
                return path, first_row + row
            row -= n
        raise IndexError(row)

    def cut(self, start: int, stop: int) -> Chunk:
        """Some consecutive rows of a chunk that comes from one file."""
        path, first_row, n = self.origins[0]
        return self if stop - start == n else self.take(slice(start, stop), ((path, first_row + start, stop - start),))

    def take(self, rows: Any, origins: tuple[tuple[str, int, int], ...] = ()) -> Chunk:
        """Some of the rows, by a slice or by an array of places or of truths."""
        return Chunk(self.outputs[rows], {name: column[rows] for name, column in self.columns.items()}, origins)

    @classmethod
    def join(cls, chunks: Sequence[Chunk]) -> Chunk:
        """The rows of all chunks, one below the other."""
        if len(chunks) == 1:
            return chunks[0]
        columns = {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}
        origins = tuple(origin for chunk in chunks for origin in chunk.origins)
        return cls(ModelOutputs.concatenate([chunk.outputs for chunk in chunks]), columns, origins)


def even_chunks(chunks: Iterable[Chunk], n_rows: int) -> Iterator[Chunk]:
    """The same rows in chunks of so many, whatever files they are in; those that fit already pass uncopied."""
    waiting: list[Chunk] = []
    missing = n_rows
    for chunk in chunks:
        start, length = 0, len(chunk.outputs)
        while start < length:
            stop = min(length, start + missing)
            waiting.append(chunk.cut(start, stop))
            missing -= stop - start
            start = stop
            if not missing:
                whole, waiting, missing = Chunk.join(waiting), [], n_rows  # let go of the parts before the caller works
                yield whole
    if waiting:
        yield Chunk.join(waiting)


def gather(parts: Iterable[ModelOutputs], n_rows: int | None = None) -> ModelOutputs | None:
    """Put outputs below each other; None if there is none.

    Where ``n_rows`` says how many rows there are at most, they are filled in place: concatenating needs twice the
    memory.

    Examples
    --------
    >>> parts = [ModelOutputs([[1.0, 2.0]], labels=[1]), ModelOutputs([[3.0, 4.0]], labels=[0])]
    >>> both = gather(parts, 3)
    >>> both.logits.tolist(), both.labels.tolist()
    ([[1.0, 2.0], [3.0, 4.0]], [1, 0])
    """
    coming = iter(parts)
    first = next(coming, None)
    if first is None or n_rows is None or len(first) == n_rows:
        rest = list(coming)
        return ModelOutputs.concatenate([first, *rest]) if first is not None and rest else first
    arrays = {name: np.empty((n_rows, first.array(name).shape[1]), first.array(name).dtype) for name in first.names}
    labels = np.empty(n_rows, np.int64)
    stop = 0
    for part in itertools.chain([first], coming):
        start, stop = stop, stop + len(part)
        for name, array in arrays.items():
            kind = np.result_type(array, part.array(name))
            arrays[name] = array = array.astype(kind, copy=False)
            array[start:stop] = part.array(name)
        labels[start:stop] = -1 if part.labels is None else part.labels
    found = {name: array[:stop] for name, array in arrays.items()}
    return ModelOutputs._trusted(found, None if first.labels is None else labels[:stop], first.head)


class TableReader(ABC):
    """A table of outputs in a file or a pipe; made by :func:`open_table`. Each format is a subclass.

    Opening reads only the head. A format says what it is in class attributes, and has two methods:
    :meth:`_read_head`, which fills the attributes below, and :meth:`_blocks`, which gives the rows.

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
    columns : dict
        Further columns that are kept, by name, and their types: numpy's (object: texts) or pyarrow's.
    array_columns : dict
        The columns of the file that make an array, by its name; empty where a file holds arrays.
    chunk_rows : int
        Rows of every chunk but the last.
    """

    name: ClassVar[str]
    described: ClassVar[str]
    """With its article: ``an .npy file (one numpy array)``."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    magic: ClassVar[tuple[bytes, ...]] = ()
    """How its bytes begin; a pipe is recognised by these."""
    sink: ClassVar[type[Sink] | None] = None
    """What writes it; None: it is only read."""
    is_text: ClassVar[bool] = False
    """Lines of text, which may be compressed by gzip."""
    streams: ClassVar[bool] = False
    """Read from a pipe as it comes; what does not goes through a temporary file."""
    by_columns: ClassVar[bool] = False
    """A column for each class, instead of an array of all logits."""
    keeps: ClassVar[frozenset[str]] = frozenset({"arrays", "labels", "head", "class names"})
    """What a table may hold beside its logits."""
    largest_head: ClassVar[int] = 1 << 28
    """Bytes of a head's weight, which is read whole: 32000 classes of 2048 features in float32."""
    _damage: tuple[type[Exception], ...] = DAMAGE

    def __init__(
        self,
        source: ByteSource,
        chunk_rows: int | None = None,
        names: Sequence[str] | None = None,
        keep: Sequence[str] = (),
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.source, self.path = source, source.shown
        self._wanted, self._keep, self._class_names = names, list(dict.fromkeys(keep)), class_names
        self._started = False
        self.columns: dict[str, Any] = {}
        self.columns_there: tuple[str, ...] = ()
        self.n_rows: int | None = None
        self.widths: dict[str, int] = {}
        self.array_columns: dict[str, list[str]] = {}
        self.class_names: tuple[str, ...] | None = None
        self.has_labels = False
        self.head: Head | None = None
        self._dtypes: dict[str, np.dtype[Any]] = {}
        with self._explained(), source.peeking():
            self._read_head()
        self.widths = dict(sorted(self.widths.items(), key=lambda item: (item[0] != LOGITS, item[0] != FEATURES)))
        self.n_classes = self.widths.get(LOGITS, None if self.head is None else self.head.n_classes)
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            self.class_names = None
        self._check_wishes()
        default = max(1, CHUNK_ELEMENTS // sum(self.widths.values()))
        self.chunk_rows = default if chunk_rows is None else at_least(chunk_rows, "chunk_rows", 1)

    @classmethod
    def begins(cls, head: bytes) -> bool:
        """Whether the first nine bytes of a file are of this format."""
        return head.startswith(cls.magic)

    @abstractmethod
    def _read_head(self) -> None:
        """Fill the attributes from the head of the file."""

    @abstractmethod
    def _blocks(self) -> Iterator[Block]:
        """Give the rows from the first to the last, in blocks of bounded but any size.

        Only the arrays in :attr:`widths` are wanted, the labels where :attr:`has_labels`, and the kept columns.
        """

    @property
    def edges(self) -> list[int]:
        """The first row of everything that can be read on its own, such as a row group, and the number of all rows."""
        return [0, self.n_rows or 0]

    def _seek(self, rows: range) -> int:
        """Let :meth:`_blocks` begin at or before the first of these rows; the number of the row that it begins at."""
        return 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays that are read."""
        return tuple(self.widths)

    def arrange(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Read the columns of arrays in this order; not those of logits, whose order is that of labels and head."""
        for name, order in columns.items():
            if name != LOGITS and name in self.array_columns:
                self.array_columns[name] = list(order)

    def chunks(self) -> Iterator[ModelOutputs]:
        """Iterate over the rows, ``chunk_rows`` at a time.

        Every call starts at the first row again, except on a pipe, which can be read once.
        """
        return (chunk.outputs for chunk in even_chunks(self.blocks(), self.chunk_rows))

    def blocks(self, rows: range | None = None) -> Iterator[Chunk]:
        """Iterate over all rows, or those with these numbers, and kept columns, in chunks as the format has them."""
        if self._started and self.source.once:
            raise InvalidInput(f"{self.path} is a pipe and can be read only once; save it to a file to read it again.")
        self._started = True
        wanted = range(sys.maxsize) if rows is None else rows
        with self._explained():
            row = self._seek(wanted)
            for block in self._blocks():
                n_rows = len(next(iter(block.values())))
                try:
                    outputs = self._outputs(block, n_rows)
                except InvalidInput as error:
                    raise InvalidInput(f"{self.path}, rows {row} to {row + n_rows - 1}: {error}") from None
                columns = {name: block[KEPT + name] for name in self.columns}
                first, last = max(wanted.start - row, 0), min(n_rows, wanted.stop - row)
                if first < last:
                    yield Chunk(outputs, columns, ((self.path, row, n_rows),)).cut(first, last)
                row += n_rows
                if row >= wanted.stop:
                    return

    def read(self) -> ModelOutputs:
        """Read all rows at once."""
        found = gather((chunk.outputs for chunk in self.blocks()), self.n_rows)
        if found is None:
            empty: Block = {name: np.empty((0, width), self._dtypes.get(name)) for name, width in self.widths.items()}
            return self._outputs(empty | ({LABELS: np.empty(0, np.int64)} if self.has_labels else {}), 0)
        if self.n_rows not in (None, len(found)):
            raise self._damaged(f"it says {self.n_rows} rows but holds {len(found)}")
        return found

    def close(self) -> None:
        """Let go of what the reader holds."""
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for formats ---------------------------------------------------------------------------------------------

    def _take_columns(self, names: Sequence[str]) -> None:
        """Sort columns into logits, features and labels; arrays that are lists were taken before."""
        layout = ColumnLayout(self.path, names, beside_lists=bool(self.widths), leave_out=self._keep)
        for array, places in ((LOGITS, layout.logits), (FEATURES, layout.features)):
            if places and array not in self.widths:
                self.widths[array], self.array_columns[array] = len(places), [names[i] for i in places]
                self.class_names = layout.class_names if array == LOGITS else self.class_names
        self.has_labels = layout.label is not None
        self._label = None if layout.label is None else names[layout.label]
        self._layout = layout

    def _take_head(self, weight: Any, bias: Any) -> None:
        """Take the network's head, whose numbers were read, if it fits the logits and features beside it."""
        try:
            head = Head.checked((weight, bias))
        except InvalidInput as error:
            raise self._layout_error(str(error)) from None
        shape = (self.widths.get(LOGITS, head.n_classes), self.widths.get(FEATURES, head.weight.shape[1]))
        if head.weight.shape != shape:
            raise self._layout_error(
                f"head_weight must have shape {shape}, as logits and features have; got {head.weight.shape}."
            )
        self.head = head

    def _layout_error(self, rule: str) -> FileFormatError:
        """The error for a file that is whole but holds something else than a table of outputs."""
        return FileFormatError(f"{self.path}: {rule}")

    def _damaged(self, reason: str) -> FileFormatError:
        """The error for bytes that are not what their name says, or not whole."""
        reason = reason.strip().rstrip(".")
        if self.source.once:
            whole = f"{self.path} is not a whole {self.described.partition(' ')[2]}"
            return FileFormatError(f"{whole}: {reason}. Did the program that writes it fail?")
        advice, head = "Was it copied or written in full? Make it again.", self.source.head()
        if head == b"":
            return FileFormatError(f"{self.path} is empty; expected {self.described}. {advice}")
        found = None if head is None else format_of_content(head)
        if found is not None and found.name != self.name and not found.is_text:
            return FileFormatError(
                f"{self.path} is named as {self.described} but begins like {found.described}; rename it to end in "
                f"{found.suffixes[0]}."
            )
        return FileFormatError(f"{self.path} is damaged, or is not {self.described}: {reason}. {advice}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except NormscaleError:
            raise
        except self._damage as caught:
            raise self._damaged(str(caught) or type(caught).__name__) from caught

    def _check_wishes(self) -> None:
        if self._wanted is not None:
            chosen = {name: width for name, width in self.widths.items() if name in self._wanted}
            if not chosen:
                wanted, there = " and no ".join(self._wanted), ", ".join(self.widths)
                raise MissingOutput(f"{self.path} has no {wanted}; it has {there}.")
            self.widths = chosen
        if lost := [name for name in self._keep if name not in self.columns]:
            there = ", ".join(map(repr, self.columns_there)) or "none that can be kept"
            raise InvalidInput(f"{self.path} has no column {lost[0]!r} to keep; it has {there}.")

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


def open_table(
    path: str | os.PathLike[str],
    *,
    chunk_rows: int | None = None,
    names: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
) -> TableReader:
    """Open a table of outputs (logits, features, other arrays, labels, a head) to read it chunk by chunk.

    Parameters
    ----------
    path : str or path
        A file ending in .npz, .npy, .safetensors, .parquet or .jsonl (need ``normscale[arrow]``), .csv or .tsv (text
        also compressed: .csv.gz); or ``-``, or a named pipe, which may carry any of these: the first bytes tell. A
        stream of .npy or of text is read as it comes, a chunk as soon as its rows are there; the others go through a
        temporary file. A path with a scheme (``s3://...``) is read from its object store.
    chunk_rows : int, optional
        Rows per chunk; by default as many as make about four million numbers.
    names : sequence of str, optional
        Read these arrays only, as far as the table has them; labels and head are always read. By default all.
    keep : sequence of str
        Further columns, such as an id or a time, that :meth:`TableReader.blocks` gives beside the rows, with
        their types. Not from .npy and .safetensors.
    class_names : sequence of str, optional
        What labels that are texts are matched to where the table itself does not name its classes.

    Notes
    -----
    :mod:`normscale.rows.arrays` says how the arrays in .npz and .safetensors files are named,
    :mod:`normscale.rows.columns` how the columns of .csv and .parquet files are. Nothing is ever unpickled.

    Examples
    --------
    >>> import numpy, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "outputs.npz")
    >>> numpy.savez(path, logits=numpy.eye(5), labels=numpy.arange(5))
    >>> [len(chunk) for chunk in open_table(path, chunk_rows=2).chunks()]
    [2, 2, 1]
    """
    name = os.fspath(path)
    options = (chunk_rows, names, keep, class_names)
    if not is_pipe(name):
        source = source_of(name)
        return format_of(name)(source, *options)
    from normscale.rows.streams import Pipe

    source = Pipe.of_path(name)
    try:
        head = source.head()
        if not head:
            raise FileFormatError(f"{source.shown} carries nothing. Did the program that writes it fail?")
        format = format_of_content(head)
        if not format.streams:
            source, pipe = source.spill(), source
            pipe.close()
        return format(source, *options)
    except BaseException:
        source.close()
        raise


def read_table(path: str | os.PathLike[str], *, names: Sequence[str] | None = None) -> ModelOutputs:
    """Read a whole table of outputs; see :func:`open_table` for what it may be.

    Examples
    --------
    >>> import numpy, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "logits.npy")
    >>> numpy.save(path, numpy.zeros((3, 4), dtype=numpy.float32))
    >>> read_table(path)
    ModelOutputs(n=3, logits=4)
    """
    with open_table(path, names=names) as table:
        return table.read()
