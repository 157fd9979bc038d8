"""Train a classifier: deterministic for a seed on a CPU; killed and resumed at any moment, it ends the same.

The order and augmentation of epoch i depend on the seed and i alone, so that a resumed training needs no more than the
weights, the momentum and where it stood.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscale._progress import Bar, bar
from normscale.bench.train.checkpoint import load_checkpoint, save_checkpoint
from normscale.bench.train.recipes import Recipe
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput, TrainingDiverged
from normscale.extraction.evaluation import evaluating

CHECKPOINT_FILE = "checkpoint.safetensors"
LOG_FILE = "log.jsonl"


class EpochBatches(Protocol):
    """What a training reads: the batches of an epoch, the same each time it is asked for that epoch."""

    def __len__(self) -> int:
        """How many batches an epoch has."""

    def epoch(self, index: int, *, start: int = 0) -> Iterable[tuple[Tensor, Tensor]]:
        """Images (b, c, h, w), normalised, and labels (b,), from batch ``start`` on."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every image once, as it is, for evaluation."""


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
    """Where a training stands: steps of the epoch taken, and the sums of its log so far."""

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
    tick: Callable[[float], None] = lambda _: None,
) -> list[EpochLog]:
    """Train ``model`` in place and return the log of every epoch.

    Parameters
    ----------
    model : nn.Module
        Takes images (b, c, h, w), gives logits (b, C).
    batches : EpochBatches
        Training batches, e.g. :class:`normscale.bench.data.Batches`.
    recipe : Recipe
    folder : path, optional
        Where the checkpoint and the log live. If a checkpoint is there, the training goes on from it.
    validation : EpochBatches, optional
        Its accuracy is taken after every epoch; it never influences the training.
    settings : dict, optional
        What the run is; a checkpoint of other settings is refused.
    checkpoint_seconds : float
        Time between checkpoints within an epoch; one is also written at its end.
    tick : callable
        Told after every step which share of an epoch it was.
    """
    return _Training(model, batches, recipe, folder, validation, settings or {}, tick).run(checkpoint_seconds)


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
        folder: str | os.PathLike[str] | None,
        validation: EpochBatches | None,
        settings: dict[str, Any],
        tick: Callable[[float], None],
    ) -> None:
        self.tick = tick
        self.model, self.batches, self.recipe = model, batches, recipe
        self.validation = validation
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
        self.folder = None if folder is None else os.fspath(folder)
        if self.folder is not None:
            os.makedirs(self.folder, exist_ok=True)
            if os.path.exists(os.path.join(self.folder, CHECKPOINT_FILE)):
                self._resume(self.folder)

    def _resume(self, folder: str) -> None:
        def same_settings(header: dict[str, Any]) -> None:
            then, now = header["settings"], read_json(write_json(self.settings))
            if then != now:
                changed = sorted(key for key in {*then, *now} if then.get(key) != now.get(key))
                raise other_settings(folder, changed)

        path = os.path.join(folder, CHECKPOINT_FILE)
        header = load_checkpoint(path, self.model, self.optimiser, check=same_settings)
        self.position = Position(*header["position"])
        self.log = [EpochLog(*line) for line in header["log"]]

    def run(self, checkpoint_seconds: float) -> list[EpochLog]:
        with bar("training", self.total_steps, unit="share") as line:
            while self.position.epoch < self.recipe.epochs:
                self._epoch(line, checkpoint_seconds)
        return self.log

    def _epoch(self, line: Bar, checkpoint_seconds: float) -> None:
        epoch = self.position.epoch
        self.model.train()
        started, before = time.monotonic(), self.position.seconds
        saved_at = started
        rate = 0.0
        for images, labels in self.batches.epoch(epoch, start=self.position.step):
            rate = self.recipe.learning_rate_at(epoch * len(self.batches) + self.position.step, self.total_steps)
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self._step(images, labels)
            now = time.monotonic()
            self.position = self.position._replace(seconds=before + now - started)
            self._show(line)
            self.tick(1.0 / len(self.batches))
            if now - saved_at > checkpoint_seconds:
                self._save()
                saved_at = now
        self._finish_epoch(rate)

    def _step(self, images: Tensor, labels: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        logits = self.model(images)
        loss = functional.cross_entropy(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingDiverged(
                f"the loss is {value} in epoch {self.position.epoch + 1}, step {self.position.step + 1}, at learning "
                f"rate {self.optimiser.param_groups[0]['lr']:g}. Try a smaller learning rate, or look for NaN in the "
                "images; the last checkpoint is from before."
            )
        was = self.position
        self.position = was._replace(
            step=was.step + 1,
            loss_sum=was.loss_sum + value * len(labels),
            n_correct=was.n_correct + int((logits.detach().argmax(1) == labels).sum()),
            n_images=was.n_images + len(labels),
        )

    def _finish_epoch(self, rate: float) -> None:
        _, _, loss_sum, n_correct, n_images, seconds = self.position
        self.log.append(
            EpochLog(
                epoch=self.position.epoch + 1,
                loss=loss_sum / max(1.0, n_images),
                accuracy=n_correct / max(1.0, n_images),
                validation_accuracy=None if self.validation is None else accuracy(self.model, self.validation),
                learning_rate=rate,
                images_per_second=n_images / max(seconds, 1e-9),
                seconds=seconds,
            )
        )
        self.position = Position(epoch=self.position.epoch + 1)
        self._save()

    def _show(self, line: Bar) -> None:
        at = self.position
        line.at(
            at.epoch * len(self.batches) + at.step,
            f"epoch {at.epoch + 1}/{self.recipe.epochs}  loss {at.loss_sum / at.n_images:.3f}  "
            f"accuracy {at.n_correct / at.n_images:.1%}  {at.n_images / max(at.seconds, 1e-9):.0f} images/s",
        )

    def _save(self) -> None:
        if self.folder is None:
            return
        header = {"settings": self.settings, "position": list(self.position), "log": [list(line) for line in self.log]}
        save_checkpoint(os.path.join(self.folder, CHECKPOINT_FILE), self.model, self.optimiser, header)
        with open(
            os.path.join(self.folder, LOG_FILE), "w"
        ) as file:  # the checkpoint's log is the true one; this is for people
            file.writelines(write_json(line._asdict()) + "\n" for line in self.log)


@torch.inference_mode()
def accuracy(model: nn.Module, batches: EpochBatches) -> float:
    """Share of images whose predicted class is the label."""
    with evaluating(model):
        n_correct = n_images = 0
        for images, labels in batches:
            n_correct += int((model(images).argmax(1) == labels).sum())
            n_images += len(labels)
    return n_correct / max(1, n_images)
