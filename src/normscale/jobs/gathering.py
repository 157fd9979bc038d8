"""All rows of a source in one place, within a bound of memory: for what must see all of them at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs
from normscale.rows import gather

_UNKNOWN = 8 << 30
"""The bound in bytes where the system does not say how much memory is free."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


class MemoryBound(NamedTuple):
    """How many bytes of rows may be gathered, and where the number comes from."""

    n_bytes: int
    because: str


def memory_bound(given: int | str | None = None) -> MemoryBound:
    """The bound that was given, such as ``"4GiB"``; by default half of the free memory.

    Examples
    --------
    >>> memory_bound("1.5 GB").n_bytes, memory_bound("2GiB").n_bytes, memory_bound(1000).n_bytes
    (1500000000, 2147483648, 1000)
    """
    if given is None:
        free = _free_memory()
        return MemoryBound(_UNKNOWN, "the default") if free is None else MemoryBound(free // 2, "half of what is free")
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?i?)b?\s*", str(given).lower())
    try:
        assert found is not None
        n_bytes = int(float(found[1]) * _UNITS[found[2]])
    except (AssertionError, ValueError, KeyError):
        raise InvalidInput(f"memory must be a number of bytes, such as 500MB or 8GiB; got {given!r}.") from None
    return MemoryBound(n_bytes, "as given")


def gather_rows(chunks: Iterable[ModelOutputs], n_rows: int | None, bound: MemoryBound, why: str) -> ModelOutputs:
    """Put all rows below each other.

    Parameters
    ----------
    chunks : iterable of ModelOutputs
    n_rows : int, optional
        How many there will be, where that is known.
    bound : MemoryBound
    why : str
        Who needs all rows, and why; for the message.

    Raises
    ------
    InvalidInput
        Where they would take more memory than the bound; as soon as that is known.
    """
    found = gather(_within(chunks, n_rows, bound, why))
    if found is None:
        raise InvalidInput(f"{why}, and there are no rows.")
    return found


def _within(chunks: Iterable[ModelOutputs], n_rows: int | None, bound: MemoryBound, why: str) -> Iterator[ModelOutputs]:
    size = 0
    for chunk in chunks:
        more = sum(chunk.array(name).nbytes for name in chunk.names)
        size += more
        expected = size if n_rows is None or not len(chunk) else max(size, more * n_rows // len(chunk))
        if expected > bound.n_bytes:
            least = "at least " if n_rows is None else ""
            raise InvalidInput(
                f"{why}: they take {least}{_shown(expected)} of memory, and the bound is {_shown(bound.n_bytes)} "
                f"({bound.because}). Pass memory={_shown(expected)!r} or more, give a sample of the rows, or choose "
                "a detector that is fitted in parts, such as norm_scaling or energy."
            )
        yield chunk


def _free_memory() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _shown(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f}GB" if n_bytes >= 10**8 else f"{-(-n_bytes // 1000)}kB"
