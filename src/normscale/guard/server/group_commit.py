"""Many requests, one flush to disk: a thread answers whatever has come in while the last group was written.

The event loop never waits for the disk, and the guard is used by one thread only. A lone request is answered at once;
under load the groups grow by themselves.
"""

from __future__ import annotations

import asyncio
import copy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from normscale.errors import FileFormatError, NormscaleError, StoreHeld, StoreUnavailable
from normscale.guard import Guard, Request

GROUP_NUMBERS = 1 << 22  # numbers in one group, which bounds its memory; a request is never divided

_TURN, _SHORT_TURN = 0.0005, 0.00002
"""Seconds that who comes back from the disk, or from compiled code, waits for its turn beside a busy event loop: not
Python's five milliseconds, and hardly at all within a group of many rows, which goes back and forth a lot."""
_MANY_ROWS = 4096

Job: TypeAlias = Callable[[Guard], Any]
Work: TypeAlias = tuple[Request | Job, asyncio.Future[Any]]


class GroupCommit:
    """The way from the event loop to the guard, which nobody else may use from now on, and back."""

    def __init__(self, guard: Guard) -> None:
        """Start the thread; call it inside the event loop."""
        self._guard = guard
        self.is_failing = False
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Work] = []
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="guard", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are being answered."""
        return self._thread.is_alive() and not self._stopping

    def run(self, work: Request | Job) -> asyncio.Future[Any]:
        """Answer a request, whose rows are then on disk, or do something with the guard between two groups."""
        future: asyncio.Future[Any] = self._loop.create_future()
        with self._changed:
            if self._stopping:
                raise StoreUnavailable("the guard is shutting down; nothing was taken in. Send the rows again.")
            self._waiting.append((work, future))
            self._changed.notify()
        return future

    def stop(self, seconds: float | None = None) -> bool:
        """Answer what waits, then end the thread; False when the store keeps it for longer."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                work = self._take()
            if not work:
                return
            groups = _groups(work)
            for group in groups:  # of a client that is gone, nothing is taken in
                if wanted := [(item, future) for item, future in group if not future.cancelled()]:
                    results = self._do(wanted)
                    if isinstance(results[0], StoreHeld):  # whoever else waits need not wait as long again
                        with self._changed:
                            wanted += [one for rest in groups for one in rest] + self._take()
                        results = results[:1] * len(wanted)
                    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                        self._loop.call_soon_threadsafe(_resolve, [future for _, future in wanted], results)

    def _take(self) -> list[Work]:
        work, self._waiting = self._waiting, []
        return work

    def _do(self, group: Sequence[Work]) -> list[Any]:
        requests = [item for item, _ in group if isinstance(item, Request)]
        try:
            if requests:
                many = sum(len(request.outputs) for request in requests) >= _MANY_ROWS
                sys.setswitchinterval(_SHORT_TURN if many else _TURN)
                results: list[Any] = self._guard.process(requests)
            else:
                results = [job(self._guard) for job, _ in group if not isinstance(job, Request)]
            self.is_failing = False
        except Exception as error:  # every request of a group must hear of it
            results = [error] * len(group)
            self.is_failing = isinstance(error, (StoreUnavailable, FileFormatError))
        return results


def _groups(work: Iterable[Work]) -> Iterator[list[Work]]:
    group: list[Work] = []
    numbers = 0
    for item, future in work:
        size = GROUP_NUMBERS
        if isinstance(item, Request):
            size = sum(item.outputs.array(name).size for name in item.outputs.names)
        if group and numbers + size > GROUP_NUMBERS:
            yield group
            group, numbers = [], 0
        group.append((item, future))
        numbers += size
    yield group


def _resolve(futures: list[asyncio.Future[Any]], results: list[Any]) -> None:
    for future, result in zip(futures, results, strict=True):
        if future.done():  # cancelled meanwhile
            continue
        if isinstance(result, BaseException):
            # One error object may answer many requests: each gets its own, or their tracebacks would grow together.
            future.set_exception(copy.copy(result) if isinstance(result, NormscaleError) else result)
        else:
            future.set_result(result)
