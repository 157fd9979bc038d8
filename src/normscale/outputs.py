"""What a network says about some inputs: named arrays with one row per input, labels, and its last layer.

Detectors take a :class:`ModelOutputs` or, where they read a single array, that array itself; :func:`as_outputs` is the
one place where the two meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscale._validate import (
    BoolArray,
    FloatArray,
    IntArray,
    Rows,
    as_finite_vector,
    as_labels,
    as_rows,
    finite_row_mask,
)
from normscale.errors import InvalidInput, MissingOutput

RowSelection: TypeAlias = "int | slice | NDArray[Any] | list[int] | list[bool]"

LOGITS, FEATURES = "logits", "features"
"""The two arrays with a name of their own: the last layer before the softmax, and what goes into that layer."""
LABELS, HEAD = "labels", "head"
"""What a record holds besides arrays: the true classes, and the network's last layer."""
PERTURBED = "perturbed_"
"""Before the name of an array: the same inputs after a small step along a gradient."""
PERTURBED_LOGITS, PERTURBED_FEATURES = PERTURBED + LOGITS, PERTURBED + FEATURES
"""After a step that raises the largest softmax probability; in the pixels that matter least to the prediction."""
ATTACKED = "attacked_"
"""Before the name of a layer: its activations for the same inputs after an attack."""
LABEL_NAMES = ("label", "labels")
"""Columns of a table that hold the labels."""


_SLICE_ROWS = 1 << 14
_KEYED_AT_ONCE = 1 << 18


class Head(NamedTuple):
    """The last layer of a network, which makes logits of features: ``features @ weight.T + bias``."""

    weight: Rows
    """(n_classes, n_features)"""
    bias: NDArray[Any]
    """(n_classes,)"""

    @classmethod
    def checked(cls, value: Any) -> Head:
        """A head from a pair of weight and bias, with agreeing shapes and finite numbers."""
        try:
            weight, bias = value
        except (TypeError, ValueError):
            got = type(value).__name__
            raise InvalidInput(f"head must be a pair (weight, bias) of the last layer; got {got}.") from None
        weight = as_rows(weight, "head weight", min_width=1)
        if weight.shape[0] < 2 or not np.isfinite(weight).all():
            raise InvalidInput(
                f"head weight must have shape (n_classes, n_features), n_classes >= 2, and finite numbers; "
                f"got {weight.shape}."
            )
        vector = as_finite_vector(bias, "head bias")
        if vector.shape != weight.shape[:1]:
            raise InvalidInput(
                f"head bias must have one number for each of {weight.shape[0]} classes; got {vector.shape}."
            )
        if weight.dtype.kind != "f":
            weight = weight.astype(np.float64)
        return cls(weight, vector.astype(weight.dtype, copy=False))

    @property
    def n_classes(self) -> int:
        """The number of classes."""
        return int(self.weight.shape[0])

    def centred(self) -> Head:
        """The layer whose logits are those of this one less their mean over the classes."""
        weight, bias = (part.astype(np.float64) for part in self)
        dtype = self.weight.dtype
        return Head((weight - weight.mean(axis=0)).astype(dtype), (bias - bias.mean()).astype(dtype))

    def logits(self, features: Rows) -> FloatArray:
        """The logits (n, n_classes) of features (n, n_features), in float64."""
        if features.shape[1] != self.weight.shape[1]:
            raise InvalidInput(
                f"features must have {self.weight.shape[1]} columns, as the head's weight has; got {features.shape}."
            )
        logits: FloatArray = features.astype(np.float64, copy=False) @ self.weight.astype(np.float64).T
        logits += self.bias
        return logits

    def equals(self, other: Head | None) -> bool:
        """Whether both are the same layer, number for number."""
        return self is other or (
            other is not None and np.array_equal(self.weight, other.weight) and np.array_equal(self.bias, other.bias)
        )


class ModelOutputs:
    """What a network says about n inputs: arrays by name, a row per input each; frozen.

    At least one array is needed, and none in particular. Nothing is copied: the arrays are the caller's own and keep
    their dtype. Whether the numbers are finite is checked where the rows are read, not here.

    Parameters
    ----------
    logits : array of shape (n, n_classes), n_classes >= 2, optional
        The last layer before the softmax.
    features : array of shape (n, n_features), optional
        What goes into that layer.
    labels : array of shape (n,), optional
        The true classes, 0 to n_classes - 1; -1 stands for "not known". Kept as int64.
    head : pair of arrays, optional
        Weight (n_classes, n_features) and bias (n_classes,) of the last layer.
    **arrays : arrays of shape (n, any width)
        Whatever else detectors read: ``layer3``, ``perturbed_logits``, ``embedding``. A name is a Python identifier.

    Examples
    --------
    >>> outputs = ModelOutputs([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0]], labels=[0, 1, 1], layer3=[[1.0], [2.0], [3.0]])
    >>> len(outputs), outputs.predicted.tolist(), round(outputs.accuracy, 3)
    (3, [0, 1, 0], 0.667)
    >>> outputs[outputs.predicted == 0]
    ModelOutputs(n=2, logits=2, layer3=1, labels)
    >>> outputs.layer3[-1].tolist(), outputs.get("features") is None
    ([3.0], True)
    """

    __slots__ = ("_arrays", "head", "labels")

    _arrays: dict[str, Rows]
    labels: IntArray | None
    head: Head | None

    def __init__(
        self,
        logits: ArrayLike | Any | None = None,
        features: ArrayLike | Any | None = None,
        labels: ArrayLike | Any | None = None,
        head: Any | None = None,
        **arrays: ArrayLike | Any | None,
    ) -> None:
        """Check that the names can be names, the shapes agree and the labels are classes."""
        checked: dict[str, Rows] = {}
        for name, value in {LOGITS: logits, FEATURES: features, **arrays}.items():
            if value is None:
                continue
            if is_dataframe(value):
                raise InvalidInput(
                    f"{name} is a DataFrame, whose columns are not matched by name here. Give it to a detector as it "
                    "is, fit(frame) and score(frame), or pass its numbers: frame.to_numpy()."
                )
            rows = as_rows(value, check_name(name), min_width=2 if name == LOGITS else 1)
            first = next(iter(checked), None)
            if first is not None and rows.shape[0] != checked[first].shape[0]:
                raise InvalidInput(
                    f"{name} must have one row per row of {first} ({checked[first].shape[0]}); got shape {rows.shape}."
                )
            checked[name] = rows
        if not checked:
            raise InvalidInput("outputs need at least one array, such as logits= or features=; got none.")
        layer = None if head is None else Head.checked(head)
        length = next(iter(checked.values())).shape[0]
        n_classes = checked[LOGITS].shape[1] if LOGITS in checked else None if layer is None else layer.n_classes
        if layer is not None:
            if layer.n_classes != n_classes:
                raise InvalidInput(f"head has {layer.n_classes} classes and logits have {n_classes}; they must agree.")
            if FEATURES in checked and checked[FEATURES].shape[1] != layer.weight.shape[1]:
                raise InvalidInput(
                    f"head weight must have a column for each of {checked[FEATURES].shape[1]} features; "
                    f"got shape {layer.weight.shape}."
                )
        if labels is not None:
            labels = as_labels(labels, "labels", length=length, n_classes=n_classes)
        self._fill(checked, labels, layer)

    def _fill(self, arrays: dict[str, Rows], labels: IntArray | None, head: Head | None) -> None:
        """Set what a frozen record holds."""
        for name, value in zip(self.__slots__, (arrays, head, labels), strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def _trusted(
        cls, arrays: dict[str, Rows], labels: IntArray | None = None, head: Head | None = None
    ) -> ModelOutputs:
        """A record of arrays that were checked before; selecting rows should not read every label again."""
        record = cls.__new__(cls)
        record._fill(arrays, labels, head)
        return record

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: the record is frozen."""
        raise AttributeError(f"ModelOutputs is frozen; make a new one instead of setting {name!r}, by replace().")

    def __delattr__(self, name: str) -> None:
        """Refuse: the record is frozen."""
        raise AttributeError(f"ModelOutputs is frozen; {name!r} cannot be deleted.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and send between processes; a frozen class with slots needs to say how."""
        return ModelOutputs._trusted, (self._arrays, self.labels, self.head)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return tuple(self._arrays)

    def array(self, name: str) -> Rows:
        """An array by name, or :class:`~normscale.errors.MissingOutput`."""
        try:
            return self._arrays[name]
        except KeyError:
            raise MissingOutput(f"these outputs have no {name}; they have {', '.join(self._arrays)}.") from None

    def get(self, name: str) -> Rows | None:
        """An array by name, or None."""
        return self._arrays.get(name)

    def __getattr__(self, name: str) -> Rows:
        """Give ``outputs.layer3`` the meaning of ``outputs.array("layer3")``."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self.array(name)

    @property
    def logits(self) -> Rows:
        """The last layer before the softmax; (n, n_classes)."""
        return self.array(LOGITS)

    @property
    def features(self) -> Rows:
        """What goes into the last layer; (n, n_features)."""
        return self.array(FEATURES)

    def replace(self, **arrays: ArrayLike | Any | None) -> ModelOutputs:
        """The same outputs with some arrays, ``labels`` or ``head`` put in or taken out (None).

        Examples
        --------
        >>> ModelOutputs([[1.0, 2.0]], labels=[1]).replace(labels=None, layer3=[[5.0]])
        ModelOutputs(n=1, logits=2, layer3=1)
        """
        return ModelOutputs(**{**self._arrays, "labels": self.labels, "head": self.head, **arrays})

    def only(self, *names: str) -> ModelOutputs:
        """The same inputs with these arrays alone, and with labels and head; itself where it has no others."""
        if names == self.names:
            return self
        return self._trusted({name: self.array(name) for name in names}, self.labels, self.head)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(next(iter(self._arrays.values())).shape[0])

    def __iter__(self) -> Iterator[ModelOutputs]:
        """Iterate over records of one row each."""
        return (self[row] for row in range(len(self)))

    def __getitem__(self, rows: RowSelection) -> ModelOutputs:
        """Select rows by slice (a view), Boolean mask or index array; an integer gives a one-row record."""
        if isinstance(rows, (int, np.integer)) and not isinstance(rows, bool):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"row {rows} is out of range for {len(self)} rows.")
            start = int(rows) % len(self)
            rows = slice(start, start + 1)
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if rows.size == 0 and rows.dtype.kind == "f":  # np.asarray([]) is float
                rows = rows.astype(np.int64)
            if rows.ndim != 1 or rows.dtype.kind not in "biu":
                raise InvalidInput(
                    f"rows are selected by a slice, a Boolean mask or whole numbers of shape (n,); got "
                    f"dtype {rows.dtype} and shape {rows.shape}."
                )
            if rows.dtype.kind == "b" and rows.shape[0] != len(self):
                raise InvalidInput(f"a mask must have one entry per row ({len(self)}); got {rows.shape[0]}.")
        return self._trusted(
            {name: array[rows] for name, array in self._arrays.items()},
            None if self.labels is None else self.labels[rows],
            self.head,
        )

    def __repr__(self) -> str:
        """Describe the record in one line: rows, and the width of every array."""
        parts = [f"n={len(self)}", *(f"{name}={array.shape[1]}" for name, array in self._arrays.items())]
        parts += ["labels"] * (self.labels is not None) + ["head"] * (self.head is not None)
        return f"ModelOutputs({', '.join(parts)})"

    @property
    def n_classes(self) -> int:
        """The number of classes the network knows."""
        if LOGITS not in self._arrays and self.head is not None:
            return self.head.n_classes
        return int(self.logits.shape[1])

    @property
    def predicted(self) -> IntArray:
        """The class with the largest logit, shape (n,); the first of equals."""
        predicted: IntArray = np.argmax(self.logits, axis=1).astype(np.int64, copy=False)
        return predicted

    @property
    def accuracy(self) -> float:
        """The share of rows whose predicted class is the label; rows of unknown label (-1) do not count."""
        if self.labels is None:
            raise InvalidInput("accuracy needs labels; pass ModelOutputs(logits, labels=...).")
        known = self.labels >= 0
        if not known.any():
            raise InvalidInput(f"accuracy needs at least one known label; all {len(self)} are -1 or missing.")
        return float((self.predicted[known] == self.labels[known]).mean())

    @staticmethod
    def concatenate(parts: Iterable[ModelOutputs]) -> ModelOutputs:
        """Put records below each other.

        All must have the same arrays, of the same widths, and the same head where there is one. Where only some have
        labels, the others' are -1, "not known".
        """
        records = list(parts)
        if not records:
            raise InvalidInput("concatenate needs at least one ModelOutputs; got none.")
        first = records[0]
        for record in records:
            if record.names != first.names and sorted(record.names) != sorted(first.names):
                raise InvalidInput(
                    f"all parts must have the same arrays; got {', '.join(first.names)} and {', '.join(record.names)}. "
                    "Choose by part.only(...)."
                )
            for name in first.names:
                width, other = first.array(name).shape[1], record.array(name).shape[1]
                if other != width:
                    raise InvalidInput(f"all parts must have the same number of {name}; got {width} and {other}.")
        heads = [record.head for record in records if record.head is not None]
        if heads and not all(heads[0].equals(head) for head in heads):
            raise InvalidInput("all parts must have the same head; they come from different networks.")
        known = [np.full(len(r), -1, dtype=np.int64) if r.labels is None else r.labels for r in records]
        labels = np.concatenate(known) if any(record.labels is not None for record in records) else None
        return ModelOutputs._trusted(
            {name: np.concatenate([record.array(name) for record in records]) for name in first.names},
            labels,
            heads[0] if heads else None,
        )


def row_slices(outputs: ModelOutputs) -> Iterator[ModelOutputs]:
    """Outputs in parts of some thousand rows, so that what is made of them takes little memory."""
    for start in range(0, len(outputs), _SLICE_ROWS):
        yield outputs[start : start + _SLICE_ROWS] if len(outputs) > _SLICE_ROWS else outputs


def row_keys(rows: Rows, *, ordered: bool = False) -> NDArray[np.uint64]:
    """A number (n,) for every row that depends on its numbers alone, or on their order too; it looks random.

    Numbers count in single precision: what a step makes of the same rows differs in the last digits of double precision
    where it was fitted on them in other parts.
    """
    keys, places = np.zeros(len(rows), np.uint64), np.arange(rows.shape[1] if ordered else 1, dtype=np.uint64)
    places *= np.uint64(0x9E3779B97F4A7C15)  # odd, so that no two are alike
    size = max(16, _KEYED_AT_ONCE // rows.shape[1])
    for a in range(0, len(rows), size):
        with np.errstate(over="ignore"):
            single = np.asarray(rows[a : a + size], np.float32)
        numbers = np.array(single, np.float64, order="C") + 0.0  # -0 is 0
        keys[a : a + size] = _mixed(numbers.view(np.uint64) + places).sum(axis=1, dtype=np.uint64)
    return _mixed(keys)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers whose bits all depend on all bits of the given ones, which are overwritten (Stafford's mixer)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits


_RESERVED = frozenset(name for name in dir(ModelOutputs) if name not in (LOGITS, FEATURES)) | {"labels", "head"}


def is_dataframe(value: object) -> bool:
    """Whether something has columns by name, as the DataFrames of pandas and polars and pyarrow's tables have."""
    if isinstance(value, (np.ndarray, Mapping, ModelOutputs)) or not hasattr(value, "columns"):
        return False
    return all(isinstance(name, (str, int, np.integer)) for name in column_names(value))


def column_names(frame: Any) -> list[Any]:
    """The names of a DataFrame's columns; those of a pyarrow table stand elsewhere."""
    return list(getattr(frame, "column_names", frame.columns))


def check_name(name: str) -> str:
    """A name that an array may have: a Python identifier that means nothing else here."""
    if not name.isidentifier() or name.startswith("_") or name in _RESERVED:
        raise InvalidInput(
            f"an array's name is a word such as layer3, without a leading underscore, and none of "
            f"{', '.join(sorted(word for word in _RESERVED if not word.startswith('_')))}; got {name!r}."
        )
    return name


def array_name(layer: str) -> str:
    """What a layer's activations are called: ``stage1_0`` for ``stage1.0``.

    ``layer_`` comes before what could not be, or already is, an array's name.

    Examples
    --------
    >>> [array_name(layer) for layer in ("stage1", "stage1.0.conv1", "3", "features", "head", "/relu_out.0")]
    ['stage1', 'stage1_0_conv1', 'layer_3', 'layer_features', 'layer_head', 'relu_out_0']
    """
    name = "".join(letter if letter.isalnum() else "_" for letter in layer).strip("_")
    is_free = name.isidentifier() and name not in _RESERVED | {LOGITS, FEATURES}
    return name if is_free else check_name(f"layer_{name}")


def mask_of_finite_rows(outputs: ModelOutputs, names: Iterable[str] | None = None) -> BoolArray:
    """Which rows are finite in these arrays, by default in all; shape (n,)."""
    found = [finite_row_mask(outputs.array(name)) for name in (outputs.names if names is None else names)]
    mask: BoolArray = np.logical_and.reduce(found)
    return mask


def predicted_where_finite(outputs: ModelOutputs) -> IntArray:
    """The predicted class of every row, -1 where its logits hold NaN or infinity; shape (n,)."""
    known: IntArray = np.where(finite_row_mask(outputs.logits), outputs.predicted, -1)
    return known


def as_outputs(value: ModelOutputs | Mapping[str, ArrayLike] | ArrayLike | Any, name: str = LOGITS) -> ModelOutputs:
    """Turn what a caller may pass into :class:`ModelOutputs`.

    A record passes through; a mapping (such as ``numpy.load("outputs.npz")``) has arrays by name, and maybe ``labels``
    and ``head``; a plain array is taken as ``name``.
    """
    if isinstance(value, ModelOutputs):
        return value
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            raise InvalidInput(f"a mapping must have arrays by name; got the keys {', '.join(map(repr, value))}.")
        return ModelOutputs(**{key: value[key] for key in value})
    return ModelOutputs(**{name: value})
