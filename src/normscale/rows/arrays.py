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
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import FEATURES, LOGITS, check_name
from normscale.rows.columns import LABELS
from normscale.rows.reader import TableReader

LABEL_NAMES = (LABELS, "label")
HEAD_WEIGHT, HEAD_BIAS = "head_weight", "head_bias"
CLASS_NAMES = "class_names"
ARRAYS = "arrays"
RESERVED = frozenset({*LABEL_NAMES, HEAD_WEIGHT, HEAD_BIAS, CLASS_NAMES, ARRAYS})
"""Names that have a meaning of their own in a file, and that no array of outputs can have there."""
LARGEST_HEAD = 1 << 28
"""Bytes of a head's weight: 32000 classes of 2048 features in float32. A head is read whole, so it needs a bound."""


class Stored(NamedTuple):
    """What a file says of an array before its numbers are read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class ArraysReader(TableReader):
    """Base class of formats that hold arrays; those of names call :meth:`_choose_arrays` in their ``_read_head``."""

    def _look(self, key: str) -> Stored:
        """Shape and dtype of an array."""
        raise NotImplementedError

    def _whole(self, key: str) -> Any:
        """The numbers of an array."""
        raise NotImplementedError

    def _choose_arrays(self, keys: Iterable[str], declared: Sequence[str] | None) -> dict[str, str]:
        """Choose by the rule at the top of this module, check shapes, and read the head.

        Parameters
        ----------
        keys : iterable of str
            The names of the arrays in the file.
        declared : sequence of str, optional
            What the file's own list of arrays says.

        Returns
        -------
        dict
            The name in the file of every array that is read, and of the labels.
        """
        there, wanted = list(keys), self._wanted or ()
        names = self._names_of_arrays(there, declared, wanted)
        must = {LOGITS, FEATURES, *wanted, *(declared or ())}
        first = next(name for name in (LOGITS, FEATURES, *names) if name in names)
        labels = next((key for key in LABEL_NAMES if key in there), None)
        if labels is not None:
            self._check_turned(first, self._look(names[first]).shape, self._look(labels).shape)
        chosen: dict[str, str] = {}
        for name in sorted(names, key=lambda name: (name != first, name != FEATURES)):
            try:
                self._take_array(name, self._look(names[name]), first)
            except FileFormatError as error:
                if name in must or name == first:
                    raise
                self.left_out[name] = str(error)
            else:
                chosen[name] = names[name]
        if labels is not None:
            self._check_array(LABELS, self._look(labels), first)
            chosen[LABELS], self.has_labels = labels, True
        if HEAD_WEIGHT in there or HEAD_BIAS in there:
            if HEAD_WEIGHT not in there or HEAD_BIAS not in there:
                raise self._layout_error(f"a head needs both {HEAD_WEIGHT} and {HEAD_BIAS}; one of them is missing.")
            self._check_head(self._look(HEAD_WEIGHT), self._look(HEAD_BIAS))
            self._take_head(self._whole(HEAD_WEIGHT), self._whole(HEAD_BIAS))
        return chosen

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
        """Note shape and dtype of an array of outputs, if it can be one."""
        self._check_array(name, stored, first)
        self.n_rows, self.widths[name] = stored.shape
        self._dtypes[name] = stored.dtype.newbyteorder("=")

    def _check_array(self, name: str, stored: Stored, first: str) -> None:
        """Check shape and dtype of an array of outputs or of the labels before a single row is read."""
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
        """Say so where an array has a column, instead of a row, for every label."""
        if len(rows) == 2 and rows[0] != rows[1] and labels == rows[1:]:
            raise self._layout_error(
                f"{first} has shape {rows} and there are {labels[0]} labels, so rows and columns changed places: a row "
                f"is an input, a column a class. Write {first}.T."
            )

    def _check_head(self, weight: Stored, bias: Stored) -> None:
        """Check shapes, dtypes and size of a head before its numbers are read."""
        self._check_numbers(HEAD_WEIGHT, weight.dtype)
        self._check_numbers(HEAD_BIAS, bias.dtype)
        if len(weight.shape) != 2 or bias.shape != weight.shape[:1]:
            raise self._layout_error(
                f"{HEAD_WEIGHT} must have shape (n_classes, n_features) and {HEAD_BIAS} (n_classes,); "
                f"got {weight.shape} and {bias.shape}."
            )
        size = math.prod(weight.shape) * weight.dtype.itemsize
        if size > LARGEST_HEAD:
            raise self._layout_error(f"{HEAD_WEIGHT} takes {size} bytes; at most {LARGEST_HEAD} are read.")

    def _check_numbers(self, name: str, dtype: np.dtype[Any]) -> None:
        if dtype.hasobject:
            raise self._layout_error(
                f"{name} holds Python objects, which are pickles and can run code, so they are never opened. Write it "
                "again as numbers: numpy.asarray(x, dtype=numpy.float32)."
            )
        if dtype.kind not in "fiub":
            what = "records or dates" if dtype.kind == "V" else f"dtype {dtype}"
            raise self._layout_error(f"{name} must hold real numbers; got {what}.")


def native(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in this machine's byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def can_be_name(key: str) -> bool:
    """Whether an array of outputs may have this name."""
    try:
        return bool(check_name(key))
    except InvalidInput:
        return False
