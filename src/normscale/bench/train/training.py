"""Train a classifier: deterministic for a seed on a CPU; killed and resumed at any moment, it ends the same.

The order and augmentation of epoch i depend on the seed and i alone, so that a resumed training needs no more than the
weights, the momentum and its position.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscale import _validate
from normscale._progress import Bar, bar
from normscale.bench.network_folder import NetworkFolder
from normscale.bench.train.network_file import load_checkpoint, save_checkpoint
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput, TrainingDiverged
from normscale.extraction.torch_model import evaluating

CHECKPOINT_FILE = "checkpoint.safetensors"


class Recipe(NamedTuple):
    """Stochastic gradient descent with momentum, and how the learning rate moves.

    ``schedule`` is ``"steps"`` (divide by ten at 60 % and 80 % of the epochs) or ``"triangle"`` (linear warm-up over
    the first ``warm_up`` share of the steps, then linearly down to zero). No label smoothing: logits stay comparable.
    """

    name: str
    learning_rate: float
    schedule: str
    epochs: int
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    batch_size: int = 128
    warm_up: float = 0.0

    def learning_rate_at(self, step: int, total_steps: int) -> float:
        """The learning rate of one step, counted from 0."""
        if self.schedule == "steps":
            passed = (10 * step >= 6 * total_steps) + (10 * step >= 8 * total_steps)
            return self.learning_rate / (1.0, 10.0, 100.0)[passed]
        rising = max(1.0, self.warm_up * total_steps)
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        return self.learning_rate * max(0.0, (total_steps - step) / max(1.0, total_steps - rising))


RECIPES = {
    "paper": Recipe("paper", learning_rate=1e-2, schedule="steps", epochs=200),
    "fast": Recipe("fast", learning_rate=0.2, schedule="triangle", epochs=18, nesterov=True, warm_up=0.2),
}


def find_recipe(name: str, epochs: int | None = None) -> Recipe:
    """A recipe by name, for its own or another number of epochs."""
    recipe = _validate.named(name, RECIPES, "recipe")
    return recipe if epochs is None else recipe._replace(epochs=_validate.at_least(epochs, "epochs", 1))


class EpochBatches(Protocol):
    """What a training reads: normalised images (b, c, h, w) and labels (b,), in batches.

    An epoch is the same each time it is asked for; iteration gives every image once, as it is, for evaluation.
    """

    def __len__(self) -> int: ...

    def epoch(self, index: int, *, start: int = 0) -> Iterable[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from ``start`` on."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


class EpochLog(NamedTuple):
    """What one epoch came to; a line of the log."""

    epoch: int
    loss: float
    accuracy: float
    validation_accuracy: float | None
    learning_rate: float
    images_per_second: float
    seconds: float


class Position(NamedTuple):
    """How far a training is: steps of the epoch taken, and the sums of its log so far."""

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    n_correct: int = 0
    n_images: int = 0
    seconds: float = 0.0


def train(
    model: nn.Module,
    batches: EpochBatches,
    recipe: Recipe,
    *,
    folder: str | os.PathLike[str] | None = None,
    validation: EpochBatches | None = None,
    settings: dict[str, Any] | None = None,
    checkpoint_seconds: float = 60.0,
) -> list[EpochLog]:
    """Train ``model`` in place and return the log of every epoch.

    ``folder`` keeps the checkpoint, from which a training goes on, and the log. A checkpoint of other ``settings`` is
    refused. The accuracy on ``validation`` is taken after every epoch and influences nothing.
    """
    training = _Training(model, batches, recipe, folder, settings or {})
    with bar("training", training.total_steps, unit="share") as line:
        while training.position.epoch < recipe.epochs:
            training.epoch(line, validation, checkpoint_seconds)
    return training.log


def other_settings(folder: str | os.PathLike[str], changed: list[str]) -> InvalidInput:
    """What to say where a folder holds a training that is not the one asked for."""
    return InvalidInput(
        f"{os.fspath(folder)} holds a training with other settings ({', '.join(changed)} differ). "
        "Use another folder, or delete this one to start anew."
    )


class _Training:
    """One training: the optimiser, the position, and the files."""

    def __init__(
        self,
        model: nn.Module,
        batches: EpochBatches,
        recipe: Recipe,
        folder: str | os.PathLike[str] | None = None,
        settings: dict[str, Any] = {},  # noqa: B006 - never changed
    ) -> None:
        self.model, self.batches, self.recipe = model, batches, recipe
        self.settings = {**settings, "recipe": recipe._asdict(), "steps_per_epoch": len(batches)}
        self.total_steps = recipe.epochs * len(batches)
        if self.total_steps == 0:
            raise InvalidInput("there are no batches to train on; is the training set empty?")
        self.optimiser = torch.optim.SGD(
            model.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
        )
        self.position = Position()
        self.log: list[EpochLog] = []
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            if (self.folder / CHECKPOINT_FILE).exists():
                self._resume(self.folder / CHECKPOINT_FILE)

    def _resume(self, path: Path) -> None:
        def same_settings(header: dict[str, Any]) -> None:
            then, now = header["settings"], read_json(write_json(self.settings))
            if then != now:
                raise other_settings(path.parent, sorted(k for k in {*then, *now} if then.get(k) != now.get(k)))

        header = load_checkpoint(path, self.model, self.optimiser, check=same_settings)
        self.position = Position(*header["position"])
        self.log = [EpochLog(*line) for line in header["log"]]

    def epoch(self, line: Bar, validation: EpochBatches | None, checkpoint_seconds: float) -> None:
        self.model.train()
        started = saved_at = time.monotonic()
        before, rate = self.position.seconds, 0.0
        for images, labels in self.batches.epoch(self.position.epoch, start=self.position.step):
            done = self.position.epoch * len(self.batches) + self.position.step
            rate = self.recipe.learning_rate_at(done, self.total_steps)
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self.step(images, labels)
            now = time.monotonic()
            self.position = at = self.position._replace(seconds=before + now - started)
            line.at(
                done + 1,
                f"epoch {at.epoch + 1}/{self.recipe.epochs}  loss {at.loss_sum / at.n_images:.3f}  "
                f"accuracy {at.n_correct / at.n_images:.1%}  {at.n_images / max(at.seconds, 1e-9):.0f} images/s",
            )
            if now - saved_at > checkpoint_seconds:
                self._save()
                saved_at = now
        epoch, _, loss_sum, n_correct, n_images, seconds = self.position
        shares = loss_sum / max(1.0, n_images), n_correct / max(1.0, n_images)
        checked = None if validation is None else accuracy(self.model, validation)
        self.log.append(EpochLog(epoch + 1, *shares, checked, rate, n_images / max(seconds, 1e-9), seconds))
        self.position = Position(epoch=epoch + 1)
        self._save()

    def step(self, images: Tensor, labels: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        logits = self.model(images)
        loss = functional.cross_entropy(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        value, was = float(loss.detach()), self.position
        if not math.isfinite(value):
            raise TrainingDiverged(
                f"the loss is {value} in epoch {was.epoch + 1}, step {was.step + 1}, at learning "
                f"rate {self.optimiser.param_groups[0]['lr']:g}. Try a smaller learning rate, or look for NaN in the "
                "images; the last checkpoint is from before."
            )
        self.position = was._replace(
            step=was.step + 1,
            loss_sum=was.loss_sum + value * len(labels),
            n_correct=was.n_correct + int((logits.detach().argmax(1) == labels).sum()),
            n_images=was.n_images + len(labels),
        )

    def _save(self) -> None:
        if self.folder is None:
            return
        header = {"settings": self.settings, "position": list(self.position), "log": [list(line) for line in self.log]}
        save_checkpoint(self.folder / CHECKPOINT_FILE, self.model, self.optimiser, header)
        lines = [write_json(line._asdict()) + "\n" for line in self.log]
        NetworkFolder(self.folder).log.write_text("".join(lines))  # for people; the checkpoint's log is what counts


@torch.inference_mode()
def accuracy(model: nn.Module, batches: EpochBatches) -> float:
    """Share of images whose predicted class is the label."""
    n_correct = n_images = 0
    with evaluating(model):
        for images, labels in batches:
            n_correct += int((model(images).argmax(1) == labels).sum())
            n_images += len(labels)
    return n_correct / max(1, n_images)
