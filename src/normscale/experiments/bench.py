"""The paper's comparison: networks of several seeds, every OoD set, every method; started again, it goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain, product
from typing import NamedTuple, Self

from normscale._lock import locked
from normscale._progress import bar
from normscale._provenance import commit
from normscale._validate import FloatArray, at_least
from normscale._version import __version__
from normscale.detectors.base import Detector
from normscale.encoding.json_text import read_json
from normscale.errors import InvalidInput, NormscaleError
from normscale.experiments.comparison import METRICS, fit_on
from normscale.experiments.methods import Method, find_method
from normscale.experiments.network_outputs import Job
from normscale.experiments.presets import Plan
from normscale.experiments.protocol import FROZEN, ScoredPair, score_pair
from normscale.experiments.run_folder import Cell, RunFolder
from normscale.experiments.side_by_side import prepare_all
from normscale.experiments.stress import PRESETS as GRIDS
from normscale.experiments.stress import steps, stress, stress_methods
from normscale.outputs import ModelOutputs


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
    with_stress: bool = True,
    command: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> Bench:
    """Run a benchmark, or go on with it.

    Networks that are missing are trained, outputs that are missing are read out, cells that are missing are
    computed; nothing that is there is done again. ``results.jsonl`` is written after every network.

    Parameters
    ----------
    folder : path
        Where the run lives; see :mod:`normscale.experiments.run_folder`.
    plan : Plan
        A preset, or one of your own.
    root : path, optional
        Where data sets are kept.
    workers : int
        Networks prepared at once, each in a process of its own.
    threads : int
        Threads of torch in each of them.
    with_stress : bool
        Also run the stress grid on the first network's outputs.
    command : str
        The command that asked for it, for the record.
    say : callable
        Told in a sentence what is worth knowing.
    """
    workers, threads = at_least(workers, "workers", 1), at_least(threads, "threads", 1)
    if not plan.seeds or not plan.ood or not plan.methods:
        raise InvalidInput("a benchmark needs at least one seed, one OoD set and one method.")
    methods = [find_method(name) for name in plan.methods]  # an unknown name is said at once, not after the training
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
                    n_new += _compute_cells(run, job, methods, say)
                    run.write_results()
            finally:
                run.write_results()
        if with_stress:
            _stress_first_network(run, plan, workers)
        n_all = len(jobs) * len(plan.ood) * len(methods)
        return Bench(run, n_new, n_all - n_new - len(_absent(run, plan)), run.missing())


def _stress_first_network(run: RunFolder, plan: Plan, threads: int) -> None:
    """Write ``stress.json``: the stress grid on the outputs of the first network, unless it is there."""
    path, seed = run.path / "stress.json", plan.seeds[0]
    if path.exists():
        return
    source = _Outputs(run, seed)
    sets = {name: source.get(name) for name in plan.ood if source.has(name, perturbed=False)}
    if not sets:
        return
    methods = stress_methods(source.get("train"))
    with bar("stress grid", steps(GRIDS["paper"], len(sets))) as line:
        result = stress(
            source.get("test"),
            sets,
            methods,
            seed=seed,
            threads=threads,
            tick=lambda what: line.advance(doing=f"stress grid, {what}"),
        )
    result.save(path)


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
    everything = product(plan.seeds, plan.ood, plan.methods)
    return [(seed, ood, method) for seed, ood, method in everything if not run.has_cell(seed, ood, method)]


def _compute_cells(run: RunFolder, job: Job, methods: Sequence[Method], say: Callable[[str], None]) -> int:
    """Compute the cells of a network that are not there yet; returns how many."""
    source = _Outputs(run, job.seed)
    wanted = {
        method: [
            ood
            for ood in job.plan.ood
            if not run.has_cell(job.seed, ood, method.name) and source.has(ood, perturbed=method.perturbed)
        ]
        for method in methods
    }
    n_new = 0
    with bar(f"seed {job.seed}", sum(map(len, wanted.values())), quiet_seconds=1.0) as line:
        for method, sets in wanted.items():
            if not sets:
                continue
            try:
                detector = fit_on(method.make(), source.get("train"), source.get("validation"))
            except NormscaleError as error:
                say(f"{method.name} cannot take part with seed {job.seed}: {error}")
                continue
            id_test = source.get("test", perturbed=method.perturbed)
            id_scores: FloatArray | None = None
            for ood in sets:
                line.advance(doing=f"seed {job.seed}: {method.title} on {ood}")
                cell, pair = _compute(job, method, detector, id_test, source, ood, id_scores)
                if method.setting == FROZEN:
                    id_scores = pair.id_scores
                run.save_cell(cell, pair)
                n_new += 1
    return n_new


def _compute(
    job: Job,
    method: Method,
    detector: Detector,
    id_test: ModelOutputs,
    source: _Outputs,
    ood_set: str,
    id_scores: FloatArray | None,
) -> tuple[Cell, ScoredPair]:
    """One cell; frozen scores of the test set, once known, serve every OoD set."""
    ood = source.get(ood_set, perturbed=method.perturbed)
    started = time.perf_counter()
    if id_scores is not None:
        pair = ScoredPair(id_scores, detector.score(ood))
    else:
        pair = score_pair(detector, method.setting, id_test, ood, seed=job.seed)
    result = pair.evaluate()
    seconds = time.perf_counter() - started
    parameters = {**detector.get_params(), **(source.choice() if method.perturbed else {})}
    metrics = {metric: float(getattr(result, metric)) for metric in METRICS}
    cell = Cell(
        job.seed, job.plan.in_set, ood_set, method.name, method.setting, parameters, metrics,
        len(id_test), len(ood), seconds, __version__, commit(),
    )  # fmt: skip
    return cell, pair


class _Outputs:
    """A network's outputs, each read once."""

    def __init__(self, run: RunFolder, seed: int) -> None:
        self._run, self._seed = run, seed
        self._read: dict[tuple[str, bool], ModelOutputs] = {}

    def has(self, name: str, *, perturbed: bool) -> bool:
        return self._run.outputs_path(self._seed, name, perturbed=perturbed).exists()

    def get(self, name: str, *, perturbed: bool = False) -> ModelOutputs:
        if (name, perturbed) not in self._read:
            self._read[name, perturbed] = self._run.outputs(self._seed, name, perturbed=perturbed)
        return self._read[name, perturbed]

    def choice(self) -> dict[str, float]:
        """The step of the perturbation, chosen on validation images."""
        document = read_json((self._run.network(self._seed) / "odin" / "choice.json").read_text())
        return {"epsilon": document["epsilon"]}
