"""Some consecutive rows, with where they come from; cut and joined to chunks of any size."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.outputs import ModelOutputs

Columns = dict[str, NDArray[Any]]


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
                whole, waiting, missing = _joined(waiting), [], n_rows  # let go of the parts before the caller works
                yield whole
    if waiting:
        yield _joined(waiting)


def _joined(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    columns = {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}
    origins = tuple(origin for chunk in chunks for origin in chunk.origins)
    return Chunk(ModelOutputs.concatenate([chunk.outputs for chunk in chunks]), columns, origins)


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
