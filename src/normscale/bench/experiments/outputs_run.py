"""A run folder out of outputs that are there already: no data, no training, the same cells."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from normscale._lock import locked
from normscale.bench.experiments.cells import compute_cells
from normscale.bench.experiments.methods import find_method
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.network_folder import TEST, TRAIN, VALIDATION
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs
from normscale.rows import write_table


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
