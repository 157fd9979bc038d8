"""A small real training for the tests: 8 x 8 digits, a narrow ResNet; also a program that is killed and resumed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from normscale.bench.train.resnet import ResidualNetwork, resnet18
from normscale.bench.train.training import RECIPES, EpochLog, Recipe, train


class Digits:
    """600 digits in batches of 50; the order of an epoch depends on the seed and the epoch alone."""

    def __init__(self, seed: int = 0) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images[:600] / 8.0 - 1.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
        self.labels = torch.tensor(labels[:600])
        self.seed = seed

    def __len__(self) -> int:
        return 12

    def epoch(self, index: int, *, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(600, generator=torch.Generator().manual_seed(1000 * self.seed + index))
        for rows in torch.split(order, 50)[start:]:
            yield self.images[rows], self.labels[rows]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.images, self.labels


RECIPE: Recipe = RECIPES["fast"]._replace(epochs=3, learning_rate=0.05)


def network(seed: int = 0) -> ResidualNetwork:
    torch.manual_seed(seed)
    return resnet18(10, width=4, in_channels=1)


def run(folder: str | None, **options: Any) -> tuple[ResidualNetwork, list[EpochLog]]:
    torch.set_num_threads(1)
    model = network()
    log = train(model, Digits(), RECIPE, folder=folder, **options)
    return model, log


if __name__ == "__main__":
    run(sys.argv[1], checkpoint_seconds=0.0)
