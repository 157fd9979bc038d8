"""How far a job is: pieces, rows and bytes done, the rate, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """How far a job is."""

    doing: str
    pieces: int
    n_pieces: int
    rows: int
    done_bytes: int
    n_bytes: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """The rate so far."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """By the share of bytes; None before anything is done."""
        if not self.done_bytes:
            return None
        return self.seconds * (self.n_bytes - self.done_bytes) / self.done_bytes

    def __str__(self) -> str:
        """Say it in one line."""
        left = "" if self.seconds_left is None else f", {self.seconds_left:.0f} s left"
        return f"{self.doing}: {self.pieces} of {self.n_pieces} pieces, {self.rows_per_second:,.0f} rows/s{left}"


Tick = Callable[[Progress], object]


class ProgressCounter:
    """Adds up what is done and tells it."""

    def __init__(self, doing: str, n_pieces: int, n_bytes: int, tick: Tick | None) -> None:
        """Begin to count at nothing."""
        self._at = Progress(doing, 0, n_pieces, 0, 0, n_bytes, 0.0)
        self._start = time.monotonic()
        self._tick = tick

    def add(self, pieces: int, rows: int, n_bytes: int) -> None:
        """Say that more is done."""
        at = self._at
        self._at = at._replace(
            pieces=at.pieces + pieces,
            rows=at.rows + rows,
            done_bytes=at.done_bytes + n_bytes,
            seconds=time.monotonic() - self._start,
        )
        if self._tick is not None:
            self._tick(self._at)
