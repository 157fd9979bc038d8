"""One network of a benchmark: train it, and read out of it, on every set, the arrays that the plan's methods read.

Everything that needs torch happens here, so that networks can be prepared side by side in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from normscale._lock import locked
from normscale.bench.experiments.methods import find_method
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder, write_document
from normscale.bench.network_folder import OWN_SETS, TEST, TRAIN, VALIDATION
from normscale.detectors.base import Detector
from normscale.errors import NormscaleError
from normscale.outputs import ATTACKED, FEATURES, LOGITS, PERTURBED_FEATURES, PERTURBED_LOGITS, ModelOutputs
from normscale.rows.arrays import HEAD_WEIGHT

if TYPE_CHECKING:
    from torch import nn

    from normscale.bench.data import ImageSet
    from normscale.bench.train.network_file import NetworkInfo

_NO_LAYERS = (LOGITS, FEATURES, HEAD_WEIGHT)

PER_SET = 0.15
"""Cost of a set's outputs in epochs of training: a forward pass over a third as many images."""
PER_PERTURBED_SET = 0.4
"""Cost of perturbing a set's images: a gradient and another forward pass."""


def arrays_read(detectors: list[Detector], name: str) -> tuple[str, ...]:
    """The arrays that detectors read of one set, logits and features always among them.

    Parameters
    ----------
    detectors : list of Detector
    name : str
        ``train``, ``validation``, ``test``, or an OoD set.

    Examples
    --------
    >>> from normscale.detectors.registry import make_detector
    >>> detectors = [make_detector("odin"), make_detector("mahalanobis", layers="stage1,features")]
    >>> arrays_read(detectors, "train"), arrays_read(detectors, "test")
    (('logits', 'features', 'stage1'), ('logits', 'features', 'perturbed_logits', 'stage1'))
    """
    wanted = dict.fromkeys((LOGITS, FEATURES))
    for detector in detectors:
        if name not in (TRAIN, VALIDATION):
            wanted |= dict.fromkeys(detector.reads)
        elif detector.needs_fit and detector.fitted_on == name:
            wanted |= dict.fromkeys((*detector.reads, *detector.reads_in_fit))
            wanted |= dict.fromkeys([HEAD_WEIGHT] * detector.needs_head)
    return tuple(wanted)


def is_extracted(plan: Plan, method: str) -> bool:
    """Whether a plan's own methods have everything extracted that another method reads; a head is always there."""
    own, detector = [find_method(name).detector for name in plan.methods], find_method(method).detector
    in_fit = (*detector.reads, *detector.reads_in_fit) if detector.needs_fit else ()
    return set(detector.reads) <= {*arrays_read(own, TEST)} and set(in_fit) <= {*arrays_read(own, detector.fitted_on)}


def require_layers(plan: Plan) -> None:
    """Refuse a plan whose methods read layers that its network does not have, before anything is trained."""
    from normscale.bench.train.resnet import NETWORKS
    from normscale.extraction.layers import layer_modules

    detectors = [find_method(method).detector for method in plan.measured]
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
        return arrays_read([find_method(method).detector for method in self.plan.measured], name)

    @property
    def is_done(self) -> bool:
        """Whether every file is there, with every array; a set that could not be had is tried again."""
        sets = (*OWN_SETS, *self.plan.ood)
        there = all(self.run.has_outputs(self.seed, name, self.arrays(name)) for name in sets)
        return there and self.run.network(self.seed).result.exists()

    @property
    def cost(self) -> float:
        """How much work it is from the beginning, in epochs of training."""
        from normscale.bench.train.recipes import find_recipe

        epochs = find_recipe(self.plan.recipe).with_epochs(self.plan.epochs).epochs
        return epochs + sum(self.cost_of(name) for name in (*OWN_SETS, *self.plan.ood))

    def cost_of(self, name: str) -> float:
        """How much work a set's outputs are, in epochs of training."""
        return PER_SET + (PER_PERTURBED_SET if any(map(_needs_gradient, self.arrays(name))) else 0.0)


def prepare(job: Job, tick: Callable[[float], None] = lambda _: None) -> None:
    """Do what is missing of a network: training, and outputs on every set. Killed, the next call goes on.

    Parameters
    ----------
    job : Job
    tick : callable
        Told how much has been done, in epochs of training.
    """
    import torch

    from normscale.bench.data import load
    from normscale.bench.train.run import split_validation, train_network

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
            tick=tick,
        )
        files.make()
        everything = load(plan.data, "train", root=job.root)
        if plan.image_size is not None:
            everything = everything.in_size(*plan.image_size)
        train, validation = split_validation(everything, job.seed)
        test = load(plan.data, "test", root=job.root, like=everything)
        reader = _Reader(job, result.network, result.info, validation)
        missing: dict[str, str] = {}
        for name, images in ((TRAIN, train), (VALIDATION, validation), (TEST, test)):
            reader.write(name, images)
            tick(job.cost_of(name))
        for name, source in plan.ood.items():
            try:
                if not job.run.has_outputs(job.seed, name, job.arrays(name)):
                    reader.write(name, load(source, "test", root=job.root, like=test, seed=job.seed), ood=True)
            except NormscaleError as error:
                missing[name] = str(error)
            tick(job.cost_of(name))
        others = {name: why for name, why in job.run.missing_of(job.seed).items() if name not in plan.ood}
        write_document(files.missing, {**others, **missing})


class _Reader:
    """Reads arrays out of a network, set by set."""

    def __init__(self, job: Job, model: nn.Module, info: NetworkInfo, validation: ImageSet) -> None:
        self._job, self._model, self._info, self._validation = job, model, info, validation

    def write(self, name: str, images: ImageSet, *, ood: bool = False) -> None:
        """Write a network's outputs on a set, or the arrays that are missing in what is there."""
        from normscale.rows import write_table

        run, seed = self._job.run, self._job.seed
        wanted = self._job.arrays(name)
        if run.has_outputs(seed, name, wanted):
            return
        there = run.outputs(seed, name) if run.has_outputs(seed, name) else None
        missing = [
            one for one in wanted if there is None or (there.head if one == HEAD_WEIGHT else there.get(one)) is None
        ]
        write_table(run.network(seed).outputs(name), self._read(images, there, wanted, missing, ood=ood))

    def _read(
        self, images: ImageSet, there: ModelOutputs | None, wanted: Sequence[str], missing: Sequence[str], *, ood: bool
    ) -> ModelOutputs:
        """What is there, and what was missing."""
        from normscale.bench.train.run import plain_batches
        from normscale.extraction import attacked_layers, extract, perturbed_features, perturbed_logits

        model, std, batches = self._model, self._info.std, plain_batches(images, self._info)
        outputs = there
        if outputs is None or any(not _needs_gradient(one) for one in missing):
            layers = [one for one in wanted if one not in _NO_LAYERS and not _needs_gradient(one)]
            plain = extract(model, batches, layers=layers, ood=ood)
            outputs = (
                plain if there is None else there.replace(head=plain.head, **{n: plain.array(n) for n in plain.names})
            )
        if PERTURBED_LOGITS in missing:
            perturbed = perturbed_logits(model, batches, epsilon=self._step(), std=std)
            outputs = outputs.replace(**{PERTURBED_LOGITS: perturbed})
        if PERTURBED_FEATURES in missing:
            outputs = outputs.replace(**{PERTURBED_FEATURES: perturbed_features(model, batches)})
        attacked = [one.removeprefix(ATTACKED) for one in missing if one.startswith(ATTACKED)]
        if attacked:
            found = attacked_layers(model, batches, layers=[one for one in attacked if one != FEATURES], std=std)
            outputs = outputs.replace(**{ATTACKED + one: found.array(ATTACKED + one) for one in attacked})
        return outputs

    def _step(self) -> float:
        """The step of the perturbation; chosen once, on validation images alone."""
        from normscale.bench.train.run import plain_batches
        from normscale.extraction import choose_epsilon

        path = self._job.run.network(self._job.seed).perturbation
        if not path.exists():
            batches = plain_batches(self._validation, self._info)
            write_document(path, choose_epsilon(self._model, batches, std=self._info.std)._asdict())
        return float(self._job.run.perturbation(self._job.seed)["epsilon"])


def _needs_gradient(array: str) -> bool:
    """Whether an array comes from images that were moved along a gradient."""
    return array in (PERTURBED_LOGITS, PERTURBED_FEATURES) or array.startswith(ATTACKED)
