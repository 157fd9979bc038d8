"""Files of a training, in safetensors with a JSON header and without pickle: a trained network, and a checkpoint.

A checkpoint holds the network, the optimiser's momentum, the state of the random generator, and how far the training
is. It is written beside the old one and moved into its place, so that a kill at any moment leaves a whole file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normscale._validate import named
from normscale.bench.train.resnet import NETWORKS, ResidualNetwork
from normscale.errors import FileFormatError, InvalidInput
from normscale.state import Kind, load_state, save_state

TRAINING = Kind(
    "normscale.training",
    "checkpoint or network",
    "Make one with `normscale train`.",
    "delete it to start the training anew.",
    "Is it a detector, or a table of logits?",
)


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
        return named(self.network, NETWORKS, "network")(self.num_classes, self.width, self.in_channels)


def write_tensors(path: str | os.PathLike[str], tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write named tensors and a header atomically."""
    save_state(path, header, {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}, TRAINING)


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote; a damaged, foreign or newer file is a :class:`FileFormatError`."""
    header, arrays = load_state(path, TRAINING)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}, header


def round_weights(model: nn.Module) -> None:
    """Round convolutions and matrices in place to half precision (float16), which is what is kept of them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(_as_kept(parameter))


def _as_kept(tensor: Tensor) -> Tensor:
    """A tensor in half precision; as it is where it is small, as biases and statistics are, or beyond its range."""
    half = tensor.half()
    return half if tensor.is_floating_point() and tensor.ndim > 1 and bool(half.isfinite().all()) else tensor


def save_network(path: str | os.PathLike[str], model: nn.Module, info: NetworkInfo) -> None:
    """Write a network atomically, its weights in half precision; no pickle."""
    kept = {name: _as_kept(tensor) for name, tensor in model.state_dict().items()}
    write_tensors(path, kept, {"network": info._asdict()})


def load_network(path: str | os.PathLike[str]) -> tuple[ResidualNetwork, NetworkInfo]:
    """Read back what :func:`save_network` wrote, in float32; the network is in evaluation mode."""
    tensors, header = read_tensors(path)
    try:
        kept = header["network"].items()
        fields: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in kept}
        info = NetworkInfo(**fields)
        model = info.build()
        model.load_state_dict(tensors)
    except (KeyError, TypeError, AttributeError, RuntimeError, InvalidInput) as error:
        raise FileFormatError(f"{os.fspath(path)!r} holds no network this version can build: {error}") from error
    model.eval()
    return model, info


def save_checkpoint(
    path: str | os.PathLike[str], model: nn.Module, optimiser: torch.optim.Optimizer, header: dict[str, Any]
) -> None:
    """Write the state of a training atomically; ``header`` is what JSON can hold."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        if state.get("momentum_buffer") is not None:
            tensors[f"momentum.{index}"] = state["momentum_buffer"]
    write_tensors(path, {**tensors, "random.torch": torch.get_rng_state()}, header)


def load_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    *,
    check: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Put a checkpoint back into a model, its optimiser and the random generator; returns the header.

    ``check`` sees the header first and may refuse it; then nothing has changed.
    """
    tensors, header = read_tensors(path)
    check(header)
    try:
        model.load_state_dict({key[6:]: value for key, value in tensors.items() if key.startswith("model.")})
    except RuntimeError as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is of another network ({str(error).splitlines()[0]}). Use another folder."
        ) from error
    for index, parameter in enumerate(p for group in optimiser.param_groups for p in group["params"]):
        momentum = tensors.get(f"momentum.{index}")
        if momentum is not None:  # the file knows no number without an axis
            optimiser.state[parameter]["momentum_buffer"] = momentum.clone().reshape(parameter.shape)
    torch.set_rng_state(tensors["random.torch"])
    return header
