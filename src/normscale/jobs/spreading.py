"""Where the work of a job is done: in this process, on processes of this machine, or on a Ray cluster.

What is done are plain functions of two arguments, what all tasks share and the task; where is an engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from normscale._validate import at_least, one_of
from normscale._version import __version__
from normscale.errors import InvalidInput, NormscaleError

ENGINES = ("here", "local", "ray")

RETRIES = 3
"""How often work is begun again whose process died."""

Work = Callable[[Any, Any], Any]


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


class ThisProcess:
    """The engine that starts nothing: one task after the other, here."""

    workers = 1

    def map(self, work: Work, shared: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Give the result of every task with its place, in order."""
        return ((place, work(shared, task)) for place, task in enumerate(tasks))

    def close(self) -> None:
        """Do nothing."""


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
    started = _start(name, count, address)
    try:
        yield started
    finally:
        started.close()


def _start(engine: str, workers: int | None, address: str | None) -> Engine:
    if engine == "here":
        return ThisProcess()
    if engine == "ray":
        from normscale.jobs.ray_engine import RayEngine

        return RayEngine(address, workers)
    from normscale.jobs.local_engine import LocalEngine

    return LocalEngine(workers or os.cpu_count() or 1)


def run_task(version: str, work: Work, shared: Any, task: Any) -> Any:
    """What a worker process runs."""
    if version != __version__:
        raise EngineFailed(
            f"a worker has normscale {__version__}, and the job was started by {version}; install the same everywhere."
        )
    one_thread()
    return work(shared, task)


def one_thread() -> None:
    """Let Arrow use one thread in this process: there are as many processes as cores."""
    try:
        import pyarrow
    except ImportError:
        return
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
