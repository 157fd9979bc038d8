"""What readers of files that hold arrays by name (.npz, .safetensors) share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from normscale.rows.arrays import HEAD_BIAS, HEAD_WEIGHT, LABELS, Stored, checked_head, choose_arrays
from normscale.rows.reader import TableReader


class NamedArraysReader(TableReader):
    """Base class; a subclass calls :meth:`_take` in its ``_read_head``."""

    def _take(
        self,
        keys: Iterable[str],
        look: Callable[[str], Stored],
        declared: Sequence[str] | None,
        whole: Callable[[str], Any],
    ) -> dict[str, str]:
        """Choose the arrays, note their shapes and read the head; gives the name in the file of each array.

        ``look`` gives shape and dtype of an array, ``whole`` its numbers.
        """
        seen: dict[str, Stored] = {}

        def looked(key: str) -> Stored:
            if key not in seen:
                seen[key] = look(key)
            return seen[key]

        chosen = choose_arrays(self.path, keys, looked, declared, self._wanted)
        self.left_out = chosen.left_out
        for name, key in chosen.arrays.items():
            self.n_rows, self.widths[name] = seen[key].shape
            self._dtypes[name] = seen[key].dtype.newbyteorder("=")
        if chosen.has_head:
            self.head = checked_head(self.path, whole(HEAD_WEIGHT), whole(HEAD_BIAS), self.widths)
        self.has_labels = chosen.labels is not None
        return {**chosen.arrays, **({} if chosen.labels is None else {LABELS: chosen.labels})}
