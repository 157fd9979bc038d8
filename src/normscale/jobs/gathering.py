"""All rows of a source in one place, within a bound of memory: for what must see all of them at once."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from normscale._validate import IntArray, Rows
from normscale.errors import FileFormatError, InvalidInput
from normscale.jobs.options import Paths, Say, warn
from normscale.jobs.pieces import PieceRows
from normscale.jobs.sources import RowSource, input_named
from normscale.outputs import LOGITS, Head, ModelOutputs

IN_MEMORY = 1 << 28
"""Bytes of numbers beyond which rows go through temporary files."""
_UNKNOWN = 8 << 30
"""The bound in bytes where the system does not say how much memory is free."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def read(
    paths: Paths | RowSource,
    names: Sequence[str] | None = None,
    *,
    class_names: Sequence[str] | None = None,
    probabilities: bool = False,
    on_invalid: str = "raise",
    reads_logits: bool = True,
    check_labels: bool = False,
    say: Say = warn,
) -> ModelOutputs:
    """All rows of tables in one record, looked at as a job looks at them; many go through temporary files.

    Parameters
    ----------
    paths : path, or several, or a source
    names : sequence of str, optional
        Arrays to read, and logits; by default all. A source has them already.
    class_names : sequence of str, optional
        Columns of logits are matched by these names.
    probabilities, on_invalid, say
        As in :class:`~normscale.jobs.JobOptions`.
    reads_logits : bool
        False where probabilities in the place of logits do no harm.
    check_labels : bool
        Say so where the labels do not go with the logits.
    """
    if isinstance(paths, RowSource):
        source = paths
    else:
        arrays = None if names is None else [*names, LOGITS]
        source = RowSource(paths, arrays, class_names=class_names, probabilities=probabilities)
    for text in dict.fromkeys(source.look(reads_logits=reads_logits, check_labels=check_labels)):
        say(text)
    rows = PieceRows(source.chunks(), source.layout, tuple(source.layout.widths), on_invalid)
    found = gather(rows)
    if found is None:
        raise InvalidInput(f"{source.path} holds no rows.")
    if rows.skipped.n:
        total = rows.n_rows + rows.skipped.n
        say(f"{source.path}: {rows.skipped.n} of {total} rows hold NaN or infinity and are left out")
    return found


def read_named(items: Iterable[str], **options: Any) -> dict[str, ModelOutputs]:
    """Read tables given as ``NAME=PATH`` or ``PATH``, by their names; ``options`` are those of :func:`read`."""
    found: dict[str, ModelOutputs] = {}
    for item in items:
        name, path = input_named(item, found)
        found[name] = read(path, **options)
    return found


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


def memory_bound(given: int | str | None = None) -> tuple[int, str]:
    """How many bytes of rows may be gathered, and where the number comes from; by default half of the free memory.

    Examples
    --------
    >>> memory_bound("1.5 GB"), memory_bound("2GiB")[0], memory_bound(1000)[0]
    ((1500000000, 'as given'), 2147483648, 1000)
    """
    if given is None:
        free = _free_memory()
        return (_UNKNOWN, "the default") if free is None else (free // 2, "half of what is free")
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?i?)b?\s*", str(given).lower())
    try:
        assert found is not None
        return int(float(found[1]) * _UNITS[found[2]]), "as given"
    except (AssertionError, ValueError, KeyError):
        raise InvalidInput(f"memory must be a number of bytes, such as 500MB or 8GiB; got {given!r}.") from None


def gather_rows(chunks: Iterable[ModelOutputs], n_rows: int | None, memory: int | str | None, why: str) -> ModelOutputs:
    """Put all rows below each other, within a bound of memory.

    Parameters
    ----------
    chunks : iterable of ModelOutputs
    n_rows : int, optional
        How many there will be, where that is known.
    memory : int or str, optional
        The bound; see :func:`memory_bound`. What would exceed it is refused as soon as that is known.
    why : str
        Who needs all rows, and why; for the message.
    """
    bound, because = memory_bound(memory)

    def within() -> Iterator[ModelOutputs]:
        size = 0
        for chunk in chunks:
            more = sum(chunk.array(name).nbytes for name in chunk.names)
            size += more
            expected = size if n_rows is None or not len(chunk) else max(size, more * n_rows // len(chunk))
            if expected > bound:
                least = "at least " if n_rows is None else ""
                raise InvalidInput(
                    f"{why}: they take {least}{_shown(expected)} of memory, and the bound is {_shown(bound)} "
                    f"({because}). Pass memory={_shown(expected)!r} or more, give a sample of the rows, or choose "
                    "a detector that is fitted in parts, such as norm_scaling or energy."
                )
            yield chunk

    found = gather(within())
    if found is None:
        raise InvalidInput(f"{why}, and there are no rows.")
    return found


def _free_memory() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _shown(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f}GB" if n_bytes >= 10**8 else f"{-(-n_bytes // 1000)}kB"
