"""A stream for every source: what one camera or client sends teaches nothing about another.

``detector.stream(rows, by=ids)`` keeps a :class:`SourceStates`, a mapping of sources to states. All states are rows of
one table, so that a block with rows of many sources is one call of a kernel.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import count, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray, IntArray
from normscale.detectors.base import OutputsLike, without_bad_rows
from normscale.detectors.step import Step, replaced
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs
from normscale.state import record_arrays

MEMORY = 1 << 30
"""Bytes of states that are kept in memory."""
_FEWEST = 16
"""Rows that a table has at first."""
_SOURCE = "source"
"""An array of rows: the place of each row's source among the names."""


class SourceStates(MutableMapping[str, Any]):
    """States by source: those used last in memory, all others in a temporary file that ends with this object.

    ``states[source]`` gives a copy of a source's state as a record, ``states[source] = record`` replaces it.

    Parameters
    ----------
    detector : Detector
        A fitted one.
    in_memory : int, optional
        So many states are kept in memory; by default as many as a GiB holds.

    Examples
    --------
    >>> import normscale as ns
    >>> detector = ns.NormScaling().fit([[4.0, 0.0], [0.0, 8.0], [2.0, 4.0]])
    >>> states = SourceStates(detector)
    >>> rows = np.array([[4.0, 1.0], [0.0, 9.0], [3.0, 1.0]])
    >>> scores = states.stream(rows, ["left", "right", "left"])
    >>> bool((scores[[0, 2]] == detector.stream(rows[[0, 2]])).all()), list(states)
    (True, ['left', 'right'])
    """

    def __init__(self, detector: Any, in_memory: int | None = None) -> None:
        self._detector = detector
        arrays = record_arrays(detector.start())
        ends = np.cumsum([array.size for array in arrays.values()]).tolist()
        self._columns = {
            name: (slice(end - array.size, end), array.shape)
            for end, (name, array) in zip(ends, arrays.items(), strict=True)
        }
        most = max(1, MEMORY // (8 * ends[-1])) if in_memory is None else in_memory
        self._in_memory = _validate.at_least(most, "in_memory", 1)
        self._table = np.empty((0, ends[-1]))
        self._row_of: dict[str, int] = {}
        self._calls, self._used = 1, np.zeros(0, np.int64)  # in which call each row of the table was; 0: it is free
        self._file: Any = None

    def stream(
        self,
        outputs: OutputsLike,
        by: Sequence[Any] | NDArray[Any],
        *,
        threads: int = 1,
        on_invalid: str = "raise",
    ) -> FloatArray:
        """Stream rows of several sources, each through a state of its own; scores (n,) in the order of the rows.

        ``by`` is the source of every row, a text or a whole number. A source's rows are taken in their order here.
        Sources that are new begin with ``detector.start()``. Where a row is refused, no state changes.
        """
        record = self._detector._read(outputs)
        names, codes = _sources(by, len(record))
        with_codes = replaced(record, _SOURCE, codes[:, None])
        far = self._detector._far_rows(record)
        return without_bad_rows(lambda rows: self._stream(rows, names, threads), with_codes, on_invalid, far)

    def __getitem__(self, source: str) -> Any:
        numbers = self._find(source)
        if numbers is None:
            raise KeyError(source)
        return self._record(numbers[None].copy())

    def __setitem__(self, source: str, state: Any) -> None:
        numbers, row = self._numbers(state), self._rows_of([source])  # which may move the table
        self._table[row] = numbers

    def __delitem__(self, source: str) -> None:
        if source not in self:
            raise KeyError(source)
        if source in self._row_of:
            self._used[self._row_of.pop(source)] = 0
        if self._file is not None:
            self._file.execute("delete from states where source = ?", (source,))

    def __contains__(self, source: object) -> bool:
        return self._find(source) is not None

    def __iter__(self) -> Iterator[str]:
        stored = [] if self._file is None else self._file.execute("select source from states").fetchall()
        return iter(sorted({*self._row_of, *(source for (source,) in stored)}))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getstate__(self) -> dict[str, Any]:
        """All states in memory, for a copy or another process."""
        rows = {name: row for row, name in enumerate(self)}
        used = np.ones(len(rows), np.int64)
        return {**self.__dict__, "_table": self._whole_table(), "_row_of": rows, "_used": used, "_file": None}

    def copy_for(self, detector: Any) -> SourceStates:
        """A copy of all states, for a copy of the detector."""
        twin = copy.copy(self)
        twin._detector = detector
        return twin

    def pack(self) -> tuple[list[str], dict[str, NDArray[Any]]]:
        """The sources in order, and every number of their states in an array with a row for each source."""
        return list(self), self._arrays(self._whole_table())

    @classmethod
    def unpack(cls, detector: Any, names: Sequence[str], arrays: dict[str, NDArray[Any]]) -> SourceStates:
        """States from what :meth:`pack` gave, checked."""
        found = cls(detector)
        for place, name in enumerate(names):
            found[str(name)] = detector._read_state({key: own[place] for key, own in arrays.items()}, "")
        return found

    def _whole_table(self) -> FloatArray:
        """The numbers of all states, a row for each source."""
        rows = [self._find(source) for source in self]
        return np.array(rows, np.float64).reshape(len(rows), self._table.shape[1])

    def _numbers(self, state: Any) -> FloatArray:
        """The row of the table that a state is."""
        arrays = record_arrays(state)
        for name, (_, shape) in self._columns.items():
            if name not in arrays or arrays[name].shape != shape:
                raise InvalidInput(f"state.{name} must have the shape {shape} of a new stream's.")
        return np.concatenate([np.ravel(arrays[name]) for name in self._columns], dtype=np.float64)

    def _record(self, row: FloatArray) -> Any:
        """The state that a row (1, numbers) of the table is; its arrays are views."""
        parts = {name: own[0] for name, own in self._arrays(row).items()}
        return self._detector._read_state(parts, "")

    def _arrays(self, table: FloatArray) -> dict[str, NDArray[Any]]:
        """The columns of a table by the names of a state's arrays, in their shapes, a row for each source."""
        return {name: table[:, own].reshape(len(table), *shape) for name, (own, shape) in self._columns.items()}

    def _find(self, source: Any) -> FloatArray | None:
        """The numbers of a source's state, in memory or on disk; not to be changed."""
        if source in self._row_of or self._file is None:
            return self._table[self._row_of[source]] if source in self._row_of else None
        row = self._file.execute("select state from states where source = ?", (source,)).fetchone()
        return None if row is None else np.frombuffer(row[0])

    def _rows_of(self, names: Sequence[str]) -> IntArray:
        """Where in the table the states of some sources are, at most as many as memory has room for.

        What is not in memory is read from disk, or begins.
        """
        rows = np.fromiter(map(self._row_of.get, names, repeat(-1)), np.int64, len(names))
        self._calls += 1
        self._used[rows[rows >= 0]] = self._calls
        missing = np.flatnonzero(rows < 0)
        if missing.size:
            rows[missing] = free = self._free_rows(missing.size)
            self._used[free], self._table[free] = self._calls, self._numbers(self._detector.start())
            for name, row in zip((names[i] for i in missing.tolist()), free.tolist(), strict=True):
                before = self._find(name)
                if before is not None:
                    self._table[row] = before
                self._row_of[name] = row
        return rows

    def _free_rows(self, n: int) -> IntArray:
        """Free rows of the table: make it longer, or move the states used longest ago to disk."""
        have, width = self._table.shape
        longer = min(self._in_memory, max(_FEWEST, 2 * have, len(self._row_of) + n)) - have
        if len(self._row_of) + n > have and longer > 0:
            self._table = np.concatenate([self._table, np.empty((longer, width))])
            self._used = np.concatenate([self._used, np.zeros(longer, np.int64)])
        if len(self._row_of) + n > len(self._table):
            self._store(max(n, self._in_memory // 8))  # some more, because it takes a look at all of them
        return np.flatnonzero(self._used == 0)[:n]

    def _store(self, n: int) -> None:
        """Move the n states used longest ago to disk, but none that this call has asked for."""
        if self._file is None:
            import sqlite3

            self._file = sqlite3.connect("", check_same_thread=False)  # a temporary file of SQLite's own
            self._file.execute("create table states (source text primary key, state blob)")
        oldest = sorted(self._row_of.items(), key=lambda item: self._used[item[1]])[:n]
        moved = [(name, row) for name, row in oldest if self._used[row] < self._calls]
        packed = ((name, self._table[row].tobytes()) for name, row in moved)
        self._file.executemany("insert or replace into states values (?, ?)", packed)
        self._forget(moved)

    def _forget(self, held: Iterable[tuple[str, int]]) -> None:
        """Free the rows of some sources."""
        for name, row in list(held):
            del self._row_of[name]
            self._used[row] = 0

    def _stream(self, rows: ModelOutputs, names: list[str], threads: int) -> FloatArray:
        """Take rows in, each by the state of the source that its code says, and score them (n,)."""
        codes = rows.array(_SOURCE)[:, 0]
        prepared = self._detector._prepare(rows.only(*self._detector.reads), threads)
        arrays = {name: prepared.array(name) for name in prepared.names}
        if len(names) <= self._in_memory:
            return self._step(arrays, self._rows_of(names), codes, threads)
        self._calls += 1
        self._store(len(self._row_of))
        self._file.commit()  # some sources after the others: an error in the last must leave the first as they were
        scores = np.empty(len(rows))
        try:
            for first in range(0, len(names), self._in_memory):
                some = names[first : first + self._in_memory]
                own = np.flatnonzero((codes >= first) & (codes < first + len(some)))
                part = {name: array[own] for name, array in arrays.items()}
                scores[own] = self._step(part, self._rows_of(some), codes[own] - first, threads)
        except InvalidInput:
            self._file.rollback()
            self._forget(self._row_of.items())
            raise
        return scores

    def _step(self, arrays: dict[str, NDArray[Any]], places: IntArray, codes: IntArray, threads: int) -> FloatArray:
        """Step prepared rows by the states at ``places``; ``codes`` says by which of them, for each row."""
        if len(places) > 1:
            kind = np.uint16 if len(self._table) <= 1 << 16 else np.int64  # numpy sorts two bytes in no time
            order = np.argsort(places.astype(kind)[codes], kind="stable")  # states as they lie in memory
            arrays = {name: np.take(array, order, axis=0) for name, array in arrays.items()}
            codes = codes[order]
        edges = np.flatnonzero(np.diff(codes, prepend=-1, append=-1))
        places, prepared = places[codes[edges[:-1]]], ModelOutputs._trusted(arrays)
        stepper = _with_table_step(self._detector)
        found = None if stepper is None else stepper._step_table(self._table, places, edges, prepared, threads)
        if found is None:
            found, after = np.empty(len(codes)), []
            for place, a, b in zip(places.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                state = self._record(self._table[place : place + 1].copy())
                found[a:b], state = self._detector._step(state, prepared[a:b], threads)
                after.append(self._numbers(state))
            self._table[places] = np.array(after).reshape(len(places), -1)
        if len(places) > 1:
            found[order] = found.copy()
        return found


def _sources(by: Sequence[Any] | NDArray[Any], n: int) -> tuple[list[str], IntArray]:
    """The names of the sources, and the place of every row's among them."""
    texts = isinstance(by, list) and by and type(by[0]) is str  # as they are: an array of texts is made again of them
    given = np.asarray(by, object if texts else None)
    if given.shape != (n,):
        raise InvalidInput(f"by must name the source of each of the {n} rows; got an array of shape {given.shape}.")
    if given.dtype.kind not in "OUSiub":
        raise InvalidInput(f"by must hold texts or whole numbers; got {given.dtype}.")
    if given.dtype.kind in "iu" and n:
        least, most = int(given.min()), int(given.max())
        if most - least < 8 * n + 1024 and most < 1 << 63:  # few enough to look each number up
            offset = given.astype(np.int64) - least
            seen = np.bincount(offset) > 0
            return list(map(str, (np.flatnonzero(seen) + least).tolist())), (np.cumsum(seen) - 1)[offset]
    found: dict[Any, int] = defaultdict(count().__next__)  # numbers in the order of the first appearance
    codes = np.fromiter(map(found.__getitem__, given.tolist()), np.int64, n)
    names = list(found)
    if set(map(type, names)) <= {str}:
        return names, codes
    for code, one in enumerate(names):
        if one is None or one != one:
            row = int(np.flatnonzero(codes == code)[0])
            raise InvalidInput(f"by has no source for row {row}; give every row one.")
    distinct, again = np.unique([str(one) for one in names], return_inverse=True)
    return distinct.tolist(), again[codes]


def _with_table_step(detector: Any) -> Any:
    """The detector, or the scorer of a step, whose class steps by a table of states as it does by one; or None.

    Its method ``_step_table(table, places, edges, prepared, threads)`` takes the prepared rows between two edges into
    the state in the row of the table at the same place, and gives the scores. Where it raises, nothing has changed.
    None: it cannot.
    """
    for kind in type(detector).__mro__:
        if "_step_table" in kind.__dict__:
            return detector
        if "_step" in kind.__dict__:
            return _with_table_step(detector.scorer) if kind is Step else None
    return None
