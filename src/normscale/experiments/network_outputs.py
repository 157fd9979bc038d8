"""One network of a benchmark: train it, and read out of it, on every set, the arrays that the plan's methods read.

Everything that needs torch happens here, so that networks can be prepared side by side in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from normscale._lock import locked
from normscale.detectors.base import Detector
from normscale.errors import NormscaleError
from normscale.experiments.methods import find_method
from normscale.experiments.plan import Plan
from normscale.experiments.run_folder import RunFolder, write_document
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.tables.arrays import HEAD_WEIGHT

if TYPE_CHECKING:
    from torch import nn

    from normscale.data import ImageSet
    from normscale.nn.network_file import NetworkInfo

TRAIN, VALIDATION, TEST = OWN_SETS = ("train", "validation", "test")
PERTURBED_LOGITS = "perturbed_logits"
"""The logits of images that were moved a step towards what the network takes them for."""
_NO_LAYERS = (PERTURBED_LOGITS, HEAD_WEIGHT)

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
    def cost(self) -> float:
        """How much work it is from the beginning, in epochs of training."""
        from normscale.nn.recipes import find_recipe

        epochs = find_recipe(self.plan.recipe).with_epochs(self.plan.epochs).epochs
        return epochs + sum(self.cost_of(name) for name in (*OWN_SETS, *self.plan.ood))

    def cost_of(self, name: str) -> float:
        """How much work a set's outputs are, in epochs of training."""
        return PER_SET + (PER_PERTURBED_SET if PERTURBED_LOGITS in self.arrays(name) else 0.0)


def prepare(job: Job, tick: Callable[[float], None] = lambda _: None) -> None:
    """Do what is missing of a network: training, and outputs on every set. Killed, the next call goes on.

    Parameters
    ----------
    job : Job
    tick : callable
        Told how much has been done, in epochs of training.
    """
    import torch

    from normscale.data import load
    from normscale.nn.run import split_validation, train_network

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
            outputs=False,
            root=job.root,
            tick=tick,
        )
        files.make()
        everything = load(plan.data, "train", root=job.root)
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
        write_document(files.missing, missing)


class _Reader:
    """Reads arrays out of a network, set by set."""

    def __init__(self, job: Job, model: nn.Module, info: NetworkInfo, validation: ImageSet) -> None:
        self._job, self._model, self._info, self._validation = job, model, info, validation

    def write(self, name: str, images: ImageSet, *, ood: bool = False) -> None:
        """Write a network's outputs on a set, or the arrays that are missing in what is there."""
        from normscale.nn.run import plain_batches
        from normscale.tables import write_table

        run, seed = self._job.run, self._job.seed
        wanted = self._job.arrays(name)
        if run.has_outputs(seed, name, wanted):
            return
        there = run.outputs(seed, name) if run.has_outputs(seed, name) else None
        missing = [one for one in wanted if there is None or there.get(one) is None]
        batches = plain_batches(images, self._info)
        found = read_arrays(self._model, batches, [one for one in missing if one not in _NO_LAYERS], ood=ood)
        if PERTURBED_LOGITS in missing:
            found[PERTURBED_LOGITS] = perturbed_logits(self._model, batches, self._step(), self._info.std)
        if HEAD_WEIGHT in missing:
            found["head"] = head_of(self._model)
        outputs = ModelOutputs(**found) if there is None else there.replace(**found)
        write_table(run.network(seed).outputs(name), outputs)

    def _step(self) -> float:
        """The step of the perturbation; chosen once, on validation images alone."""
        from normscale.nn.odin import choose_epsilon
        from normscale.nn.run import plain_batches

        path = self._job.run.network(self._job.seed).perturbation
        if not path.exists():
            batches = plain_batches(self._validation, self._info)
            write_document(path, choose_epsilon(self._model, batches, std=self._info.std)._asdict())
        return float(self._job.run.perturbation(self._job.seed)["epsilon"])


def read_arrays(model: nn.Module, batches: Any, names: list[str], *, ood: bool) -> dict[str, Any]:
    """Arrays by name: logits, features, labels, and any layer of the network, averaged over space."""
    from normscale.nn.extraction import extract

    if not names:
        return {}
    found: dict[str, Any] = {}
    plain = extract(model, batches, ood=ood)
    found = {name: plain.get(name) for name in names if name in plain.names}
    if LOGITS in names:
        found["labels"] = plain.labels
    for layer in names:
        if layer not in plain.names:
            found[layer] = extract(model, batches, layer=layer, ood=ood).features
    return found


def head_of(model: Any) -> tuple[Any, Any]:
    """Weight and bias of the last layer of a network that :mod:`normscale.nn` trained."""
    weight, bias = model.classifier.weight, model.classifier.bias
    return weight.detach().cpu().numpy(), bias.detach().cpu().numpy()


def perturbed_logits(model: nn.Module, batches: Any, epsilon: float, std: Any) -> Any:
    """The logits of perturbed images."""
    from normscale.nn.odin import odin_logits

    return odin_logits(model, batches, epsilon=epsilon, std=std)
