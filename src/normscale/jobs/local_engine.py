"""Jobs on processes of this machine, one thread each.

Every process has a pipe of its own. (A ``ProcessPoolExecutor`` shares one pipe for all results: a process that is
killed while it writes leaves half a result there, and whoever reads it waits for ever.)
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

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
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


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


class _Worker(NamedTuple):
    """A process, and this end of its pipe."""

    process: Any
    pipe: Connection

    @classmethod
    def started(cls) -> _Worker:
        """A new process, which waits for tasks."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there,), name="normscale worker", daemon=True)
        process.start()
        there.close()  # the process alone holds it now, so its end is seen here
        return cls(process, here)

    def answer(self) -> tuple[Any, Exception | None]:
        """The result of the task, or its error; raises EOFError or OSError where the process has died."""
        answer = self.pipe.recv_bytes()
        try:
            result, error = ForkingPickler.loads(answer)
        except Exception as problem:
            return None, problem
        return result, error


class LocalEngine(Engine):
    """Processes with one thread each.

    A single worker is a process of its own as well: libraries sum in another order with several threads, and the
    same pieces must give the same bits.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, int] = {}

    @property
    def process_ids(self) -> list[int]:
        """Those of all workers, busy ones first."""
        return [worker.process.pid for worker in (*self._busy, *self._idle)]

    def map(self, work: Work, shared: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        left = deque(range(len(tasks)))
        deaths = 0
        self._start()
        try:
            while left or self._busy:
                while left and self._idle:
                    message = ForkingPickler.dumps((__version__, work, shared, tasks[left[0]]))
                    worker = self._idle.pop()
                    self._busy[worker] = left.popleft()
                    with suppress(OSError):  # it has died, as its pipe will say
                        worker.pipe.send_bytes(message)
                for worker in self._answering():
                    place = self._busy.pop(worker)
                    try:
                        result, error = worker.answer()
                    except (EOFError, OSError):
                        left.appendleft(place)
                        deaths += 1
                        self._replace(worker, deaths)
                        continue
                    self._idle.append(worker)
                    if error is not None:
                        raise error
                    deaths = 0
                    yield place, result
        finally:
            while self._busy:  # what is under way ends
                for worker in self._answering():
                    del self._busy[worker]
                    try:
                        worker.answer()
                    except (EOFError, OSError):
                        worker.pipe.close()
                    else:
                        self._idle.append(worker)

    def _answering(self) -> list[_Worker]:
        """Busy workers that have an answer, or have died; at least one."""
        ready = wait([worker.pipe for worker in self._busy])
        return [worker for worker in self._busy if worker.pipe in ready]

    def _start(self) -> None:
        """Have all workers."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            os._exit(_RUNS_THE_SCRIPT_AGAIN)  # a worker that imports the script has come to this line
        before = os.environ.copy()
        os.environ.update(_ONE_THREAD)
        try:
            while len(self._idle) + len(self._busy) < self.workers:
                self._idle.append(_Worker.started())
        finally:
            for name in _ONE_THREAD:
                del os.environ[name]
            os.environ.update({name: before[name] for name in _ONE_THREAD if name in before})

    def _replace(self, worker: _Worker, deaths: int) -> None:
        """Start a worker in the place of one that has died, unless that happens again and again."""
        worker.pipe.close()
        worker.process.join()
        if worker.process.exitcode == _RUNS_THE_SCRIPT_AGAIN:
            raise EngineFailed(
                "worker processes import the script that started them, and this one begins its job again when "
                'it is imported. Put what it does under `if __name__ == "__main__":`, or pass engine="here".'
            )
        if deaths > RETRIES:
            raise EngineFailed(f"worker processes died {deaths} times in a row. Is memory short? Try fewer --workers.")
        self._start()

    def close(self) -> None:
        """End the processes; those that do not end by themselves are killed, so that nobody waits for them for ever."""
        deadline = time.monotonic() + _END_SECONDS
        for worker in self._idle:
            worker.pipe.close()
        for worker in self._idle:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
        self._idle.clear()


def _work(pipe: Connection) -> None:
    """Do tasks until the pipe is closed; end with the process that started this one."""
    end_with_parent()
    load_plugins()
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            pipe.send_bytes(_answer(pipe.recv_bytes()))


def _answer(message: bytes) -> memoryview:
    """The result of a task and None, or None and its error, which says where it was raised; pickled."""
    try:
        return ForkingPickler.dumps((run_task(*ForkingPickler.loads(message)), None))
    except Exception as error:
        where = traceback.format_exc()
        error.add_note(where)
        try:
            return ForkingPickler.dumps((None, error))
        except Exception:
            return ForkingPickler.dumps((None, EngineFailed(where)))
