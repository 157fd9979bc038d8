"""How a job is run: its options, its progress, and the engine that does its tasks.

A task is a plain function of two arguments, what all tasks share and the task. It gives a result and the number of rows
that it read.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from normscale._validate import at_least, one_of
from normscale.errors import InvalidInput, NormscaleError, NumericalWarning

ENGINES = ("here", "local", "ray")
PIECE_ROWS = 500_000
"""Rows of a piece, unless a single row group has more."""

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Say = Callable[[str], object]
Work = Callable[[Any, Any], Any]


class Progress(NamedTuple):
    """How far a job is."""

    doing: str
    pieces: float
    """Done so far, of ``n_pieces``; one that is under way may count in part."""
    n_pieces: int
    rows: int
    seconds: float

    @property
    def share(self) -> float:
        """How much is done, from 0 to 1."""
        return self.pieces / self.n_pieces if self.n_pieces else 1.0

    @property
    def rows_per_second(self) -> float:
        """The rate so far."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0


Tick = Callable[[Progress], object]


class ProgressCounter:
    """Adds up what is done and reports it."""

    def __init__(self, doing: str, n_pieces: int, tick: Tick | None) -> None:
        self._at = Progress(doing, 0, n_pieces, 0, 0.0)
        self._start, self._tick = time.monotonic(), tick

    def add(self, pieces: float, rows: int) -> None:
        """Count more pieces and rows."""
        doing, done, n_pieces, n_rows, _ = self._at
        self._at = Progress(doing, done + pieces, n_pieces, n_rows + rows, time.monotonic() - self._start)
        if self._tick is not None:
            self._tick(self._at)


def warn(text: str) -> None:
    """Say something about the rows that is no error, as a warning."""
    warnings.warn(text, NumericalWarning, stacklevel=3)


class EngineFailed(NormscaleError, RuntimeError):
    """Processes died again and again, or do not run this version."""


class Engine(Protocol):
    """Processes that work."""

    workers: int
    """How many tasks are done at the same time."""

    def map(self, work: Work, shared: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Give ``work(shared, task)`` of every task, with its place in ``tasks``, in the order they are finished.

        The first error is raised when the tasks under way have ended; no further ones begin. A task whose process dies
        is begun again.
        """

    def close(self) -> None:
        """End the processes."""


class ThisProcess(Engine):
    """The engine that starts nothing: one task after the other, here."""

    workers = 1

    def map(self, work: Work, shared: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        return ((place, work(shared, task)) for place, task in enumerate(tasks))

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class JobOptions:
    """Options that :func:`~normscale.jobs.fit`, ``score``, ``evaluate`` and ``read`` share."""

    probabilities: bool = False
    """The tables hold probabilities in the place of logits; their logarithm is taken."""
    on_invalid: str = "raise"
    """A row that holds NaN or infinity: ``"raise"``, or ``"skip"``, counted and listed; its score is NaN."""
    engine: str | Engine | None = None
    """``"here"``, ``"local"`` or ``"ray"``, or an engine; as in :func:`~normscale.jobs.open_engine`."""
    workers: int | None = None
    """How many tasks at the same time; by default one for each core."""
    address: str | None = None
    """Of a Ray cluster."""
    piece_rows: int = PIECE_ROWS
    """Rows of a piece. It decides a worker's memory, how scores are cut into files, and the last bits of a fit."""
    memory: int | str | None = None
    """How much memory rows may take that must be read into one place, such as ``"8GiB"``; by default half of what is
    free."""
    tick: Tick | None = None
    """Called with the :class:`Progress`."""
    say: Say = warn
    """Called with every remark on the rows; by default they are warnings."""


@contextmanager
def open_engine(
    engine: str | Engine | None = None, *, workers: int | None = None, address: str | None = None, n_tasks: int = 2
) -> Iterator[Engine]:
    """Start an engine, and end it after the body; an engine that is given goes on.

    Parameters
    ----------
    engine : {"here", "local", "ray"}, or an engine, optional
        ``"here"``: this process. ``"local"``: processes on this machine. ``"ray"``: a Ray cluster (needs
        ``normscale[ray]``). An engine that this function gave may serve several jobs. By default this process where
        there is one task, and processes where there are more.
    workers : int, optional
        How many tasks at the same time; by default one for each core of the machine or of the cluster.
    address : str, optional
        Of a Ray cluster, such as ``auto`` or ``ray://head:10001``; by default one is started on this machine.
    n_tasks : int
        How many tasks there are; decides where no engine is named.
    """
    if engine is not None and not isinstance(engine, str):
        yield engine
        return
    name = ("local" if n_tasks > 1 else "here") if engine is None else one_of(engine, "engine", ENGINES)
    if address is not None and name != "ray":
        raise InvalidInput(f"address is that of a Ray cluster; add engine='ray'. Got {address!r}.")
    count = None if workers is None else at_least(workers, "workers", 1)
    started: Engine = ThisProcess()
    if name == "ray":
        from normscale.jobs.ray_engine import RayEngine

        started = RayEngine(address, count)
    elif name == "local":
        from normscale.jobs.local_engine import LocalEngine

        started = LocalEngine(count or os.cpu_count() or 1)
    try:
        yield started
    finally:
        started.close()


def run(engine: Engine, work: Work, shared: Any, tasks: Sequence[Any], counter: ProgressCounter) -> list[Any]:
    """The results of all tasks in their order."""
    results: dict[int, Any] = {}
    for place, (result, n_rows) in engine.map(work, shared, tasks):
        results[place] = result
        counter.add(1, n_rows)
    return [results[place] for place in range(len(tasks))]
