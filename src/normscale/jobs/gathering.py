"""All rows of a source in one place, within a bound of memory: for what must see all of them at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from normscale.errors import InvalidInput
from normscale.jobs.options import Paths, Say, say_all, warn
from normscale.jobs.sources import RowSource, input_named
from normscale.outputs import LOGITS, ModelOutputs
from normscale.rows.chunks import gather

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
    """All rows of tables in one record, looked at as a job looks at them.

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
    arrays = None if names is None else [*names, LOGITS]
    source = paths
    if not isinstance(source, RowSource):
        source = RowSource(source, arrays, class_names=class_names, probabilities=probabilities)
    say_all(source.look(reads_logits=reads_logits, check_labels=check_labels), say)
    rows = source.rows(None, tuple(source.layout.widths), on_invalid)
    found = gather(rows, source.n_rows)
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


def memory_bound(given: int | str | None = None) -> tuple[int, str]:
    """How many bytes of rows may be gathered, and where the number comes from; by default half of the free memory.

    Examples
    --------
    >>> memory_bound("1.5 GB"), memory_bound("2GiB")[0], memory_bound(1000)[0]
    ((1500000000, 'as given'), 2147483648, 1000)
    """
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


def gather_rows(chunks: Iterable[ModelOutputs], n_rows: int | None, memory: int | str | None, why: str) -> ModelOutputs:
    """Put all rows below each other; what would exceed a bound of memory is refused as soon as that is known.

    ``n_rows`` is how many there will be, where that is known, ``why`` who needs all of them.
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

    found = gather(within(), n_rows)
    if found is None:
        raise InvalidInput(f"{why}, and there are no rows.")
    return found


def _shown(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f}GB" if n_bytes >= 10**8 else f"{-(-n_bytes // 1000)}kB"
