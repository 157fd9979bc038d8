"""Tables kept as named columns (.parquet, .csv): which column is what, and columns matched by the names of classes.

- ``label`` or ``labels``: the labels, whole numbers, or the names of the classes; -1 or nothing is "not known".
- columns of lists (not in .csv): arrays by their names, ``features`` or any other.
- names that begin with ``feature_``: the features, in the order of the file.
- names that begin with ``logit_``: the logits, in the order of the file; what follows is the class's name,
  and every other column (an id, a time) is left out.
- where no name begins with ``logit_`` and no column holds lists, all other columns are logits, named as their class.

Class names ``0``, ``1``, ... say nothing and count as none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from normscale._validate import IntArray
from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import LABEL_NAMES, LOGITS, Head, ModelOutputs

TEXT = np.dtype(object)
"""The type of a column of texts."""
LABELS = "labels"
"""What labels are called in a block of rows, and in a file of arrays."""
LOGIT, FEATURE = "logit_", "feature_"
_ROW_NAMES = frozenset({"", "id", "idx", "index", "row", "unnamed: 0", "__index_level_0__"})
_NAMES_LIKE_LABELS = frozenset({"target", "y", "y_true", "class", "class_id", "truth", "ground_truth", "true_label"})


class ColumnLayout:
    """The columns of logits, features and labels, as positions in the file.

    Columns to ``leave_out`` are no logits unless their names begin so; ``beside_lists`` there need be no logits.

    Examples
    --------
    >>> layout = ColumnLayout("a.csv", ["id", "logit_cat", "logit_dog", "label"])
    >>> layout.logits, layout.label, layout.class_names
    ([1, 2], 3, ('cat', 'dog'))
    """

    __slots__ = ("class_names", "features", "label", "logits", "names")

    def __init__(
        self, path: str, names: Sequence[str], *, beside_lists: bool = False, leave_out: Sequence[str] = ()
    ) -> None:
        self.names = [name.strip() for name in names]
        labels = [i for i, name in enumerate(self.names) if name.lower() in LABEL_NAMES]
        if len(labels) > 1:
            raise FileFormatError(f"{path} has {len(labels)} label columns; expected one, named 'label'.")
        self.label = labels[0] if labels else None
        self.features = [i for i, name in enumerate(self.names) if name.startswith(FEATURE)]
        self.logits = [i for i, name in enumerate(self.names) if name.startswith(LOGIT)]
        self.class_names: tuple[str, ...] | None = None
        if not self.logits and beside_lists:
            return
        if not self.logits:
            taken = {self.label, *self.features, *(i for i, name in enumerate(self.names) if name in leave_out)}
            self.logits = [i for i in range(len(names)) if i not in taken]
            self._refuse_row_names(path)
        if len(self.logits) < 2:
            raise FileFormatError(
                f"{path} must have at least two columns of logits; got {len(self.logits)} among the columns "
                f"{_listed(self.names)}. Name them logit_<class>."
            )
        classes = tuple(self.names[i].removeprefix(LOGIT) for i in self.logits)
        if len(set(classes)) < len(classes):
            twice = next(name for name in classes if classes.count(name) > 1)
            raise FileFormatError(f"{path} has two columns of logits named {twice!r}; each class has one.")
        self.class_names = None if classes == tuple(map(str, range(len(classes)))) else classes

    def _refuse_row_names(self, path: str) -> None:
        """A column of row numbers taken for a logit would be the largest of all, one of labels a class too many."""
        for i in self.logits:
            name = self.names[i]
            if name.lower() in _NAMES_LIKE_LABELS:
                raise FileFormatError(
                    f"{path}: column {i}, named {name!r}, looks like labels, not logits. Call it 'label' "
                    "if it is that; if it is a class, name the columns of logits logit_<class>."
                )
            if name.lower() in _ROW_NAMES:
                what = f"named {name!r}" if name else "without a name"
                kept = f"; `normscale score --keep-columns {name}` keeps it" if name else ""
                raise FileFormatError(
                    f"{path}: column {i}, {what}, looks like row numbers, not logits. Leave it out "
                    f"(pandas: index=False), or name the columns of logits logit_<class>{kept}."
                )


def logit_columns(n_classes: int, class_names: Sequence[str] | None = None) -> list[str]:
    """The names of the columns of logits, so that :class:`ColumnLayout` reads them back."""
    return [LOGIT + name for name in (map(str, range(n_classes)) if class_names is None else class_names)]


def label_numbers(labels: Sequence[Any], class_names: Sequence[str] | None) -> IntArray:
    """Labels that are names of classes as their numbers; whole numbers stay, and what is empty or None is -1.

    Examples
    --------
    >>> label_numbers(["dog", "", "cat", None, 1], ["cat", "dog"])
    array([ 1, -1,  0, -1,  1])
    """
    places = {name: i for i, name in enumerate(class_names or ())} | {None: -1, "": -1}
    numbers = {label: _label_number(label, places) for label in dict.fromkeys(labels)}
    wrong = next((row for row, label in enumerate(labels) if numbers[label] is None), None)
    if wrong is not None and class_names is None and isinstance(labels[wrong], str):
        raise InvalidInput(
            f"labels row {wrong} is the text {labels[wrong]!r}, and nothing names the classes. Name the columns of "
            "logits logit_<class>, or write whole numbers, -1 if not known."
        )
    if wrong is not None:
        raise InvalidInput(
            f"labels row {wrong} is {labels[wrong]!r}, which is none of the classes {_listed(class_names or ())}; a "
            "label is the name of a class or its number."
        )
    return np.array([numbers[label] for label in labels], np.int64)


def _label_number(label: Any, places: Mapping[Any, int]) -> int | None:
    plain = label.strip() if isinstance(label, str) else label
    if plain in places:
        return places[plain]
    try:
        number = float(plain)
    except ValueError:
        return None
    return int(number) if number == number // 1 and "_" not in str(plain) else None


def class_order(expected: Sequence[str] | None, found: Sequence[str] | None, source: str) -> IntArray | None:
    """Which columns to take, in which order; None where the columns are right as they are or nothing names them.

    ``found`` are the names of the columns of the table ``source``. Columns whose class nobody expects are left out; a
    class without a column raises. ``expected`` of None counts as 0, 1, ... where ``found`` has the same numbers.

    Examples
    --------
    >>> class_order(["cat", "dog"], ["dog", "owl", "cat"], "a.csv")
    array([2, 0])
    >>> class_order(["cat", "dog"], ["cat", "dog"], "a.csv") is None
    True
    """
    if found is None:
        return None
    if expected is None:
        expected = [str(i) for i in range(len(found))]
        if sorted(found) != sorted(expected):
            return None  # names that nobody else has
    if list(expected) == list(found):
        return None
    place = {name: i for i, name in enumerate(found)}
    missing = [name for name in expected if name not in place]
    if missing:
        unknown = [name for name in found if name not in set(expected)]
        raise InvalidInput(
            f"{source} has no column of logits for {_listed(missing)}; columns are matched by the names of the "
            f"classes, and it has {_listed(unknown or found)} instead. Rename the columns, or name all of them "
            "logit_0, logit_1, ... where they are the same classes in the same order."
        )
    return np.array([place[name] for name in expected], dtype=np.int64)


def shared_names(named: Iterable[tuple[str, Sequence[str] | None]]) -> tuple[str, ...] | None:
    """The names of the classes that several detectors have, each given with what to call it; None where none has any.

    Two orders raise: columns can be matched to one of them only.

    Examples
    --------
    >>> shared_names([("a", None), ("b", ["cat", "dog"]), ("c", ["cat", "dog"])])
    ('cat', 'dog')
    """
    found: tuple[str, tuple[str, ...]] | None = None
    for who, names in named:
        if names is None:
            continue
        if found is not None and found[1] != tuple(names):
            raise InvalidInput(
                f"the classes of {found[0]} are {_listed(found[1])}, and those of {who} {_listed(tuple(names))}: the "
                "columns of logits cannot be in both orders. Compare them one after the other."
            )
        found = who, tuple(names)
    return None if found is None else found[1]


def in_class_order(outputs: ModelOutputs, order: IntArray) -> ModelOutputs:
    """The same outputs with other columns of logits, and labels and head that go with them; unknown labels are -1.

    Examples
    --------
    >>> turned = in_class_order(ModelOutputs([[1.0, 2.0, 3.0]], labels=[2]), np.array([2, 0]))
    >>> turned.logits.tolist(), turned.labels.tolist()
    ([[3.0, 1.0]], [0])
    """
    changes: dict[str, object] = {}
    if outputs.get(LOGITS) is not None:
        changes[LOGITS] = np.take(outputs.logits, order, axis=1)  # a row stays in one place in memory
    if outputs.labels is not None:
        places = np.full(max(outputs.n_classes, int(order.max()) + 1), -1, np.int64)
        places[order] = np.arange(order.size)
        changes["labels"] = np.where(outputs.labels >= 0, places[outputs.labels], -1)
    if outputs.head is not None:
        changes["head"] = Head(outputs.head.weight[order], outputs.head.bias[order])
    return outputs.replace(**changes)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
