"""Jobs on processes of this machine, one thread each."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait as wait_for_processes
from typing import Any

from normscale._processes import end_with_parent
from normscale._version import __version__
from normscale.detectors.registry import load_plugins
from normscale.jobs.running import Engine, EngineFailed, Work

RETRIES = 3
"""How often work is begun again whose process died."""
_RUNS_THE_SCRIPT_AGAIN = 77
"""The exit code of a worker whose script has no ``if __name__ == "__main__"``."""
_END_SECONDS = 30.0
"""How long processes that have no task may take to end."""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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
        """End the processes; those that do not end by themselves are killed, so that nobody waits for them for ever."""
        if self._pool is None:
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None
        running, deadline = list(self._processes), time.monotonic() + _END_SECONDS
        while running and (left := deadline - time.monotonic()) > 0:
            ended = wait_for_processes([process.sentinel for process in running], left)
            running = [process for process in running if process.sentinel not in ended]
        for process in running:
            process.kill()


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
