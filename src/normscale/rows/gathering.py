"""All rows of a table as one record: in memory, or, where they are too many, in temporary files that are mapped."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from typing import IO

import numpy as np

from normscale._validate import IntArray, Rows
from normscale.errors import FileFormatError
from normscale.outputs import Head, ModelOutputs

IN_MEMORY = 1 << 28
"""Bytes of numbers beyond which a table goes through temporary files."""


def gather(chunks: Iterable[ModelOutputs], *, in_memory: int = IN_MEMORY) -> ModelOutputs | None:
    """Put chunks below each other; None if there is none.

    Up to ``in_memory`` bytes they stay in memory. Beyond that every array goes to a temporary file, without a name,
    that is mapped: the system keeps the pages that are in use. Labels and head stay in memory.

    Examples
    --------
    >>> chunks = [ModelOutputs([[1.0, 2.0]], labels=[1]), ModelOutputs([[3.0, 4.0]], labels=[0])]
    >>> both = gather(chunks, in_memory=16)
    >>> both.logits.tolist(), both.labels.tolist()
    ([[1.0, 2.0], [3.0, 4.0]], [1, 0])
    """
    waiting: list[ModelOutputs] = []
    size, files = 0, None
    for chunk in chunks:
        waiting.append(chunk)
        size += sum(chunk.array(name).nbytes for name in chunk.names)
        if size > in_memory:
            files = _Files(waiting[0]) if files is None else files
            for part in waiting:
                files.append(part)
            waiting = []
    if files is not None:
        return files.outputs()
    return ModelOutputs.concatenate(waiting) if len(waiting) > 1 else next(iter(waiting), None)


class _Files:
    """A temporary file for each array."""

    def __init__(self, first: ModelOutputs) -> None:
        self._dtypes = {name: first.array(name).dtype for name in first.names}
        self._widths = {name: first.array(name).shape[1] for name in first.names}
        self._files: dict[str, IO[bytes]] = {name: tempfile.TemporaryFile() for name in first.names}  # noqa: SIM115
        self._labels: list[IntArray] | None = None if first.labels is None else []
        self._head: Head | None = first.head
        self._n_rows = 0

    def append(self, part: ModelOutputs) -> None:
        """Write a chunk behind the others."""
        for name, file in self._files.items():
            rows = np.ascontiguousarray(part.array(name), dtype=self._dtypes[name])
            try:
                file.write(rows.data)
            except OSError as error:
                raise FileFormatError(
                    f"there is no room for {name} in the folder of temporary files ({tempfile.gettempdir()}): "
                    f"{error.strerror or error}. Set TMPDIR to a folder on a larger disk."
                ) from error
        if self._labels is not None and part.labels is not None:
            self._labels.append(part.labels)
        self._n_rows += len(part)

    def outputs(self) -> ModelOutputs:
        """Map the files; they are gone when nobody uses the arrays any more."""
        arrays: dict[str, Rows] = {}
        for name, file in self._files.items():
            file.flush()
            shape = (self._n_rows, self._widths[name])
            arrays[name] = np.asarray(np.memmap(file, self._dtypes[name], mode="r", shape=shape))
            file.close()
        labels = None if self._labels is None else np.concatenate(self._labels)
        return ModelOutputs._trusted(arrays, labels, self._head)
