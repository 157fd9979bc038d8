"""Where the work of a job is done: in this process, on processes of this machine, or on a Ray cluster.

What is done are plain functions of two arguments, what all tasks share and the task; where is an engine.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

from normscale._processes import end_with_parent
from normscale._validate import at_least, one_of
from normscale._version import __version__
from normscale.detectors.registry import load_plugins
from normscale.errors import InvalidInput, NormscaleError

ENGINES = ("here", "local", "ray")
RETRIES = 3
"""How often work is begun again whose process died."""
_RUNS_THE_SCRIPT_AGAIN = 77
"""The exit code of a worker whose script has no ``if __name__ == "__main__"``."""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Work = Callable[[Any, Any], Any]
Value = TypeVar("Value")


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
    if engine == "ray":
        from normscale.jobs.ray_engine import RayEngine

        return RayEngine(address, workers)
    return ThisProcess() if engine == "here" else LocalEngine(workers or os.cpu_count() or 1)


def merged_in_order(values: Sequence[Value], merge: Callable[[Value, Value], Value]) -> Value:
    """Merge values two neighbours at a time, as a tree whose shape depends on their number alone: always the same bits.

    Examples
    --------
    >>> merged_in_order("abcde", lambda a, b: f"({a}{b})")
    '(((ab)(cd))e)'
    """
    while len(values) > 1:
        pairs = [merge(values[i], values[i + 1]) for i in range(0, len(values) - 1, 2)]
        values = [*pairs, *values[2 * len(pairs) :]]
    return values[0]


def run_task(version: str, work: Work, shared: Any, task: Any) -> Any:
    """What a worker process runs, with one thread of Arrow: there are as many processes as cores."""
    if version != __version__:
        raise EngineFailed(
            f"a worker has normscale {__version__}, and the job was started by {version}; install the same everywhere."
        )
    with suppress(ImportError):
        import pyarrow

        pyarrow.set_cpu_count(1)
        pyarrow.set_io_thread_count(1)
    return work(shared, task)


class ThisProcess(Engine):
    """The engine that starts nothing: one task after the other, here."""

    workers = 1

    def map(self, work: Work, shared: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        return ((place, work(shared, task)) for place, task in enumerate(tasks))

    def close(self) -> None:
        pass


class LocalEngine(Engine):
    """A pool of processes, one thread each.

    A single worker is a process of its own as well: libraries sum in another order with several threads, and the
    same pieces must give the same bits.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._processes: list[Any] = []

    def map(self, work: Work, shared: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        left = list(range(len(tasks)))
        deaths = 0
        while left:
            done: set[int] = set()
            try:
                for place, result in self._attempt(work, shared, tasks, left):
                    done.add(place)
                    yield place, result
            except BrokenProcessPool:
                self.close()
                if any(process.exitcode == _RUNS_THE_SCRIPT_AGAIN for process in self._processes):
                    raise EngineFailed(
                        "worker processes import the script that started them, and this one begins its job again when "
                        'it is imported. Put what it does under `if __name__ == "__main__":`, or pass engine="here".'
                    ) from None
                deaths = 1 if done else deaths + 1
                if deaths > RETRIES:
                    raise EngineFailed(
                        f"worker processes died {deaths} times in a row. Is memory short? Try fewer --workers."
                    ) from None
            left = [place for place in left if place not in done]

    def _attempt(
        self, work: Work, shared: Any, tasks: Sequence[Any], places: Sequence[int]
    ) -> Iterator[tuple[int, Any]]:
        pool = self._started()
        waiting: dict[Future[Any], int] = {}
        coming = iter(places)
        try:
            while True:
                for place in itertools.islice(coming, 2 * self.workers - len(waiting)):
                    waiting[pool.submit(run_task, __version__, work, shared, tasks[place])] = place
                if not waiting:
                    return
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    place = waiting.pop(future)
                    yield place, future.result()
        finally:
            for future in waiting:
                future.cancel()
            wait([future for future in waiting if not future.cancelled()])

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            if getattr(multiprocessing.current_process(), "_inheriting", False):
                os._exit(_RUNS_THE_SCRIPT_AGAIN)  # a worker that imports the script has come to this line
            with _environment(dict.fromkeys(_ONE_THREAD, "1")):
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self.workers, context, _begin)
                ready = [self._pool.submit(os.getpid)]  # starts all of them
                self._processes = list(self._pool._processes.values())
                with suppress(BrokenProcessPool):  # the first task says so
                    ready += [self._pool.submit(os.getpid) for _ in range(self.workers - 1)]
                wait(ready)  # they inherit the environment now
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _begin() -> None:
    """Make a worker ready: it ends with its parent, and knows the classes that tasks may be made of."""
    end_with_parent()
    load_plugins()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
