"""Tables kept as named arrays (.npz, .safetensors): which array is what, and do their shapes agree.

- ``logits``, ``features`` and every other 2-D array of numbers with as many rows: outputs, by their names.
- ``labels`` or ``label``: the labels, whole numbers (-1 is "not known") or, in an .npz, names of classes.
- ``head_weight`` and ``head_bias``: the network's last layer.
- ``class_names``: texts.
- A single array under another name, such as numpy's ``arr_0``, is taken for the logits, unless ``arrays``, a list of
  texts, says that this is its name.

What is none of these (times, ids, 3-D arrays) is left out.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.npy_header import ByteStream
from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import FEATURES, LOGITS, check_name
from normscale.rows.columns import LABELS
from normscale.rows.reader import KEPT, Block, TableReader

LABEL_NAMES = (LABELS, "label")
HEAD_WEIGHT, HEAD_BIAS = "head_weight", "head_bias"
CLASS_NAMES = "class_names"
ARRAYS = "arrays"
RESERVED = frozenset({*LABEL_NAMES, HEAD_WEIGHT, HEAD_BIAS, CLASS_NAMES, ARRAYS})
"""Names that have a meaning of their own in a file, and that no array of outputs can have there."""

Take = Callable[[int], NDArray[Any]]
"""Gives the next so many rows of an array."""


class Stored(NamedTuple):
    """What a file says of an array before its numbers are read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class ArraysReader(TableReader):
    """Base class of formats that hold arrays.

    A format has :meth:`_look` and :meth:`_open_array`. Its ``_read_head`` calls :meth:`_choose_arrays`, or fills
    ``_keys`` itself: the name in the file of everything that is read.
    """

    _keys: dict[str, str]

    @abstractmethod
    def _look(self, key: str) -> Stored:
        """Shape and dtype of an array."""

    @abstractmethod
    def _open_array(self, key: str, stack: ExitStack) -> Take:
        """Begin to read the rows of an array; ``stack`` closes what was opened."""

    def _blocks(self) -> Iterator[Block]:
        wanted = [*self.widths, *([LABELS] if self.has_labels else []), *(KEPT + name for name in self.columns)]
        n_rows = self._look(self._keys[wanted[0]]).shape[0]
        with ExitStack() as stack:
            takes = {name: self._open_array(self._keys[name], stack) for name in wanted}
            for start in range(0, n_rows, self.chunk_rows):
                block = {name: take(min(self.chunk_rows, n_rows - start)) for name, take in takes.items()}
                for name, dtype in self.columns.items():
                    block[KEPT + name] = block[KEPT + name].astype(dtype, copy=False)
                yield block

    def _whole(self, key: str) -> NDArray[Any]:
        with ExitStack() as stack:
            return self._open_array(key, stack)(self._look(key).shape[0])

    def _choose_arrays(self, there: list[str], declared: Sequence[str] | None) -> None:
        """Choose by the rule at the top of this module, check shapes, and read the head.

        ``there`` are the arrays in the file, ``declared`` is what the file's own list of arrays says.
        """
        wanted = self._wanted or ()
        names = self._names_of_arrays(there, declared, wanted)
        must = {LOGITS, FEATURES, *wanted, *(declared or ())}
        first = next(name for name in (LOGITS, FEATURES, *names) if name in names)
        labels = next((key for key in LABEL_NAMES if key in there), None)
        if labels is not None:
            self._check_turned(first, self._look(names[first]).shape, self._look(labels).shape)
        self._keys = {}
        for name in sorted(names, key=lambda name: (name != first, name != FEATURES)):
            try:
                self._take_array(name, self._look(names[name]), first)
                self._keys[name] = names[name]
            except FileFormatError:
                if name in must or name == first:
                    raise
        if labels is not None:
            self._check_array(LABELS, self._look(labels), first)
            self._keys[LABELS], self.has_labels = labels, True
        if HEAD_WEIGHT in there or HEAD_BIAS in there:
            if HEAD_WEIGHT not in there or HEAD_BIAS not in there:
                raise self._layout_error(f"a head needs both {HEAD_WEIGHT} and {HEAD_BIAS}; one of them is missing.")
            for name in (HEAD_WEIGHT, HEAD_BIAS):
                self._check_head(name, self._look(name))
            self._take_head(self._whole(HEAD_WEIGHT), self._whole(HEAD_BIAS))

    def _names_of_arrays(
        self, there: list[str], declared: Sequence[str] | None, wanted: Sequence[str]
    ) -> dict[str, str]:
        """Name in the outputs -> name in the file, of everything that may be an array of outputs."""
        others = [key for key in there if key not in RESERVED]
        asked = declared or [key for key in others if key in wanted]
        if LOGITS in there or FEATURES in there:
            names = {key: key for key in others if can_be_name(key)}
        elif asked:
            names = {key: key for key in others if key in asked and can_be_name(key)}
        else:
            names = {LOGITS: others[0]} if len(others) == 1 else {}
        if not names:
            found = ", ".join(repr(key) for key in there) or "none"
            raise FileFormatError(
                f"{self.path} must hold an array 'logits' or 'features' (and may hold more, and 'labels'), or a single "
                f"array; it holds {found}. Rename the one that holds the logits."
            )
        return names

    def _take_array(self, name: str, stored: Stored, first: str = LOGITS) -> None:
        self._check_array(name, stored, first)
        self.n_rows, self.widths[name] = stored.shape
        self._dtypes[name] = stored.dtype.newbyteorder("=")

    def _check_array(self, name: str, stored: Stored, first: str) -> None:
        shape, dtype = stored
        if name != LABELS or dtype.kind != "U":
            self._check_numbers(name, dtype)
        rule = {LOGITS: "(n, n_classes) with n_classes >= 2", FEATURES: "(n, n_features)", LABELS: "(n,)"}
        least = 2 if name == LOGITS else 1
        fits = len(shape) == 1 if name == LABELS else len(shape) == 2 and shape[1] >= least
        if not fits:
            raise self._layout_error(f"{name} must have shape {rule.get(name, '(n, width)')}; got {shape}.")
        if self.n_rows is not None and shape[0] != self.n_rows:
            raise self._layout_error(
                f"{name} must have one entry per row of {first} ({self.n_rows}); got shape {shape}."
            )

    def _check_turned(self, first: str, rows: tuple[int, ...], labels: tuple[int, ...]) -> None:
        if len(rows) == 2 and rows[0] != rows[1] and labels == rows[1:]:
            raise self._layout_error(
                f"{first} has shape {rows} and there are {labels[0]} labels, so rows and columns changed places: a row "
                f"is an input, a column a class. Write {first}.T."
            )

    def _check_head(self, name: str, stored: Stored) -> None:
        self._check_numbers(name, stored.dtype)
        size = math.prod(stored.shape) * stored.dtype.itemsize
        if size > self.largest_head:
            raise self._layout_error(f"{name} takes {size} bytes; at most {self.largest_head} are read.")

    def _check_numbers(self, name: str, dtype: np.dtype[Any]) -> None:
        if dtype.hasobject:
            raise self._layout_error(
                f"{name} holds Python objects, which are pickles and can run code, so they are never opened. Write it "
                "again as numbers: numpy.asarray(x, dtype=numpy.float32)."
            )
        if dtype.kind not in "fiub":
            what = "records or dates" if dtype.kind == "V" else f"dtype {dtype}"
            raise self._layout_error(f"{name} must hold real numbers; got {what}.")


def fill(stream: ByteStream, shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C") -> NDArray[Any]:
    """An array of the next bytes of a stream, in the order its numbers lie in memory."""
    array = np.empty(shape, dtype, order)
    if array.nbytes:
        space = memoryview(array.ravel(order="K").view(np.uint8))  # type: ignore[arg-type]
        if (got := stream.readinto(space)) < len(space):
            raise EOFError(f"it ends {len(space) - got} bytes too early")
    return array


def native(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in this machine's byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def can_be_name(key: str) -> bool:
    """Whether an array of outputs may have this name."""
    try:
        return bool(check_name(key))
    except InvalidInput:
        return False
