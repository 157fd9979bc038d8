"""What a job will read and need, before it is run."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from normscale.engines.locations import is_remote
from normscale.engines.pieces import Pieces
from normscale.tables.reader import CHUNK_ELEMENTS

WORKER_BYTES = 500 << 20
"""Of a process that has loaded Python, numpy, pyarrow, the kernels and Ray: measured by benchmarks/engines.py."""


class JobSize(NamedTuple):
    """The size of a job."""

    n_files: int
    n_empty: int
    n_pieces: int
    n_rows: int | None
    """None where only reading tells."""
    n_bytes: int
    """On disk."""
    worker_bytes: int
    """About what a worker needs at most."""

    @classmethod
    def of(cls, plan: Pieces) -> JobSize:
        """Of planned pieces; a worker holds some chunks of float64 numbers and the scores of a piece."""
        sizes = [piece.n_rows for piece in plan.pieces]
        width = sum(plan.layout.widths.values())
        largest = max(size or 0 for size in sizes)
        chunk = 3 * np.dtype(np.float64).itemsize * min(CHUNK_ELEMENTS, largest * width or CHUNK_ELEMENTS)
        scores = 4 * 17 * largest  # score, class and flag, joined and written
        fetched = max(piece.n_bytes if is_remote(piece.file.path) else 0 for piece in plan.pieces)  # few large requests
        return cls(
            n_files=len({piece.file.path for piece in plan.pieces}),
            n_empty=len(plan.empty),
            n_pieces=len(sizes),
            n_rows=None if None in sizes else sum(size or 0 for size in sizes),
            n_bytes=plan.n_bytes,
            worker_bytes=WORKER_BYTES + chunk + scores + fetched,
        )

    def __str__(self) -> str:
        """Say it in lines."""
        rows = "an unknown number of" if self.n_rows is None else f"{self.n_rows:,}"
        empty = f", and {self.n_empty} without rows" if self.n_empty else ""
        return os.linesep.join(
            [
                f"{self.n_files} files{empty}",
                f"{rows} rows in {self.n_pieces} pieces, {self.n_bytes / 1e6:,.1f} MB to read",
                f"about {self.worker_bytes / 1e6:,.0f} MB of memory per worker",
            ]
        )
