"""A benchmark: networks of several seeds, every OoD set, every method; started again, it goes on.

Networks are prepared side by side, one process each: on a CPU two processes of one thread beat one of two.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import cache
from itertools import chain, product
from typing import NamedTuple

from normscale._lock import locked
from normscale._processes import end_with_parent
from normscale._progress import bar, silence
from normscale._validate import at_least
from normscale.bench.experiments.alarms import changed_pictures
from normscale.bench.experiments.measuring import Measured, measure
from normscale.bench.experiments.methods import Method, find_method, fit_on, why_failed
from normscale.bench.experiments.network_outputs import Job, prepare, require_layers
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.stress import stress as run_stress
from normscale.bench.network_folder import TEST, TRAIN, VALIDATION, read_document
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput
from normscale.outputs import PERTURBED_LOGITS, ModelOutputs

LOOK_SECONDS = 0.5
"""How often the progress of other processes is read from their files."""


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
    stress: Callable[[ModelOutputs], dict[str, Detector]] | None = None,
    command: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> Bench:
    """Run a benchmark, or go on with it.

    Networks that are missing are trained, outputs that are missing are read out, cells that are missing are
    computed; nothing that is there is done again. ``results.jsonl`` is written after every network.

    ``workers`` networks are prepared at once, each in a process of its own with so many ``threads`` of torch.
    ``stress`` makes fitted detectors of training outputs; they go through the stress grid on the first network's
    outputs. ``command`` is kept for the record.
    """
    workers, threads = at_least(workers, "workers", 1), at_least(threads, "threads", 1)
    if not plan.seeds or not plan.ood or not plan.methods:
        raise InvalidInput("a benchmark needs at least one seed, one OoD set and one method.")
    methods = [find_method(name) for name in plan.methods]  # an unknown name is said at once, not after the training
    require_layers(plan)
    with locked(folder, wait=False):
        run = RunFolder.create(folder, plan, command)
        place = None if root is None else os.fspath(root)
        jobs = [Job(os.fspath(folder), plan, seed, place, threads) for seed in plan.seeds]
        begun = [job for job in jobs if not job.is_done]
        ready = [job for job in jobs if job not in begun]
        n_new = 0
        try:
            for job in chain(ready, prepare_all(begun, workers)):
                n_new += compute_cells(run, job.seed, methods, list(plan.ood), say)
                run.write_results()
        finally:
            run.write_results()
        if stress is not None:
            _stress_first_network(run, plan, stress, workers, place)
        n_there = sum(run.has_cell(*cell) for cell in product(plan.seeds, plan.ood, plan.methods))
        return Bench(run, n_new, n_there - n_new, run.missing())


def _stress_first_network(
    run: RunFolder, plan: Plan, fit: Callable[[ModelOutputs], dict[str, Detector]], threads: int, root: str | None
) -> None:
    seed = plan.seeds[0]
    sets = {name: run.outputs(seed, name) for name in plan.ood if run.has_outputs(seed, name)}
    if run.stress.exists() or not sets:
        return
    train, test = (run.outputs(seed, name) for name in (TRAIN, TEST))
    files = run.network(seed)
    changed = dict(changed_pictures(files.path, plan.data, root)) if files.network.exists() else {}
    run_stress(test, sets, fit(train), changed=changed, seed=seed, threads=threads).save(run.stress)


def prepare_all(jobs: Sequence[Job], workers: int) -> Iterator[Job]:
    """Prepare networks and yield each as it is done; with one worker, the work is done in this process.

    The first error of a job is raised after all the others have been yielded: the other networks are worth having.
    """
    error: BaseException | None = None
    if workers == 1 or len(jobs) < 2:
        for job in jobs:
            try:
                prepare(job)
            except Exception as problem:
                error = error or problem
            else:
                yield job
    else:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(workers, len(jobs)), context, _start_worker)
        try:
            with bar("preparing networks", sum(job.n_steps for job in jobs), unit="share") as line:
                waiting: dict[Future[None], Job] = {pool.submit(prepare, job): job for job in jobs}
                while waiting:
                    finished = wait(waiting, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED).done
                    n_done = len(jobs) - len(waiting)
                    line.at(sum(job.n_done for job in jobs), f"network {n_done + 1} of {len(jobs)}")
                    for future in finished:
                        job = waiting.pop(future)
                        if future.exception() is None:
                            yield job
                        else:
                            error = error or future.exception()
        finally:
            pool.shutdown(cancel_futures=True)
    if error is not None:
        raise error


def _start_worker() -> None:
    """Set a worker up; it ends with its parent, also when that is killed."""
    silence()
    end_with_parent()


def compute_cells(
    run: RunFolder,
    seed: int,
    methods: Sequence[Method],
    ood_sets: Sequence[str],
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Compute the cells of a network that are not there yet; returns how many.

    A method that fails, whatever the reason, is said, kept in ``failures.json``, and tried again the next time; the
    others go on. The outputs of a set are read once for all methods.
    An OoD set without outputs is passed over. ``say`` is called with a sentence on a method that cannot take part.
    """

    @cache
    def read(name: str) -> ModelOutputs | None:
        return run.outputs(seed, name) if run.has_outputs(seed, name) else None

    there = [ood for ood in ood_sets if run.has_outputs(seed, ood)]
    missing = {method.name: [ood for ood in there if not run.has_cell(seed, ood, method.name)] for method in methods}
    failed = {name: why for name, why in run.failures(seed).items() if name not in missing}
    n_new = 0
    with bar(f"seed {seed}", sum(map(len, missing.values())), quiet_seconds=1.0) as line:
        for method in methods:
            measured, why = _measured(run, seed, read, method, missing[method.name])
            for cell, scores in measured:
                line.advance(doing=f"seed {seed}: {method.title} on {cell.ood_set}")
                if cell.skipped or scores is None:
                    why = f"it has no numbers on {cell.ood_set}: {cell.skipped}"
                    continue
                run.save_cell(cell, scores)
                n_new += 1
            if why:
                failed[method.name] = why
                say(f"{method.name} cannot take part with seed {seed}: {why}")
    run.save_failures(seed, failed)
    return n_new


def _measured(
    run: RunFolder, seed: int, read: Callable[[str], ModelOutputs | None], method: Method, names: Sequence[str]
) -> tuple[list[Measured], str]:
    """A method on the OoD sets that have what it reads, and why it is missing on one."""
    reads = method.detector.reads
    known = [name for name in names if run.has_outputs(seed, name, reads)]
    lacking, why = [name for name in names if name not in known], ""
    if lacking:
        absent = [array for array in reads if not all(run.has_outputs(seed, one, [array]) for one in lacking)]
        why = f"it reads {', '.join(absent)}, which the outputs on {', '.join(lacking)} lack."
    test, sets = read(TEST), {name: outputs for name in known if (outputs := read(name)) is not None}
    if test is None or not sets:
        return [], why
    perturbed = PERTURBED_LOGITS in reads and "epsilon" in (extra := read_document(run.network(seed).perturbation))
    chosen = {"epsilon": extra["epsilon"]} if perturbed else {}
    try:
        fitted = method._replace(detector=fit_on(method.detector, read(TRAIN), read(VALIDATION)))
        measured = list(measure([fitted], test, sets, in_set=run.plan.in_set, seed=seed, quiet=True))
    except Exception as error:  # whatever a detector does must not take the others with it
        return [], why_failed(error)
    return [
        one._replace(record=one.record._replace(parameters={**one.record.parameters, **chosen})) for one in measured
    ], why
