"""All rows in one place, within a bound of memory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import numpy as np

from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs

_UNKNOWN = 8 << 30
"""The bound in bytes where the system does not say how much memory is free."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


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
