"""Several files read as one table, in one process: for commands that need all rows in one place."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import Any

from normscale.engines.locations import is_remote
from normscale.engines.pieces import plan_pieces, read_piece
from normscale.outputs import ModelOutputs


def names_many(path: str) -> bool:
    """Whether a path is a folder, a glob or in an object store; a file with such a name is a file.

    Examples
    --------
    >>> names_many("parts/*.parquet"), names_many("logits.npz"), names_many("-")
    (True, False, False)
    """
    return is_remote(path) or os.path.isdir(path) or (glob.has_magic(path) and not os.path.exists(path))


class JoinedTable:
    """The rows of many files, with the attributes of a :class:`~normscale.tables.TableReader`."""

    columns: dict[str, Any] = {}  # noqa: RUF012 - none, for ever
    """No further columns."""

    def __init__(self, paths: str | Sequence[str], names: Sequence[str] | None = None) -> None:
        """Look at the heads of the files that ``paths`` name."""
        self._plan = plan_pieces(paths, names)
        layout = self._plan.layout
        self.widths, self.names = layout.widths, tuple(layout.widths)
        self.n_classes, self.class_names, self.has_labels = layout.n_classes, layout.class_names, layout.has_labels
        sizes = [piece.n_rows for piece in self._plan.pieces]
        self.n_rows = None if None in sizes else sum(size or 0 for size in sizes)

    def chunks(self) -> Iterator[ModelOutputs]:
        """Iterate over the rows, file after file."""
        for piece in self._plan.pieces:
            yield from read_piece(piece, self._plan.layout)

    def chunks_and_columns(self) -> Iterator[tuple[ModelOutputs, dict[str, Any]]]:
        """Iterate over the rows, with no further columns."""
        return ((chunk, {}) for chunk in self.chunks())
