"""A Ray cluster: plain tasks over pieces, so that order, names and retries are ours."""

from __future__ import annotations

import itertools
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from normscale._version import __version__
from normscale.detectors.registry import plugin_modules
from normscale.errors import needs
from normscale.jobs.local_engine import RETRIES, run_task
from normscale.jobs.running import Engine, EngineFailed, Work

_LAST_PIECES_SECONDS = 60.0
_ANSWER_SECONDS = 10.0


class RayEngine(Engine):
    """Tasks on a Ray cluster: one that this process is connected to already, one at an address, or one started here.

    Parameters
    ----------
    address : str, optional
        Of a cluster, such as ``auto`` or ``ray://head:10001``.
    workers : int, optional
        How many tasks at the same time; by default the cluster's cores.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        with needs("--engine ray needs Ray", "ray"):
            import ray
        self._ray = ray
        self._started_here = not ray.is_initialized()
        if self._started_here:
            options: dict[str, Any] = {"address": address} if address else {"num_cpus": workers, "address": "local"}
            if not address:
                options["include_dashboard"] = False
            if address:
                _require_answer(address)
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a busy machine takes its time
            try:
                ray.init(log_to_driver=False, logging_level=logging.WARNING, **options)
            except Exception as error:  # Ray raises plain ones, too
                raise EngineFailed(f"no Ray cluster answers at {address or 'this machine'}: {error}") from error
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self.workers = workers or max(1, int(resources.get("CPU", 1)))
        for module in plugin_modules():  # workers on other machines do not have the file
            ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]

    def map(self, work: Work, shared: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        ray = self._ray
        remote = ray.remote(num_cpus=1, max_retries=RETRIES)(run_task)
        common = ray.put(shared)
        coming = enumerate(tasks)
        waiting: dict[Any, int] = {}
        try:
            while True:
                for place, task in itertools.islice(coming, max(0, 2 * self.workers - len(waiting))):
                    waiting[remote.remote(__version__, work, common, task)] = place
                if not waiting:
                    return
                for ref in ray.wait(list(waiting), num_returns=1)[0]:
                    result = self._result(ref)
                    yield waiting.pop(ref), result
        finally:
            self._await_last(list(waiting))

    def _result(self, ref: Any) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except exceptions.RayTaskError as error:
            raise error.cause from None
        except exceptions.RayError as error:
            raise EngineFailed(
                f"Ray gave a task up after {RETRIES} new beginnings: {str(error).splitlines()[0]} Is memory short?"
            ) from error

    def _await_last(self, refs: list[Any]) -> None:
        """After an error, let the pieces under way end, so that nothing is written behind it.

        They are not cancelled: a task that ends while ``ray.cancel`` looks for it aborts this process (a failed check
        in task_manager.cc of Ray 2.60). At most two pieces a worker are under way.
        """
        if not refs or not self._ray.is_initialized():
            return
        ended, _ = self._ray.wait(refs, num_returns=len(refs), timeout=_LAST_PIECES_SECONDS)
        for ref in ended:
            with suppress(Exception):  # Ray prints an error that nobody asked for
                self._ray.get(ref)

    def close(self) -> None:
        if self._started_here:
            self._ray.shutdown()


def _require_answer(address: str) -> None:
    """Raise where nothing listens at an address: Ray itself tries for many minutes, and fills the screen meanwhile."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdigit():
        return  # auto, local, or a name that Ray looks up
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise EngineFailed(
            f"no Ray cluster answers at {address} ({error}). `ray status` on its head node tells whether it runs; a "
            "cluster on this machine is found by --address auto."
        ) from error
