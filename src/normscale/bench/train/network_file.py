"""A trained network in one file: its weights, how to build it, and how to normalise its input."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from torch import nn

from normscale.bench.train.checkpoint import read_tensors, write_tensors
from normscale.bench.train.resnet import NETWORKS, ResidualNetwork
from normscale.errors import FileFormatError, InvalidInput


class NetworkInfo(NamedTuple):
    """What a network is and what its input looks like."""

    network: str
    num_classes: int
    width: int
    in_channels: int
    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] | None = None
    trained_on: str | None = None
    seed: int | None = None
    test_accuracy: float | None = None

    def build(self) -> ResidualNetwork:
        """Make the network, with random weights."""
        if self.network not in NETWORKS:
            raise InvalidInput(f"unknown network {self.network!r}; known: {', '.join(NETWORKS)}.")
        return NETWORKS[self.network](self.num_classes, self.width, self.in_channels)


def save_network(path: str | os.PathLike[str], model: nn.Module, info: NetworkInfo) -> None:
    """Write a network atomically; no pickle."""
    write_tensors(path, dict(model.state_dict()), {"network": info._asdict()})


def load_network(path: str | os.PathLike[str]) -> tuple[ResidualNetwork, NetworkInfo]:
    """Read back what :func:`save_network` wrote; the network is in evaluation mode."""
    tensors, header = read_tensors(path)
    try:
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in header["network"].items()
        }
        info = NetworkInfo(**fields)
        model = info.build()
        model.load_state_dict(tensors)
    except (KeyError, TypeError, AttributeError, RuntimeError, InvalidInput) as error:
        raise FileFormatError(f"{os.fspath(path)!r} holds no network this version can build: {error}") from error
    model.eval()
    return model, info
