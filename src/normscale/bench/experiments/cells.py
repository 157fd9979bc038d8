"""The cells of one network: every method on every OoD set, from outputs that are there; what is finished stays."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from normscale._lock import locked
from normscale._progress import bar
from normscale.bench.experiments.measuring import Measured, measure
from normscale.bench.experiments.methods import Method, find_method
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.network_folder import TEST, TRAIN, VALIDATION
from normscale.errors import InvalidInput, NormscaleError
from normscale.outputs import PERTURBED_LOGITS, ModelOutputs
from normscale.rows import write_table


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

    Parameters
    ----------
    run : RunFolder
    seed : int
        Of the network.
    methods : sequence of Method
        Not fitted.
    ood_sets : names of OoD sets
        One without outputs is passed over.
    say : callable
        Told in a sentence which method cannot take part.
    """
    source = NetworkOutputs(run, seed)
    there = [ood for ood in ood_sets if run.has_outputs(seed, ood)]
    wanted = {method.name: [ood for ood in there if not run.has_cell(seed, ood, method.name)] for method in methods}
    failed = {name: why for name, why in run.failures(seed).items() if name not in wanted}
    n_new = 0
    with bar(f"seed {seed}", sum(map(len, wanted.values())), quiet_seconds=1.0) as line:
        for method in methods:
            found, why = _measured(source, method, wanted[method.name])
            for cell, scores in found:
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


def _measured(source: NetworkOutputs, method: Method, names: Sequence[str]) -> tuple[list[Measured], str]:
    """A method on the OoD sets that have what it reads, and why it is missing on one."""
    reads, run, seed = method.detector.reads, source.run, source.seed
    known = [name for name in names if run.has_outputs(seed, name, reads)]
    lacking = [name for name in names if name not in known]
    why = _what_is_lacking(source, reads, lacking) if lacking else ""
    if not known:
        return [], why
    train, validation = source.get(TRAIN), source.get(VALIDATION)
    test, sets = source.require(TEST), source.all_of(known)
    extra = run.perturbation(seed) if PERTURBED_LOGITS in reads else {}
    chosen = {"epsilon": extra["epsilon"]} if extra else {}
    try:
        fitted = method.fitted_on(train, validation)
        found = list(measure([fitted], test, sets, in_set=run.plan.in_set, seed=seed, quiet=True))
    except NormscaleError as error:
        return [], str(error)
    except Exception as error:  # whatever a detector does must not take the others with it
        return [], f"{type(error).__name__}: {error}"
    return [
        one._replace(record=one.record._replace(parameters={**one.record.parameters, **chosen})) for one in found
    ], why


def _what_is_lacking(source: NetworkOutputs, reads: Sequence[str], names: Sequence[str]) -> str:
    absent = [array for array in reads if not all(source.run.has_outputs(source.seed, one, [array]) for one in names)]
    return f"it reads {', '.join(absent)}, which the outputs on {', '.join(names)} lack."


class NetworkOutputs:
    """A network's outputs, each read once."""

    def __init__(self, run: RunFolder, seed: int) -> None:
        self.run, self.seed = run, seed
        self._read: dict[str, ModelOutputs] = {}

    def get(self, name: str) -> ModelOutputs | None:
        """The outputs on a set; None if there are none."""
        return self.require(name) if name in self._read or self.run.has_outputs(self.seed, name) else None

    def require(self, name: str) -> ModelOutputs:
        """The outputs on a set, which must be there."""
        if name not in self._read:
            self._read[name] = self.run.outputs(self.seed, name)
        return self._read[name]

    def all_of(self, names: Sequence[str]) -> Mapping[str, ModelOutputs]:
        """The outputs on several sets, by name."""
        return {name: self.require(name) for name in names}


def measure_outputs(
    folder: str | os.PathLike[str],
    plan: Plan,
    outputs: Mapping[str, Callable[[], ModelOutputs]],
    *,
    command: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> RunFolder:
    """Measure a plan's methods on outputs of one network, or go on with it.

    Parameters
    ----------
    folder : path
        Where the run lives. Outputs are copied into it; those that are there are not read again.
    plan : Plan
        Its first seed names the network; its OoD sets are those of ``outputs``.
    outputs : mapping of name to function that reads
        ``train``, ``validation``, ``test`` and OoD sets; what is fitted on one that is missing cannot take part.
    command : str
        The command that asked for it, for the record.
    say : callable
        Told in a sentence which method cannot take part.
    """
    own = (TRAIN, VALIDATION, TEST)
    plan = plan._replace(ood={name: plan.ood.get(name, name) for name in outputs if name not in own})
    if TEST not in outputs or not plan.ood or not plan.measured:
        raise InvalidInput("outputs of a test set, of at least one OoD set, and a method are needed.")
    methods = [find_method(name) for name in plan.measured]
    with locked(folder, wait=False):
        run = RunFolder.create(folder, plan, command)
        seed = plan.seeds[0]
        run.network(seed).make()
        for name, read in outputs.items():
            if not run.has_outputs(seed, name):
                write_table(run.network(seed).outputs(name), read())
        compute_cells(run, seed, methods, list(plan.ood), say)
        run.write_results()
    return run
