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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import FEATURES, LOGITS, Head, check_name

LABELS = "labels"
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


class Chosen(NamedTuple):
    """Which stored arrays make the table."""

    arrays: dict[str, str]
    """Name in the outputs -> name in the file."""
    labels: str | None
    has_head: bool
    left_out: dict[str, str]
    """Name in the file -> why it is no part of the outputs."""


def choose_arrays(
    path: str,
    keys: Iterable[str],
    look: Callable[[str], Stored],
    declared: Sequence[str] | None,
    wanted: Sequence[str] | None,
) -> Chosen:
    """Choose among the arrays of a file by the rule at the top of this module, and check their shapes.

    Parameters
    ----------
    path : str
        What messages call the file.
    keys : iterable of str
        The names of the arrays in the file.
    look : callable
        Gives shape and dtype of an array.
    declared : sequence of str, optional
        What the file's own list of arrays says.
    wanted : sequence of str, optional
        Names the caller asked for; one of these that cannot be read is an error instead of being left out.
    """
    there = list(keys)
    others = [key for key in there if key not in RESERVED]
    if LOGITS in there or FEATURES in there:
        names = {key: key for key in others if can_be_name(key)}
    elif declared:
        names = {key: key for key in others if key in declared and can_be_name(key)}
    elif wanted and any(key in wanted for key in others):
        names = {key: key for key in others if key in wanted and can_be_name(key)}
    else:
        names = {LOGITS: others[0]} if len(others) == 1 else {}
    if not names:
        found = ", ".join(repr(key) for key in there) or "none"
        raise FileFormatError(
            f"{path} must hold an array 'logits' or 'features' (and may hold more, and 'labels'), or a single array; "
            f"it holds {found}. Rename the one that holds the logits."
        )
    must = {LOGITS, FEATURES, *(wanted or ()), *(declared or ())}
    first = next(name for name in (LOGITS, FEATURES, *names) if name in names)
    n_rows: int | None = None
    arrays: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (name != first, name != FEATURES)):
        try:
            stored = look(names[name])
            check_array(path, name, stored, first, n_rows)
        except FileFormatError as error:
            if name in must or name == first:
                raise
            left_out[name] = str(error)
        else:
            n_rows = stored.shape[0]
            arrays[name] = names[name]
    labels = next((key for key in LABEL_NAMES if key in there), None)
    if labels is not None:
        _check_turned(path, first, look(names[first]), look(labels))
        check_array(path, LABELS, look(labels), first, n_rows)
    has_head = HEAD_WEIGHT in there or HEAD_BIAS in there
    if has_head:
        if HEAD_WEIGHT not in there or HEAD_BIAS not in there:
            raise FileFormatError(f"{path}: a head needs both {HEAD_WEIGHT} and {HEAD_BIAS}; one of them is missing.")
        check_head(path, look(HEAD_WEIGHT), look(HEAD_BIAS))
    return Chosen(arrays, labels, has_head, left_out)


def check_array(path: str, name: str, stored: Stored, first: str, n_rows: int | None) -> None:
    """Check shape and dtype of an array of outputs or of the labels before a single row is read."""
    shape, dtype = stored
    if name != LABELS or dtype.kind != "U":
        _check_numbers(path, name, dtype)
    rule = {LOGITS: "(n, n_classes) with n_classes >= 2", FEATURES: "(n, n_features)", LABELS: "(n,)"}
    least = 2 if name == LOGITS else 1
    fits = len(shape) == 1 if name == LABELS else len(shape) == 2 and shape[1] >= least
    if not fits:
        raise FileFormatError(f"{path}: {name} must have shape {rule.get(name, '(n, width)')}; got {shape}.")
    if n_rows is not None and shape[0] != n_rows:
        raise FileFormatError(f"{path}: {name} must have one entry per row of {first} ({n_rows}); got shape {shape}.")


def _check_turned(path: str, first: str, rows: Stored, labels: Stored) -> None:
    """Say so where an array has a column, instead of a row, for every label."""
    if len(rows.shape) == 2 and rows.shape[0] != rows.shape[1] and labels.shape == rows.shape[1:]:
        raise FileFormatError(
            f"{path}: {first} has shape {rows.shape} and there are {labels.shape[0]} labels, so rows and columns "
            f"changed places: a row is an input, a column a class. Write {first}.T."
        )


def check_head(path: str, weight: Stored, bias: Stored) -> None:
    """Check shapes, dtypes and size of a head before its numbers are read."""
    _check_numbers(path, HEAD_WEIGHT, weight.dtype)
    _check_numbers(path, HEAD_BIAS, bias.dtype)
    if len(weight.shape) != 2 or bias.shape != weight.shape[:1]:
        raise FileFormatError(
            f"{path}: {HEAD_WEIGHT} must have shape (n_classes, n_features) and {HEAD_BIAS} (n_classes,); "
            f"got {weight.shape} and {bias.shape}."
        )
    size = math.prod(weight.shape) * weight.dtype.itemsize
    if size > LARGEST_HEAD:
        raise FileFormatError(f"{path}: {HEAD_WEIGHT} takes {size} bytes; at most {LARGEST_HEAD} are read.")


def checked_head(path: str, weight: Any, bias: Any, widths: Mapping[str, int]) -> Head:
    """A head whose numbers were read, if it fits the logits and features beside it."""
    try:
        head = Head.checked((weight, bias))
    except InvalidInput as error:
        raise FileFormatError(f"{path}: {error}") from None
    shape = (widths.get(LOGITS, head.n_classes), widths.get(FEATURES, head.weight.shape[1]))
    if head.weight.shape != shape:
        raise FileFormatError(
            f"{path}: {HEAD_WEIGHT} must have shape {shape}, as logits and features have; got {head.weight.shape}."
        )
    return head


def native(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """The same numbers in this machine's byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _check_numbers(path: str, name: str, dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise FileFormatError(
            f"{path}: {name} holds Python objects, which are pickles and can run code, so they are never "
            "opened. Write it again as numbers: numpy.asarray(x, dtype=numpy.float32)."
        )
    if dtype.kind not in "fiub":
        what = "records or dates" if dtype.kind == "V" else f"dtype {dtype}"
        raise FileFormatError(f"{path}: {name} must hold real numbers; got {what}.")


def can_be_name(key: str) -> bool:
    """Whether an array of outputs may have this name."""
    try:
        check_name(key)
    except InvalidInput:
        return False
    return True
