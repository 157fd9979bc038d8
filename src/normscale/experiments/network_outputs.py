"""One network of a benchmark: train it, read its outputs on every set once, and perturb the images for ODIN.

Everything that needs torch happens here, so that networks can be prepared side by side in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from normscale._atomic import atomic_path
from normscale._lock import locked
from normscale.encoding.json_text import read_json, write_json
from normscale.experiments.methods import find_method
from normscale.experiments.presets import Plan
from normscale.experiments.run_folder import RunFolder, write_missing

if TYPE_CHECKING:
    from torch import nn

    from normscale.data import ImageSet
    from normscale.nn.network_file import NetworkInfo

PER_SET = 0.15
"""Cost of a set's outputs in epochs of training: a forward pass over a third as many images."""
PER_PERTURBED_SET = 0.4
"""Cost of perturbing a set for ODIN."""

OWN_SETS = ("train", "validation", "test")


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

    @property
    def perturbs(self) -> bool:
        """Whether a method reads perturbed images."""
        return any(find_method(method).perturbed for method in self.plan.methods)

    @property
    def is_done(self) -> bool:
        """Whether every file is there; a set that could not be had is tried again."""
        run, sets = self.run, list(self.plan.ood)
        there = [run.outputs_path(self.seed, name).exists() for name in (*OWN_SETS, *sets)]
        if self.perturbs:
            there += [run.outputs_path(self.seed, name, perturbed=True).exists() for name in ("test", *sets)]
        return all(there) and (run.network(self.seed) / "result.json").exists()

    @property
    def cost(self) -> float:
        """How much work it is from the beginning, in epochs of training."""
        from normscale.nn.recipes import find_recipe

        epochs = find_recipe(self.plan.recipe).with_epochs(self.plan.epochs).epochs
        n_sets = len(self.plan.ood)
        return epochs + PER_SET * (n_sets + 3) + (PER_PERTURBED_SET * (n_sets + 1) if self.perturbs else 0.0)


def prepare(job: Job, tick: Callable[[float], None] = lambda _: None) -> None:
    """Do what is missing of a network: training, outputs, perturbed outputs. Killed, the next call goes on.

    Parameters
    ----------
    job : Job
    tick : callable
        Told how much has been done, in epochs of training.
    """
    import torch

    from normscale.data import load
    from normscale.nn.run import extract_sets, train_network

    torch.set_num_threads(job.threads)
    plan, folder = job.plan, job.run.network(job.seed)
    with locked(folder, wait=False):
        result = train_network(
            folder,
            plan.data,
            network=plan.network,
            width=plan.width,
            recipe=plan.recipe,
            epochs=plan.epochs,
            seed=job.seed,
            root=job.root,
            tick=tick,
        )
        tick(PER_SET * len(OWN_SETS))
        test = load(plan.data, "test", root=job.root, like=load(plan.data, "train", root=job.root))
        missing: dict[str, str] = {}
        for name, source in plan.ood.items():
            missing |= extract_sets(folder, result.network, result.info, {name: source}, test, root=job.root)
            tick(PER_SET)
        if job.perturbs:
            _perturb(job, result.network, result.info, test, missing, tick)
        write_missing(folder, missing)


def _perturb(
    job: Job,
    model: nn.Module,
    info: NetworkInfo,
    test: ImageSet,
    missing: dict[str, str],
    tick: Callable[[float], None],
) -> None:
    """Logits of perturbed images; the step is chosen on validation images alone."""
    from normscale.data import load
    from normscale.nn.odin import choose_epsilon, odin_logits
    from normscale.nn.run import plain_batches, split_validation
    from normscale.outputs import ModelOutputs
    from normscale.tables import write_table

    run, plan = job.run, job.plan
    choice_path = run.network(job.seed) / "odin" / "choice.json"
    choice_path.parent.mkdir(exist_ok=True)
    if not choice_path.exists():
        validation = split_validation(load(plan.data, "train", root=job.root), job.seed)[1]
        choice = choose_epsilon(model, plain_batches(validation, info), std=info.std)
        with atomic_path(choice_path) as temporary:
            Path(temporary).write_text(write_json(choice._asdict()) + "\n")
    epsilon = read_json(choice_path.read_text())["epsilon"]
    for name in ("test", *plan.ood):
        path = run.outputs_path(job.seed, name, perturbed=True)
        if name not in missing and not path.exists():
            images = test if name == "test" else load(plan.ood[name], "test", root=job.root, like=test, seed=job.seed)
            logits = odin_logits(model, plain_batches(images, info), epsilon=epsilon, std=info.std)
            write_table(path, ModelOutputs(logits))
        tick(PER_PERTURBED_SET)
