"""Tables kept as named columns (.parquet, .csv): which column is what.

- ``label`` or ``labels``: the labels, whole numbers, or the names of the classes; -1 or nothing is "not known".
- columns of lists (not in .csv): arrays by their names, ``features`` or any other.
- names that begin with ``feature_``: the features, in the order of the file.
- names that begin with ``logit_``: the logits, in the order of the file; what follows is the class's name,
  and every other column (an id, a time) is left out.
- where no name begins with ``logit_`` and no column holds lists, all other columns are logits, named as their class.

Class names ``0``, ``1``, ... say nothing and count as none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from normscale._validate import IntArray
from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import LABEL_NAMES

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

    @property
    def used(self) -> list[int]:
        """The positions of all columns that are read, in the order of the file."""
        return sorted([*self.logits, *self.features, *([] if self.label is None else [self.label])])


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
    known: dict[Any, int] = {name: i for i, name in enumerate(class_names or ())} | {None: -1, "": -1}
    found = np.empty(len(labels), np.int64)
    for row, label in enumerate(labels):
        number = known.get(label) if isinstance(label, (str, type(None))) else label
        if number is None and str(label).lstrip("-").isdecimal():
            number = int(label)
        if number is None and class_names is None:
            raise InvalidInput(
                f"labels row {row} is the text {label!r}, and nothing names the classes. Name the columns of logits "
                "logit_<class>, or write whole numbers, -1 if not known."
            )
        if number is None or number != int(number):
            raise InvalidInput(
                f"labels row {row} is {label!r}, which is none of the classes {_listed(class_names or ())}; a label is "
                "the name of a class or its number."
            )
        found[row] = number
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
