"""Tables kept as named arrays (.npz, .safetensors): which array is what, and do their shapes agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from normscale.errors import FileFormatError

LABEL_NAMES = ("labels", "label")
_NOT_LOGITS = frozenset({"features", *LABEL_NAMES, "class_names"})
_SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {  # the rule in words, and the least columns
    "logits": ("(n, n_classes) with n_classes >= 2", (2,)),
    "features": ("(n, n_features)", (1,)),
    "labels": ("(n,)", ()),
}


def choose_arrays(path: str, names: Iterable[str]) -> tuple[str, str | None, str | None]:
    """The names of the logits, the features and the labels.

    Logits are called ``logits``, or are the only array left when ``features``, ``labels`` (``label``) and
    ``class_names`` are taken away, such as numpy's ``arr_0``.
    """
    there = list(names)
    left = [name for name in there if name not in _NOT_LOGITS]
    if "logits" in there:
        logits = "logits"
    elif len(left) == 1:
        logits = left[0]
    else:
        found = ", ".join(repr(name) for name in there) or "none"
        raise FileFormatError(
            f"{path} must hold an array 'logits' (and may hold 'features', 'labels'), or a single array; "
            f"it holds {found}. Rename the one that holds the logits."
        )
    features = "features" if "features" in there else None
    labels = next((name for name in LABEL_NAMES if name in there), None)
    return logits, features, labels


def check_shapes(path: str, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, np.dtype[Any]]) -> None:
    """Check logits (n, n_classes), features (n, d), labels (n,) before a single row is read.

    Both mappings have the keys ``logits`` and maybe ``features`` and ``labels``.
    """
    for name, shape in shapes.items():
        rule, min_columns = _SHAPES[name]
        if len(shape) != 1 + len(min_columns) or shape[1:] < min_columns:
            raise FileFormatError(f"{path}: {name} must have shape {rule}; got {shape}.")
        n_rows = shapes["logits"][0]
        if shape[0] != n_rows:
            raise FileFormatError(
                f"{path}: {name} must have one entry per row of logits ({n_rows}); got shape {shape}."
            )
        if dtypes[name].hasobject:
            raise FileFormatError(
                f"{path}: {name} holds Python objects, which are pickles and can run code, so they are never "
                "opened. Write it again as numbers: numpy.asarray(x, dtype=numpy.float32)."
            )
        if dtypes[name].kind not in "fiub":
            raise FileFormatError(f"{path}: {name} must hold real numbers; got dtype {dtypes[name]}.")


def native(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """The same numbers in this machine's byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
