"""Networks prepared side by side, one process each: on a CPU two processes of one thread beat one of two."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from normscale._processes import end_with_parent
from normscale._progress import silence
from normscale.bench.experiments.network_outputs import Job, prepare

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

_reports: Any = None  # in a worker: where it says how far it is


def prepare_all(jobs: Sequence[Job], workers: int, tick: Callable[[Job, float], None]) -> Iterator[Job]:
    """Prepare networks and yield each as it is done.

    Parameters
    ----------
    jobs : sequence of Job
    workers : int
        How many at once; with one, the work is done in this process.
    tick : callable
        Told, for a job, how much more of it has been done.

    Raises
    ------
    The first error of a job, after all the others have been yielded.
    """
    if workers == 1 or len(jobs) < 2:
        yield from _one_by_one(jobs, tick)
        return
    context = multiprocessing.get_context("spawn")
    reports: SimpleQueue[tuple[int, float] | None] = context.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(reports, jobs, tick), daemon=True)
    listener.start()
    error: BaseException | None = None
    pool = ProcessPoolExecutor(min(workers, len(jobs)), context, _start_worker, (reports,))
    try:
        waiting: dict[Future[None], Job] = {pool.submit(_work, i, job): job for i, job in enumerate(jobs)}
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                job = waiting.pop(future)
                if future.exception() is None:
                    yield job
                else:
                    error = error or future.exception()
    finally:
        pool.shutdown(cancel_futures=True)
        reports.put(None)
        listener.join()
    if error is not None:
        raise error


def _one_by_one(jobs: Sequence[Job], tick: Callable[[Job, float], None]) -> Iterator[Job]:
    error: Exception | None = None
    for job in jobs:
        try:
            prepare(job, lambda done, job=job: tick(job, done))  # type: ignore[misc]
        except Exception as problem:  # the other networks are worth having
            error = error or problem
        else:
            yield job
    if error is not None:
        raise error


def _listen(reports: Any, jobs: Sequence[Job], tick: Callable[[Job, float], None]) -> None:
    while (report := reports.get()) is not None:
        index, done = report
        tick(jobs[index], done)


def _start_worker(reports: Any) -> None:
    """Set a worker up; it ends with its parent, also when that is killed."""
    global _reports
    _reports = reports
    silence()
    end_with_parent()


def _work(index: int, job: Job) -> None:
    prepare(job, lambda done: _reports.put((index, done)))
