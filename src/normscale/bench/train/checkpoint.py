"""Everything a training needs to go on, in one safetensors file with a JSON header; no pickle.

A checkpoint holds the network, the optimiser's momentum, the state of the random generator, and where the training
stands. It is written beside the old one and moved into its place, so that a kill at any moment leaves a whole file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normscale.errors import FileFormatError
from normscale.state import Kind, load_state, save_state

CHECKPOINT = Kind(
    "normscale.training",
    "checkpoint or network",
    "Make one with `normscale train`.",
    "delete it to start the training anew.",
    "Is it a detector, or a table of logits?",
)


def save_checkpoint(
    path: str | os.PathLike[str], model: nn.Module, optimiser: torch.optim.Optimizer, header: dict[str, Any]
) -> None:
    """Write the state of a training atomically; ``header`` is what JSON can hold."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        if state.get("momentum_buffer") is not None:
            tensors[f"momentum.{index}"] = state["momentum_buffer"]
    tensors["random.torch"] = torch.get_rng_state()
    write_tensors(path, tensors, header)


def write_tensors(path: str | os.PathLike[str], tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write named tensors and a header atomically."""
    save_state(path, header, {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}, CHECKPOINT)


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote; a damaged, foreign or newer file is a :class:`FileFormatError`."""
    header, arrays = load_state(path, CHECKPOINT)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}, header


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
    weights = {key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is of another network ({str(error).splitlines()[0]}). Use another folder."
        ) from error
    for index, parameter in enumerate(p for group in optimiser.param_groups for p in group["params"]):
        momentum = tensors.get(f"momentum.{index}")
        if momentum is not None:  # the file knows no number without an axis
            momentum = momentum.to(parameter.device).clone().reshape(parameter.shape)
            optimiser.state[parameter]["momentum_buffer"] = momentum
    torch.set_rng_state(tensors["random.torch"])
    return header
