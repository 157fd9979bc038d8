"""A stream for every source: what one camera or client sends teaches nothing about another.

``detector.stream(rows, by=ids)`` keeps a :class:`SourceStates`, a mapping of sources to states. All states are rows of
one table, so that a block with rows of many sources is one call of a kernel. A table that is too large for memory is a
file, mapped: what was not used for long leaves memory by the system's hand.
"""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from collections.abc import Iterator, MutableMapping, Sequence
from itertools import count, pairwise, repeat
from tempfile import TemporaryFile
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
    """States by source: in memory, or in a temporary file that ends with this object.

    ``states[source]`` gives a copy of a source's state as a record, ``states[source] = record`` replaces it.

    Parameters
    ----------
    detector : Detector
        A fitted one.
    in_memory : int, optional
        With more states than that, they are in a file; by default with more than a GiB holds.

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
        self._free: list[int] = []

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
        return self._record(self._row_of[source])

    def __setitem__(self, source: str, state: Any) -> None:
        numbers, row = self._numbers(state), self._rows_of([source])  # which may move the table
        self._table[row] = numbers

    def __delitem__(self, source: str) -> None:
        self._free.append(self._row_of.pop(source))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._row_of))

    def __len__(self) -> int:
        return len(self._row_of)

    def __getstate__(self) -> dict[str, Any]:
        """All states in memory, for a copy or another process."""
        rows = {name: row for row, name in enumerate(self)}
        return {**self.__dict__, "_table": self._whole_table(), "_row_of": rows, "_free": []}

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
        return self._table[[self._row_of[source] for source in self]]

    def _numbers(self, state: Any) -> FloatArray:
        """The row of the table that a state is."""
        arrays = record_arrays(state)
        for name, (_, shape) in self._columns.items():
            if name not in arrays or arrays[name].shape != shape:
                raise InvalidInput(f"state.{name} must have the shape {shape} of a new stream's.")
        return np.concatenate([np.ravel(arrays[name]) for name in self._columns], dtype=np.float64)

    def _record(self, row: int) -> Any:
        """A copy of the state in a row of the table."""
        parts = {name: own[0] for name, own in self._arrays(self._table[row : row + 1].copy()).items()}
        return self._detector._read_state(parts, "")

    def _arrays(self, table: FloatArray) -> dict[str, NDArray[Any]]:
        """The columns of a table by the names of a state's arrays, in their shapes, a row for each source."""
        return {name: table[:, own].reshape(len(table), *shape) for name, (own, shape) in self._columns.items()}

    def _rows_of(self, names: Sequence[str]) -> IntArray:
        """Where in the table the states of some sources are; those of new ones begin."""
        rows = np.fromiter(map(self._row_of.get, names, repeat(-1)), np.int64, len(names))
        missing = np.flatnonzero(rows < 0)
        if missing.size:
            rows[missing] = new = self._free_rows(missing.size)
            self._table[new] = self._numbers(self._detector.start())
            self._row_of.update(zip((names[i] for i in missing.tolist()), new, strict=True))
        return rows

    def _free_rows(self, n: int) -> list[int]:
        """Take free rows of the table, which may be made longer, or become a file."""
        have, width = self._table.shape
        if len(self._free) < n:
            longer = max(_FEWEST, 2 * have, have + n)
            table = (np.empty if longer <= self._in_memory else in_a_file)((longer, width))
            table[:have], self._table = self._table, table
            self._free = [*range(longer - 1, have - 1, -1), *self._free]
        taken = self._free[-n:]
        del self._free[-n:]
        return taken

    def _stream(self, rows: ModelOutputs, names: list[str], threads: int) -> FloatArray:
        """Take rows in, each by the state of the source that its code says, and score them (n,)."""
        prepared = self._detector._prepare(rows.only(*self._detector.reads), threads)
        places, codes = self._rows_of(names), rows.array(_SOURCE)[:, 0]
        if len(places) > 1:
            kind = np.uint16 if len(self._table) <= 1 << 16 else np.int64  # numpy sorts two bytes in no time
            order = np.argsort(places.astype(kind)[codes], kind="stable")  # states as they lie in memory
            arrays = {name: np.take(prepared.array(name), order, axis=0) for name in prepared.names}
            codes, prepared = codes[order], ModelOutputs._trusted(arrays)
        edges = np.flatnonzero(np.diff(codes, prepend=-1, append=-1))
        places = places[codes[edges[:-1]]]
        stepper = _with_table_step(self._detector)
        found = None if stepper is None else stepper._step_table(self._table, places, edges, prepared, threads)
        if found is None:
            found = self._step_each(places.tolist(), edges.tolist(), prepared, threads)
        if len(places) > 1:
            found[order] = found.copy()
        return found

    def _step_each(self, places: list[int], edges: list[int], prepared: ModelOutputs, threads: int) -> FloatArray:
        """Step the prepared rows between two edges by the state at each place; all states move, or none."""
        found, moved = np.empty(len(prepared)), self._free_rows(len(places))
        try:
            for place, after, (a, b) in zip(places, moved, pairwise(edges), strict=True):
                found[a:b], state = self._detector._step(self._record(place), prepared[a:b], threads)
                self._table[after] = self._numbers(state)
            for place, after in zip(places, moved, strict=True):
                self._table[place] = self._table[after]
        finally:
            self._free += moved
        return found


def in_a_file(shape: tuple[int, int]) -> FloatArray:
    """An array in a temporary file, which ends with it."""
    usual = None if "TMPDIR" in os.environ or not os.path.isdir("/var/tmp") else "/var/tmp"  # /tmp may be memory
    with TemporaryFile(dir=usual) as file:
        return np.asarray(np.memmap(file, np.float64, "w+", shape=shape))


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
