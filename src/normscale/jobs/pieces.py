"""Pieces of a job's rows: what a task reads, in any process, in the layout that the job was planned with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs, mask_of_finite_rows
from normscale.rows import CHUNK_ELEMENTS, SourceFile
from normscale.rows.reader import Chunk, even_chunks, gather

LISTED = 1000
"""How many skipped rows of a piece are named; all are counted."""
_UNKNOWN = 8 << 30
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


class PieceRows:
    """The rows of a piece for a detector, without those that hold NaN or infinity where they are to be skipped.

    A row must be finite in the arrays ``names``; ``on_invalid`` says what becomes of others: "raise" or "skip".
    """

    def __init__(self, chunks: Iterable[Chunk], layout: Layout, names: Sequence[str], on_invalid: str) -> None:
        self._chunks = even_chunks(chunks, max(1, CHUNK_ELEMENTS // sum(layout.widths.values())))
        self._names = [*dict.fromkeys(names)]
        self.skips = on_invalid == "skip"
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
        memory: int | str | None,
        why: str,
        advice: str = "give a sample of the rows",
        watch: Callable[[Iterable[ModelOutputs]], Iterable[ModelOutputs]] = iter,
    ) -> ModelOutputs | None:
        """All rows in one place, by way of ``watch``; what would exceed a bound of memory is refused at once.

        ``n_rows`` is how many there will be, where that is known, ``why`` who needs all of them, and ``advice`` what
        to do if they are too many.
        """
        bound = MemoryBound(memory, why, advice)
        origins: list[tuple[str, int, int]] = []

        def within() -> Iterator[ModelOutputs]:
            for outputs in self:
                bound.add(outputs, n_rows)
                origins.extend(() if self._last is None else self._last.origins)
                yield outputs

        found = gather(watch(within()), n_rows)
        self._last = None if found is None else Chunk(found, {}, tuple(origins))
        return found

    def explain(self, error: InvalidInput) -> InvalidInput:
        """The error with the file, and with the row that is to blame where one is not finite.

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


def _bytes_of(given: int | str | None) -> tuple[int, str]:
    if given is None:
        try:
            with open("/proc/meminfo", encoding="ascii") as file:
                free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
        except (OSError, StopIteration, ValueError):
            return _UNKNOWN, "the default"
        return free // 2, "half of what is free"
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?i?)b?\s*", str(given).lower())
    try:
        assert found is not None
        return int(float(found[1]) * _UNITS[found[2]]), "as given"
    except (AssertionError, ValueError, KeyError):
        raise InvalidInput(f"memory must be a number of bytes, such as 500MB or 8GiB; got {given!r}.") from None


def _shown(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f}GB" if n_bytes >= 10**8 else f"{-(-n_bytes // 1000)}kB"
