"""A stream for every source: what one camera or client sends teaches nothing about another.

:func:`stream_by_source` works on any mapping of sources to states. :class:`SourceStates` is such a mapping that keeps
the states used last in memory and the others on disk. ``detector.stream(rows, by=ids)`` keeps one of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from normscale import _validate
from normscale._validate import FloatArray, IntArray
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs, mask_of_finite_rows
from normscale.state import copied, record_arrays

if TYPE_CHECKING:
    from normscale.detectors.base import Detector
    from normscale.detectors.reading import OutputsLike

IN_MEMORY = 20_000
"""States of so many sources are kept in memory."""


def stream_by_source(
    detector: Detector,
    states: MutableMapping[str, Any],
    outputs: OutputsLike,
    by: Sequence[Any] | NDArray[Any],
    *,
    threads: int = 1,
    on_invalid: str = "raise",
) -> FloatArray:
    """Stream rows of several sources, each through a state of its own; scores (n,) in the order of the rows.

    Parameters
    ----------
    detector : Detector
        A fitted one with running statistics. Its own state is left as it is.
    states : mutable mapping of str to state
        The state of every source that was seen before. Sources that are missing begin with ``detector.start()``.
        Where a row is refused, no state changes.
    by : array of shape (n,)
        The source of every row, a text or a whole number. A source's rows are taken in their order here.

    Examples
    --------
    >>> import normscale as ns
    >>> detector = ns.NormScaling().fit([[4.0, 0.0], [0.0, 8.0], [2.0, 4.0]])
    >>> states = {}
    >>> rows = np.array([[4.0, 1.0], [0.0, 9.0], [3.0, 1.0]])
    >>> scores = stream_by_source(detector, states, rows, ["left", "right", "left"])
    >>> bool((scores[[0, 2]] == detector.stream(rows[[0, 2]])).all()), sorted(states)
    (True, ['left', 'right'])
    """
    record = detector._read(outputs)
    if len(record) == 1 and len(by) == 1 and on_invalid == "raise":  # one row at a time should cost little
        name = str(by[0])
        before = states.get(name)
        scores, states[name] = detector._step(
            detector.start() if before is None else before, detector._prepare(record, threads), threads
        )
        return scores
    names, codes = _sources(by, len(record))
    good = np.arange(len(record))
    if _validate.one_of(on_invalid, "on_invalid", _validate.ON_INVALID) == "skip":
        good = np.flatnonzero(mask_of_finite_rows(record))
    order = good[np.argsort(codes[good], kind="stable")]
    scores = np.full(len(record), np.nan)
    after: dict[str, Any] = {}
    try:
        prepared = detector._prepare(record[order], threads)
        arrays = {name: prepared.array(name) for name in prepared.names}
        edges = np.flatnonzero(np.diff(codes[order], prepend=-1, append=len(names)))
        start = detector.start()
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            name = names[codes[order[first]]]
            before = states.get(name, start)
            rows = ModelOutputs._trusted({key: array[first:last] for key, array in arrays.items()})
            scores[order[first:last]], after[name] = detector._step(
                copied(before) if detector._in_place else before, rows, threads
            )
    except InvalidInput:
        bad = next((one for one in record.names if not np.isfinite(record.array(one)).all()), None)
        if bad is None:
            raise
        raise _validate.invalid_row_error(record.array(bad), bad, can_skip=True) from None
    for name, state in after.items():
        states[name] = state
    return scores


def _sources(by: Sequence[Any] | NDArray[Any], n: int) -> tuple[list[str], IntArray]:
    """The names of the sources, and the place of every row's among them."""
    given = np.asarray(by)
    if given.shape != (n,):
        raise InvalidInput(f"by must name the source of each of the {n} rows; got an array of shape {given.shape}.")
    if given.dtype.kind not in "OUSiub":
        raise InvalidInput(f"by must hold texts or whole numbers; got {given.dtype}.")
    if given.dtype.kind == "O":
        missing = [row for row, one in enumerate(given.tolist()) if one is None or one != one]
        if missing:
            raise InvalidInput(f"by has no source for row {missing[0]}; give every row one.")
        given = np.array([str(one) for one in given.tolist()])
    distinct, codes = np.unique(given, return_inverse=True)
    return [str(one) for one in distinct.tolist()], codes


class SourceStates(MutableMapping[str, Any]):
    """States by source: those used last in memory, all others in a temporary file that ends with this object."""

    def __init__(self, detector: Any, in_memory: int = IN_MEMORY) -> None:
        self._detector = detector
        self._in_memory = _validate.at_least(in_memory, "in_memory", 1)
        self._recent: OrderedDict[str, Any] = OrderedDict()
        self._file: Any = None

    def __getitem__(self, source: str) -> Any:
        if source in self._recent:
            self._recent.move_to_end(source)
            return self._recent[source]
        row = None
        if self._file is not None:
            row = self._file.execute("select state from states where source = ?", (source,)).fetchone()
        if row is None:
            raise KeyError(source)
        self[source] = state = self._detector._read_state(load(row[0]), "")
        return state

    def __setitem__(self, source: str, state: Any) -> None:
        self._recent[source] = state
        self._recent.move_to_end(source)
        if len(self._recent) > self._in_memory:
            if self._file is None:
                import sqlite3

                self._file = sqlite3.connect("", check_same_thread=False)  # a temporary file of SQLite's own
                self._file.execute("create table states (source text primary key, state blob)")
            moved = [self._recent.popitem(last=False) for _ in range(1 + self._in_memory // 10)]
            packed = [(name, save(record_arrays(one))) for name, one in moved]
            self._file.executemany("insert or replace into states values (?, ?)", packed)

    def __delitem__(self, source: str) -> None:
        self[source]  # raises where there is none, and brings it into memory
        del self._recent[source]
        if self._file is not None:
            self._file.execute("delete from states where source = ?", (source,))

    def __iter__(self) -> Iterator[str]:
        yield from list(self._recent)
        if self._file is not None:
            for (source,) in self._file.execute("select source from states order by source").fetchall():
                if source not in self._recent:
                    yield source

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getstate__(self) -> dict[str, Any]:
        """All states in memory, for a copy or another process."""
        states = OrderedDict((name, copied(self[name])) for name in sorted(self))
        return {**self.__dict__, "_recent": states, "_file": None}

    def copy_for(self, detector: Any) -> SourceStates:
        """A copy of all states, for a copy of the detector."""
        twin = SourceStates(detector, self._in_memory)
        twin.update((name, copied(self[name])) for name in self)
        return twin

    def pack(self) -> tuple[list[str], dict[str, NDArray[Any]]]:
        """The sources in order, and every number of their states in an array with a row for each source."""
        names = sorted(self)
        states = [record_arrays(self[name]) for name in names]
        return names, {key: np.stack([one[key] for one in states]) for key in (states[0] if states else ())}

    @classmethod
    def unpack(cls, detector: Any, names: Sequence[str], arrays: dict[str, NDArray[Any]]) -> SourceStates:
        """States from what :meth:`pack` gave, checked."""
        found = cls(detector)
        for place, name in enumerate(names):
            found[str(name)] = copied(detector._read_state({key: own[place] for key, own in arrays.items()}, ""))
        return found
