"""A benchmark: networks of several seeds, every OoD set, every method; started again, it goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain, product
from typing import NamedTuple, Self

from normscale._lock import locked
from normscale._progress import bar
from normscale._validate import at_least
from normscale.bench.experiments.cells import NetworkOutputs, compute_cells
from normscale.bench.experiments.methods import find_method
from normscale.bench.experiments.network_outputs import Job, require_layers
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.stress import StressPreset, steps, stress_preset
from normscale.bench.experiments.worker_processes import prepare_all
from normscale.bench.network_folder import TEST, TRAIN
from normscale.errors import InvalidInput


class Bench(NamedTuple):
    """What a benchmark came to."""

    run: RunFolder
    n_new: int
    """Cells that were computed now."""
    n_kept: int
    """Cells that were there."""
    missing: dict[str, str]
    """OoD sets that could not be had, and why."""


def bench(
    folder: str | os.PathLike[str],
    plan: Plan,
    *,
    root: str | os.PathLike[str] | None = None,
    workers: int = 1,
    threads: int = 1,
    stress: StressPreset | None = None,
    command: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> Bench:
    """Run a benchmark, or go on with it.

    Networks that are missing are trained, outputs that are missing are read out, cells that are missing are
    computed; nothing that is there is done again. ``results.jsonl`` is written after every network.

    Parameters
    ----------
    folder : path
        Where the run lives; see :mod:`normscale.bench.experiments.run_folder`.
    plan : Plan
        A preset, or one of your own.
    root : path, optional
        Where data sets are kept.
    workers : int
        Networks prepared at once, each in a process of its own.
    threads : int
        Threads of torch in each of them.
    stress : StressPreset, optional
        Also run this stress grid on the first network's outputs.
    command : str
        The command that asked for it, for the record.
    say : callable
        Told in a sentence what is worth knowing.
    """
    workers, threads = at_least(workers, "workers", 1), at_least(threads, "threads", 1)
    if not plan.seeds or not plan.ood or not plan.methods:
        raise InvalidInput("a benchmark needs at least one seed, one OoD set and one method.")
    methods = [find_method(name) for name in plan.measured]  # an unknown name is said at once, not after the training
    require_layers(plan)
    with locked(folder, wait=False):
        run = RunFolder.create(folder, plan, command)
        place = None if root is None else os.fspath(root)
        jobs = [Job(os.fspath(folder), plan, seed, place, threads) for seed in plan.seeds]
        ready = [job for job in jobs if job.is_done]
        begun = [job for job in jobs if job not in ready]
        n_new = 0
        with _Overall(begun) as overall:
            try:
                for job in chain(ready, prepare_all(begun, workers, overall.tick)):
                    overall.finish(job)
                    n_new += compute_cells(run, job.seed, methods, list(plan.ood), say)
                    run.write_results()
            finally:
                run.write_results()
        if stress is not None:
            _stress_first_network(run, plan, stress, workers)
        n_all = len(jobs) * len(plan.ood) * len(methods)
        return Bench(run, n_new, n_all - n_new - len(_absent(run, plan)), run.missing())


def _stress_first_network(run: RunFolder, plan: Plan, preset: StressPreset, threads: int) -> None:
    """Run the stress grid on the outputs of the first network, unless it is there."""
    seed = plan.seeds[0]
    source = NetworkOutputs(run, seed)
    sets = {name: source.require(name) for name in plan.ood if run.has_outputs(seed, name)}
    if run.stress.exists() or not sets:
        return
    with bar("stress grid", steps(preset.grid, len(sets))) as line:
        result = stress_preset(
            preset,
            source.require(TRAIN),
            source.require(TEST),
            sets,
            seed=seed,
            threads=threads,
            tick=lambda what: line.advance(doing=f"stress grid, {what}"),
        )
    result.save(run.stress)


class _Overall:
    """One bar for all networks, in epochs of training."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._cost = {job.seed: job.cost for job in jobs}
        self._done = dict.fromkeys(self._cost, 0.0)
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._bar = self._stack.enter_context(bar(self._doing(), sum(self._cost.values()) or 1.0, unit="share"))
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    def tick(self, job: Job, amount: float) -> None:
        """Move on by some work of a job."""
        with self._lock:
            self._done[job.seed] = min(self._done[job.seed] + amount, self._cost[job.seed])
            self._bar.at(sum(self._done.values()), self._doing())

    def finish(self, job: Job) -> None:
        """Count a job as done, whatever it had to do."""
        if job.seed in self._cost:
            self.tick(job, self._cost[job.seed])

    def _doing(self) -> str:
        n_done = sum(done >= cost for done, cost in zip(self._done.values(), self._cost.values(), strict=True))
        return f"network {min(n_done + 1, len(self._cost))} of {len(self._cost)}" if self._cost else "comparing"


def _absent(run: RunFolder, plan: Plan) -> list[tuple[int, str, str]]:
    """Cells of a plan that are not there."""
    everything = product(plan.seeds, plan.ood, plan.measured)
    return [(seed, ood, method) for seed, ood, method in everything if not run.has_cell(seed, ood, method)]
