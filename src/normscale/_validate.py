"""How arguments are checked: shapes, numbers, labels, words. A rule of one class alone stands in that class.

Each function returns the checked value in the form the library works on, or raises
:class:`~normscale.errors.InvalidInput` with the argument's name, the rule, what came in and the next step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscale.errors import InvalidInput

if TYPE_CHECKING:
    from fractions import Fraction

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
Rows: TypeAlias = NDArray[Any]
"""A 2-D array of real numbers of any numeric dtype, as the caller gave it."""

ON_INVALID = ("raise", "skip")
"""What to do with a row that holds NaN or infinity."""

_T = TypeVar("_T")


def to_numpy(value: ArrayLike | Any, name: str) -> NDArray[Any]:
    """Turn whatever the caller has (list, numpy, torch tensor on any device) into a real numeric array."""
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{name} must be an array of numbers; got {type(value).__name__}: {error}.") from None
    if array.dtype.name == "bfloat16":  # ml_dtypes registers it as a void-like kind
        return array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise InvalidInput(
            f"{name} must hold real numbers (float16 to float64, or integers); got dtype {array.dtype}"
            + (". Are its rows of unequal length?" if array.dtype == object else ".")
        )
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array


def as_rows(value: ArrayLike | Any, name: str = "logits", *, width: int | None = None, min_width: int = 2) -> Rows:
    """Check that ``value`` has shape (n, width); finiteness is checked where the rows are read.

    The array keeps its dtype and memory: a large input is never copied here.
    """
    array = value if type(value) is np.ndarray and value.dtype.char in "fde" else to_numpy(value, name)
    if array.ndim == 2 and array.shape[1] == width:  # the usual case, and the quick one
        return array
    if array.ndim != 2 or array.shape[1] < min_width:
        columns = "n_classes" if name == "logits" else "n_columns"
        hint = ""
        if array.ndim == 1 and array.shape[0] >= min_width:
            hint = f" For a single row pass {name}[None, :]."
        elif array.ndim == 2 and array.shape[1] == 1 and name == "logits":
            hint = " A binary classifier with one logit z has the two logits (0, z): np.c_[np.zeros(n), z]."
        raise InvalidInput(
            f"{name} must have shape (n, {columns}) with {columns} >= {min_width}; got {array.shape}.{hint}"
        )
    if width is not None and array.shape[1] != width:
        turned = f" Did rows and columns change places? Pass {name}.T." if array.shape[0] == width else ""
        raise InvalidInput(f"{name} must have {width} columns, as in fit; got shape {array.shape}.{turned}")
    return array


def min_width(name: str) -> int:
    """The fewest columns that an array of this name may have: logits are of two classes at least."""
    return 2 if name.endswith("logits") else 1


def require_rows(array: Rows, name: str, at_least: int = 1) -> None:
    """Raise when there are too few rows for the work at hand."""
    if array.shape[0] < at_least:
        plural = "row" if at_least == 1 else "rows"
        raise InvalidInput(f"{name} must have at least {at_least} {plural}; got shape {array.shape}.")


def finite_row_mask(array: Rows) -> BoolArray:
    """Which rows hold only finite numbers; shape (n,)."""
    return np.asarray(np.isfinite(array).all(axis=1))


def invalid_row_error(array: Rows, name: str, *, can_skip: bool = False, first_row: int = 0) -> InvalidInput:
    """The error for the first row that holds NaN, infinity, or numbers too large to be squared."""
    skip = 'Drop the row or pass on_invalid="skip".' if can_skip else "Drop the row."
    shown = "row" if name == "rows" else f"{name} row"
    finite = np.isfinite(array)
    if finite.all():
        worst = int(np.argmax(np.abs(array).max(axis=1)))
        return InvalidInput(
            f"{shown} {first_row + worst} holds {np.abs(array[worst]).max():.3g}, too large for second moments in "
            f"float64; nothing was taken in. Rescale the {name}. {skip}"
        )
    row, column = (int(i) for i in np.argwhere(~finite)[0])
    what = "NaN" if np.isnan(array[row, column]) else "infinity"
    return InvalidInput(f"{shown} {first_row + row} holds {what} in column {column}; nothing was taken in. {skip}")


def as_finite_vector(value: ArrayLike | Any, name: str, *, allow_empty: bool = False) -> FloatArray:
    """A finite float64 vector of shape (n,)."""
    array = to_numpy(value, name)
    if array.ndim != 1:
        hint = f" Pass {name}.ravel()." if array.ndim == 2 and 1 in array.shape else ""
        raise InvalidInput(f"{name} must have shape (n,); got {array.shape}.{hint}")
    if array.size == 0 and not allow_empty:
        raise InvalidInput(f"{name} is empty; at least one value is needed.")
    vector: FloatArray = np.ascontiguousarray(array, dtype=np.float64)
    if not np.isfinite(vector).all():
        index = int(np.argmin(np.isfinite(vector)))
        what = "NaN" if np.isnan(vector[index]) else "infinity"
        raise InvalidInput(f"{name}[{index}] is {what}; every value must be finite. Drop it or find out why.")
    return vector


def as_score_vector(value: ArrayLike | Any, name: str) -> NDArray[np.float32] | FloatArray:
    """Finite scores of shape (n,), n >= 1, in the smaller of float32 and float64 that holds them exactly."""
    array = to_numpy(value, name)
    if array.dtype.kind == "f" and array.dtype.itemsize <= 4 and array.ndim == 1 and array.size:
        narrow: NDArray[np.float32] = np.ascontiguousarray(array, dtype=np.float32)
        if np.isfinite(narrow).all():
            return narrow
    vector = as_finite_vector(array, name)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8 and np.abs(vector).max() > 2.0**53:
        index = int(np.argmax(np.abs(vector)))
        raise InvalidInput(
            f"{name}[{index}] is {array[index]}; whole numbers beyond 2**53 would tie in float64. Pass their ranks."
        )
    return vector


def as_both_sides(id_scores: ArrayLike | Any, ood_scores: ArrayLike | Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The scores of both sides, checked."""
    return as_score_vector(id_scores, "id_scores"), as_score_vector(ood_scores, "ood_scores")


def as_class_indices(
    value: ArrayLike | Any, name: str, *, length: int | None = None, n_classes: int | None = None
) -> IntArray:
    """Class indices of shape (n,), whole numbers from 0 to n_classes - 1."""
    array = to_numpy(value, name)
    if array.ndim != 1:
        raise InvalidInput(f"{name} must have shape (n,); got {array.shape}.")
    if length is not None and array.shape[0] != length:
        raise InvalidInput(f"{name} must have one entry per row ({length}); got {array.shape[0]}.")
    with np.errstate(invalid="ignore"):
        indices: IntArray = array.astype(np.int64)
    if array.dtype.kind not in "iu" and not np.array_equal(indices, array):
        raise InvalidInput(f"{name} must hold whole class numbers; got dtype {array.dtype} with other values.")
    if indices.size and (indices.min() < 0 or (n_classes is not None and indices.max() >= n_classes)):
        bad = int(np.argmax((indices < 0) | (indices >= (n_classes if n_classes is not None else np.inf))))
        rule = f"from 0 to {n_classes - 1}" if n_classes is not None else "at least 0"
        from_one = n_classes is not None and indices.min() >= 1 and indices.max() == n_classes
        hint = " They seem to count from 1: subtract 1." if from_one else ""
        raise InvalidInput(f"{name}[{bad}] is {indices[bad]}; class numbers must be {rule}.{hint}")
    return indices


def as_outcomes(value: ArrayLike | Any, name: str, *, length: int) -> BoolArray:
    """Right or wrong, one per row: booleans, or the numbers 0 and 1; shape (length,)."""
    array = to_numpy(value, name)
    if array.shape != (length,):
        raise InvalidInput(f"{name} must have shape ({length},), one entry per row; got {array.shape}.")
    outcomes: BoolArray = array == 1
    other = ~outcomes & (array != 0)
    if other.any():
        index = int(np.argmax(other))
        raise InvalidInput(f"{name}[{index}] is {array[index]}; every entry must be True or False, 1 or 0.")
    return outcomes


def positive(value: float, name: str, *, allow_inf: bool = False) -> float:
    """A number greater than zero."""
    number = real(value, name)
    if not number > 0 or (math.isinf(number) and not allow_inf):
        rule = "greater than 0 (inf allowed)" if allow_inf else "finite and greater than 0"
        raise InvalidInput(f"{name} must be {rule}; got {value!r}.")
    return number


def fraction(value: float, name: str, *, allow_zero: bool = False, allow_one: bool = False) -> float:
    """A share strictly between 0 and 1, or with the ends where allowed."""
    number = real(value, name)
    low_ok = number >= 0 if allow_zero else number > 0
    high_ok = number <= 1 if allow_one else number < 1
    if not (low_ok and high_ok):
        interval = f"{'[' if allow_zero else '('}0, 1{']' if allow_one else ')'}"
        hint = f" For {value:g} % write {value / 100:g}." if 1 < number <= 100 else ""
        raise InvalidInput(f"{name} must lie in {interval}; got {value!r}.{hint}")
    return number


def exact_share(value: Any, name: str, *, allow_one: bool = False) -> Fraction:
    """A share as the decimal that was typed, so that 0.55 of 20 is 11 and not 12.

    The float nearest to 0.55 lies above it, so ``ceil(0.55 * 20)`` is 12; the decimal is what was meant.
    """
    from fractions import Fraction  # loads decimal: too slow for the import of the package

    number = fraction(value, name, allow_one=allow_one)
    try:
        return Fraction(str(value))
    except ValueError:  # a 0-d array or tensor prints with its type
        return Fraction(repr(number))


def at_least(value: float, name: str, minimum: int) -> int:
    """A whole number not below ``minimum``; 20.0 is one, because command lines read every number as a float."""
    whole = isinstance(value, (int, np.integer)) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or value < minimum:
        raise InvalidInput(f"{name} must be a whole number >= {minimum}; got {value!r}.")
    return int(value)


def real(value: float, name: str) -> float:
    """A real number; strings, None and NaN are refused."""
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise InvalidInput(f"{name} must be a number; got {'NaN' if value != value else repr(value)}.")
    return number


def one_of(value: str, name: str, choices: Iterable[str]) -> str:
    """One of a few words."""
    known = list(choices)
    if value not in known:
        raise InvalidInput(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}.")
    return value


def named(name: str, table: Mapping[str, _T], what: str, more: Sequence[str] = ()) -> _T:
    """What a table has under a name; a name that is not known is an error with the nearest one."""
    if name not in table:
        from difflib import get_close_matches

        near = get_close_matches(name, table, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(f"unknown {what} {name!r}; known: {', '.join([*table, *more])}.{hint}")
    return table[name]


def as_labels(value: ArrayLike | Any, name: str = "labels", *, length: int, n_classes: int | None = None) -> IntArray:
    """Class numbers of shape (n,) from 0 to n_classes - 1 (where that is known); -1 stands for "not known"."""
    array = to_numpy(value, name)
    unknown = array == -1
    indices = as_class_indices(np.where(unknown, 0, array), name, length=length, n_classes=n_classes)
    return np.where(unknown, -1, indices)
