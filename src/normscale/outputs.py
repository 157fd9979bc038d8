"""What a network says about some inputs: logits, and where known the features behind them and the labels.

Detectors take a :class:`ModelOutputs` or, wherever only logits matter, a plain array; :func:`as_outputs` is
the one place where the two meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscale._validate import IntArray, Rows, as_labels, as_rows, require_rows
from normscale.errors import InvalidInput

RowSelection: TypeAlias = "int | slice | NDArray[Any] | list[int] | list[bool]"


class ModelOutputs:
    """What a network says about n inputs; frozen.

    Nothing is copied: the arrays are the caller's own and keep their dtype. Whether the numbers are finite is
    checked where the rows are read, not here.

    Parameters
    ----------
    logits : array of shape (n, n_classes), n_classes >= 2
        The last layer before the softmax.
    features : array of shape (n, n_features), optional
        The layer below it.
    labels : array of shape (n,), optional
        The true classes, 0 to n_classes - 1; -1 stands for "not known". Kept as int64.

    Examples
    --------
    >>> outputs = ModelOutputs([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0]], labels=[0, 1, 1])
    >>> len(outputs), outputs.predicted.tolist(), round(outputs.accuracy, 3)
    (3, [0, 1, 0], 0.667)
    >>> outputs[outputs.predicted == 0]
    ModelOutputs(n=2, n_classes=2, logits=float64, labels)
    """

    __slots__ = ("features", "labels", "logits")

    logits: Rows
    features: Rows | None
    labels: IntArray | None

    def __init__(
        self,
        logits: ArrayLike | Any,
        features: ArrayLike | Any | None = None,
        labels: ArrayLike | Any | None = None,
    ) -> None:
        """Check that the shapes agree and the labels are classes."""
        rows = as_rows(logits, "logits")
        length, n_classes = rows.shape
        if features is not None:
            features = as_rows(features, "features", min_width=1)
            if features.shape[0] != length:
                raise InvalidInput(
                    f"features must have one row per row of logits ({length}); got shape {features.shape}."
                )
        if labels is not None:
            labels = as_labels(labels, "labels", length=length, n_classes=n_classes)
        self._fill(rows, features, labels)

    def _fill(self, logits: Rows, features: Rows | None, labels: IntArray | None) -> None:
        """Set the three fields, once."""
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)

    @classmethod
    def _trusted(cls, logits: Rows, features: Rows | None, labels: IntArray | None) -> ModelOutputs:
        """A record of arrays that were checked before; selecting rows should not read every label again."""
        record = cls.__new__(cls)
        record._fill(logits, features, labels)
        return record

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: the record is frozen."""
        raise AttributeError(f"ModelOutputs is frozen; make a new one instead of setting {name!r}.")

    def __delattr__(self, name: str) -> None:
        """Refuse: the record is frozen."""
        raise AttributeError(f"ModelOutputs is frozen; {name!r} cannot be deleted.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and send between processes; a frozen class with slots needs to say how."""
        return ModelOutputs, (self.logits, self.features, self.labels)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.logits.shape[0])

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
            self.logits[rows],
            None if self.features is None else self.features[rows],
            None if self.labels is None else self.labels[rows],
        )

    def __repr__(self) -> str:
        """Describe the record in one line."""
        parts = [f"n={len(self)}", f"n_classes={self.n_classes}", f"logits={self.logits.dtype}"]
        if self.features is not None:
            parts.append(f"features={self.features.shape[1]}")
        if self.labels is not None:
            parts.append("labels")
        return f"ModelOutputs({', '.join(parts)})"

    @property
    def n_classes(self) -> int:
        """The number of classes the network knows."""
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

        All must have the same number of classes and either all or none features. Where only some have labels,
        the others' are -1, "not known".
        """
        records = list(parts)
        if not records:
            raise InvalidInput("concatenate needs at least one ModelOutputs; got none.")
        if len({record.n_classes for record in records}) > 1:
            raise InvalidInput(
                "all parts must have the same number of classes; "
                f"got {', '.join(str(record.n_classes) for record in records)}."
            )
        widths = {None if record.features is None else record.features.shape[1] for record in records}
        if len(widths) > 1:
            raise InvalidInput(
                "all parts must have the same number of features, or none; "
                f"got {', '.join(sorted(str(width) for width in widths))}. "
                "Drop them by ModelOutputs(part.logits, labels=part.labels)."
            )
        features = [record.features for record in records if record.features is not None]
        labels: IntArray | None = None
        if any(record.labels is not None for record in records):
            labels = np.concatenate(
                [np.full(len(r), -1, dtype=np.int64) if r.labels is None else r.labels for r in records]
            )
        return ModelOutputs._trusted(
            np.concatenate([record.logits for record in records]),
            np.concatenate(features) if features else None,
            labels,
        )


def as_outputs(value: ModelOutputs | Mapping[str, ArrayLike] | ArrayLike | Any, *, at_least: int = 0) -> ModelOutputs:
    """Turn what a caller may pass into :class:`ModelOutputs`.

    Parameters
    ----------
    value : ModelOutputs, array of logits, or mapping
        A record passes through; a mapping (such as ``numpy.load("outputs.npz")``) has the keys ``logits`` and
        maybe ``features`` and ``labels``.
    at_least : int, default 0
        Raise unless there are so many rows.
    """
    if isinstance(value, ModelOutputs):
        outputs = value
    elif isinstance(value, Mapping):
        unknown = sorted(str(key) for key in value if key not in ("logits", "features", "labels"))
        if unknown or "logits" not in value:
            raise InvalidInput(
                "a mapping must have the key 'logits' and may have 'features' and 'labels'; "
                f"got {', '.join(repr(str(key)) for key in value) or 'no keys'}."
            )
        outputs = ModelOutputs(**{key: value[key] for key in value})
    else:
        outputs = ModelOutputs(value)
    if at_least:
        require_rows(outputs.logits, "logits", at_least)
    return outputs
