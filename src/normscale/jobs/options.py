"""What all jobs have in common: their options, how far they are, and where their remarks go."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypedDict

from normscale._validate import ON_INVALID, one_of
from normscale.errors import NumericalWarning
from normscale.jobs.engines import Engine

PIECE_ROWS = 500_000
"""Rows of a piece, unless a single row group has more."""

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Say = Callable[[str], object]


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


Tick = Callable[[Progress], object]


class ProgressCounter:
    """Adds up what is done and reports it."""

    def __init__(self, doing: str, n_pieces: int, n_bytes: int, tick: Tick | None) -> None:
        self._at = Progress(doing, 0, n_pieces, 0, 0, n_bytes, 0.0)
        self._start, self._tick = time.monotonic(), tick

    def add(self, pieces: int, rows: int, n_bytes: int) -> None:
        """Count more pieces, rows and bytes."""
        doing, done, n_pieces, done_rows, done_bytes, total, _ = self._at
        seconds = time.monotonic() - self._start
        self._at = Progress(doing, done + pieces, n_pieces, done_rows + rows, done_bytes + n_bytes, total, seconds)
        if self._tick is not None:
            self._tick(self._at)


def warn(text: str) -> None:
    """Say something about the rows that is no error, as a warning."""
    warnings.warn(text, NumericalWarning, stacklevel=3)


def say_all(texts: Iterable[str], say: Say) -> None:
    """Say each of these remarks once."""
    for text in dict.fromkeys(texts):
        say(text)


class JobOptions(TypedDict, total=False):
    """Options that :func:`~normscale.jobs.fit`, ``score`` and ``evaluate`` share."""

    probabilities: bool
    """The tables hold probabilities in the place of logits; their logarithm is taken."""
    on_invalid: str
    """A row that holds NaN or infinity: ``"raise"``, or ``"skip"``, counted and listed; its score is NaN."""
    engine: str | Engine | None
    """``"here"``, ``"local"`` or ``"ray"``, or an engine; as in :func:`~normscale.jobs.open_engine`."""
    workers: int | None
    """How many tasks at the same time; by default one for each core."""
    address: str | None
    """Of a Ray cluster."""
    piece_rows: int
    """Rows of a piece. It decides a worker's memory, how scores are cut into files, and the last bits of a fit."""
    tick: Tick | None
    """Called with the :class:`Progress`."""
    say: Say
    """Called with every remark on the rows; by default they are warnings."""


def with_defaults(options: JobOptions) -> JobOptions:
    """The options given, and the defaults of all others."""
    every: JobOptions = {
        "probabilities": False,
        "on_invalid": "raise",
        "engine": None,
        "workers": None,
        "address": None,
        "piece_rows": PIECE_ROWS,
        "tick": None,
        "say": warn,
    }
    every.update(options)
    one_of(every["on_invalid"], "on_invalid", ON_INVALID)
    return every
