"""One network of a benchmark: train it, and read out of it, on every set, the arrays that the plan's methods read.

Everything that needs torch happens here, so that networks can be prepared in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from normscale._lock import locked
from normscale.bench.experiments.methods import find_method
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.network_folder import OWN_SETS, TRAIN, VALIDATION, read_document, write_document
from normscale.detectors.base import Detector
from normscale.outputs import ATTACKED, FEATURES, LOGITS, PERTURBED_FEATURES, PERTURBED_LOGITS
from normscale.rows import write_table
from normscale.rows.arrays import HEAD_WEIGHT

if TYPE_CHECKING:
    from normscale.bench.data import ImageSet
    from normscale.bench.train.run import RunResult

_NO_LAYERS = (LOGITS, FEATURES, HEAD_WEIGHT)


def arrays_read(detectors: list[Detector], name: str) -> tuple[str, ...]:
    """Arrays that detectors read of ``train``, ``validation``, ``test`` or an OoD set; logits and features always."""
    arrays = dict.fromkeys((LOGITS, FEATURES))
    for detector in detectors:
        if name not in (TRAIN, VALIDATION):
            arrays |= dict.fromkeys(detector.reads)
        elif detector._needs_fit and detector.about.fitted_on == name:
            arrays |= dict.fromkeys(detector._arrays_in_fit)
            arrays |= dict.fromkeys([HEAD_WEIGHT] * detector._needs_head)
    return tuple(arrays)


def require_layers(plan: Plan) -> None:
    """Refuse a plan whose methods read layers that its network does not have, before anything is trained."""
    from normscale.bench.train.resnet import NETWORKS
    from normscale.extraction.layers import layer_modules

    detectors = [find_method(method).detector for method in plan.methods]
    names = {name.removeprefix(ATTACKED) for one in OWN_SETS for name in arrays_read(detectors, one)}
    layer_modules(
        NETWORKS[plan.network](2, plan.width), sorted(names - {*_NO_LAYERS, PERTURBED_LOGITS, PERTURBED_FEATURES})
    )


class Job(NamedTuple):
    """A network to be prepared."""

    folder: str
    plan: Plan
    seed: int
    root: str | None = None
    threads: int = 1

    @property
    def run(self) -> RunFolder:
        """The benchmark it belongs to."""
        return RunFolder(Path(self.folder), self.plan, {})

    def arrays(self, name: str) -> tuple[str, ...]:
        """The arrays that the plan's methods read of a set."""
        return arrays_read([find_method(method).detector for method in self.plan.methods], name)

    @property
    def is_done(self) -> bool:
        """Whether every file is there, with every array; a set that could not be had is tried again."""
        sets = (*OWN_SETS, *self.plan.ood)
        there = all(self.run.has_outputs(self.seed, name, self.arrays(name)) for name in sets)
        return there and self.run.network(self.seed).result.exists()

    @property
    def n_steps(self) -> int:
        """How many steps it is from the beginning: epochs of training, then sets."""
        from normscale.bench.train.training import find_recipe

        return find_recipe(self.plan.recipe, self.plan.epochs).epochs + len((*OWN_SETS, *self.plan.ood))

    @property
    def n_done(self) -> int:
        """How many of its steps its files show."""
        files = self.run.network(self.seed)
        n_sets = sum(files.outputs(name).exists() for name in (*OWN_SETS, *self.plan.ood))
        if files.result.exists():
            return self.n_steps - len((*OWN_SETS, *self.plan.ood)) + n_sets
        return len(files.log.read_text().splitlines()) if files.log.exists() else 0


def prepare(job: Job) -> None:
    """Do what is missing of a network: training, and outputs on every set. Killed, the next call goes on."""
    import torch

    from normscale.bench.train.run import train_network, with_each_set

    torch.set_num_threads(job.threads)
    plan, files = job.plan, job.run.network(job.seed)
    with locked(files.path, wait=False):
        result = train_network(
            files.path,
            plan.data,
            network=plan.network,
            width=plan.width,
            recipe=plan.recipe,
            epochs=plan.epochs,
            seed=job.seed,
            image_size=plan.image_size,
            outputs=False,
            root=job.root,
        )
        files.make()

        def write(name: str, read: Callable[[], ImageSet]) -> None:
            _write_outputs(job, result, name, read)

        missing = with_each_set(result, plan.ood, job.root, write)
        others = {name: why for name, why in read_document(files.missing).items() if name not in plan.ood}
        write_document(files.missing, {**others, **missing})


def _write_outputs(job: Job, network: RunResult, name: str, read: Callable[[], ImageSet]) -> None:
    """Write a network's outputs on a set, or the arrays that are missing in what is there."""
    from normscale.bench.train.run import plain_batches
    from normscale.extraction import extract
    from normscale.extraction.perturbing import attacked_layers, perturbed_features, perturbed_logits

    arrays_needed = job.arrays(name)
    if job.run.has_outputs(job.seed, name, arrays_needed):
        return
    outputs = job.run.outputs(job.seed, name) if job.run.has_outputs(job.seed, name) else None
    missing = [
        one
        for one in arrays_needed
        if outputs is None or (outputs.head if one == HEAD_WEIGHT else outputs.get(one)) is None
    ]
    model, std, batches = network.network, network.info.std, plain_batches(read(), network.info)
    if outputs is None or any(not _needs_gradient(one) for one in missing):
        layers = [one for one in arrays_needed if one not in _NO_LAYERS and not _needs_gradient(one)]
        plain = extract(model, batches, layers=layers, ood=name not in OWN_SETS)
        arrays = {array: plain.array(array) for array in plain.names}
        outputs = plain if outputs is None else outputs.replace(head=plain.head, **arrays)
    if PERTURBED_LOGITS in missing:
        perturbed = perturbed_logits(model, batches, epsilon=_perturbation(job, network), std=std)
        outputs = outputs.replace(**{PERTURBED_LOGITS: perturbed})
    if PERTURBED_FEATURES in missing:
        outputs = outputs.replace(**{PERTURBED_FEATURES: perturbed_features(model, batches)})
    attacked = [one.removeprefix(ATTACKED) for one in missing if one.startswith(ATTACKED)]
    if attacked:
        from_attacks = attacked_layers(model, batches, layers=[one for one in attacked if one != FEATURES], std=std)
        outputs = outputs.replace(**{ATTACKED + one: from_attacks.array(ATTACKED + one) for one in attacked})
    write_table(job.run.network(job.seed).outputs(name), outputs)


def _perturbation(job: Job, network: RunResult) -> float:
    """The step of the perturbation; chosen once, on validation images alone."""
    from normscale.bench.train.run import plain_batches
    from normscale.extraction.perturbing import choose_epsilon

    path = job.run.network(job.seed).perturbation
    if not path.exists():
        batches = plain_batches(network.splits.validation, network.info)
        write_document(path, {"epsilon": choose_epsilon(network.network, batches, std=network.info.std)})
    return float(read_document(path)["epsilon"])


def _needs_gradient(array: str) -> bool:
    """Whether an array comes from images that were moved along a gradient."""
    return array in (PERTURBED_LOGITS, PERTURBED_FEATURES) or array.startswith(ATTACKED)
