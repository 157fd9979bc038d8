"""The one way to read a table of any format: look at its shape, then take its rows chunk by chunk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from normscale._validate import IntArray, Rows, at_least
from normscale.errors import FileFormatError, InvalidInput, NormscaleError
from normscale.outputs import ModelOutputs
from normscale.tables.formats import damaged

Result = TypeVar("Result")
Block = tuple[Rows, "Rows | None", "Rows | None"]
"""Some consecutive rows, as a format gives them: logits, features, labels."""

CHUNK_ELEMENTS = 1 << 22
"""Numbers in a chunk unless told otherwise: 32 MB in float64, large enough to keep numpy busy."""

DAMAGE: tuple[type[Exception], ...] = (OSError, ValueError, EOFError, KeyError, MemoryError)
"""What reading a damaged file may raise, to become :class:`FileFormatError`; false sizes exhaust memory."""


class TableReader(ABC):
    """A table of logits on disk or in a pipe; made by :func:`normscale.tables.open_table`.

    Opening reads only the head of a file. Files are held open only while their rows are read, so that a
    reader needs no closing; one that stands on a pipe does, or a ``with`` statement.

    Attributes
    ----------
    path : str
        As the caller gave it.
    n_rows : int or None
        None where it is known only at the end: text and pipes.
    n_classes : int
    n_features : int or None
        None without features.
    class_names : tuple of str, or None
    has_labels : bool
    chunk_rows : int
        Rows of every chunk but the last.
    """

    format: str
    _damage: tuple[type[Exception], ...] = DAMAGE

    def __init__(self, path: str, chunk_rows: int | None, *, shown: str | None = None) -> None:
        """Read the head of the file ``path``; messages call it ``shown``."""
        self.path = path if shown is None else shown
        self._file = path
        self.n_rows: int | None = None
        self.n_classes = 0
        self.n_features: int | None = None
        self.class_names: tuple[str, ...] | None = None
        self.has_labels = False
        self.release: Callable[[], object] | None = None
        self._dtype: np.dtype[Any] = np.dtype(np.float64)
        self._explained(self._read_head)
        width = self.n_classes + (self.n_features or 0)
        self.chunk_rows = (
            max(1, CHUNK_ELEMENTS // width) if chunk_rows is None else at_least(chunk_rows, "chunk_rows", 1)
        )

    @abstractmethod
    def _read_head(self) -> None:
        """Fill the attributes from the head of the file."""

    @abstractmethod
    def _blocks(self) -> Iterator[Block]:
        """Give the rows from the first to the last, in blocks of bounded but any size."""

    @property
    def has_features(self) -> bool:
        """Whether the table has features beside the logits."""
        return self.n_features is not None

    def chunks(self) -> Iterator[ModelOutputs]:
        """Iterate over the rows, ``chunk_rows`` at a time.

        Every call starts at the first row again, except on a pipe, which can be read once.
        """
        first_row = 0
        for logits, features, labels in self._exact(self._explained_blocks()):
            try:
                chunk = ModelOutputs(logits, features, labels)
            except InvalidInput as error:
                rows = f"rows {first_row} to {first_row + len(logits) - 1}"
                raise InvalidInput(f"{self.path}, {rows}: {error}") from None
            first_row += len(chunk)
            yield chunk

    def read(self) -> ModelOutputs:
        """Read all rows at once."""
        chunks = self.chunks()
        if self.n_rows is None or self.n_rows <= self.chunk_rows:
            parts = list(chunks)
            return ModelOutputs.concatenate(parts) if len(parts) > 1 else self._one(parts)
        # The size is known, so fill in place: concatenating would need twice the memory.
        first = next(chunks, self._one([]))
        logits = np.empty((self.n_rows, self.n_classes), first.logits.dtype)
        features = labels = None
        if first.features is not None:
            features = np.empty((self.n_rows, first.features.shape[1]), first.features.dtype)
        if first.labels is not None:
            labels = np.empty(self.n_rows, np.int64)
        start = 0
        part: ModelOutputs | None = first
        while part is not None:
            rows = slice(start, start + len(part))
            logits[rows] = part.logits
            if features is not None and part.features is not None:
                features[rows] = part.features
            if labels is not None and part.labels is not None:
                labels[rows] = part.labels
            start = rows.stop
            part = next(chunks, None)
        if start != self.n_rows:
            raise self._damaged(f"it says {self.n_rows} rows but holds {start}")
        return ModelOutputs(logits, features, labels)

    def _one(self, parts: list[ModelOutputs]) -> ModelOutputs:
        """The only part, or a table without rows."""
        if parts:
            return parts[0]
        features = None if self.n_features is None else np.empty((0, self.n_features), self._dtype)
        labels: IntArray | None = np.empty(0, np.int64) if self.has_labels else None
        return ModelOutputs(np.empty((0, self.n_classes), self._dtype), features, labels)

    def close(self) -> None:
        """Let go of what the reader holds; only a pipe holds anything."""
        if self.release is not None:
            self.release()

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
        extra = f" + {self.n_features} features" if self.has_features else ""
        labels = " + labels" if self.has_labels else ""
        return f"<{self.format} table {self.path!r}: {rows} rows of {self.n_classes} logits{extra}{labels}>"

    def _explained(self, action: Callable[[], Result]) -> Result:
        """Run ``action``; what a library says about damaged files becomes :class:`FileFormatError`."""
        try:
            return action()
        except NormscaleError:
            raise
        except self._damage as error:
            raise self._damaged(str(error) or type(error).__name__) from error

    def _damaged(self, reason: str) -> FileFormatError:
        return damaged(self._file, self.format, reason, shown=self.path)

    def _explained_blocks(self) -> Iterator[Block]:
        blocks = self._blocks()
        while (block := self._explained(lambda: next(blocks, None))) is not None:
            yield block

    def _exact(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Cut and join blocks so that each has ``chunk_rows`` rows; blocks that fit already pass uncopied."""
        waiting: list[Block] = []
        n_waiting = 0
        for block in blocks:
            start, length = 0, len(block[0])
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
        """The error for a file that is whole but holds something else than a table of logits."""
        return FileFormatError(f"{self.path}: {rule}")


def _rows_of(block: Block, start: int, stop: int) -> Block:
    if start == 0 and stop == len(block[0]):
        return block
    logits, features, labels = block
    return (
        logits[start:stop],
        None if features is None else features[start:stop],
        None if labels is None else labels[start:stop],
    )


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    logits, features, labels = zip(*blocks, strict=True)
    return (
        np.concatenate(logits),
        None if features[0] is None else np.concatenate(features),
        None if labels[0] is None else np.concatenate(labels),
    )
