"""Everything a training needs to go on, in one safetensors file with a JSON header; no pickle.

A checkpoint holds the network, the optimiser's momentum, the state of the random generator, and where the training
stands. It is written beside the old one and moved into its place, so that a kill at any moment leaves a whole file.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from torch import Tensor, nn

from normscale._atomic import atomic_path
from normscale._version import __version__
from normscale.errors import FileFormatError

FORMAT = 1
_KEY = "normscale.training"


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
    from safetensors.torch import save

    document = json.dumps({"format": FORMAT, "version": __version__, **header}, allow_nan=False)
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {_KEY: document})
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote; a damaged, foreign or newer file is a :class:`FileFormatError`."""
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    if not os.path.isfile(name):
        raise FileFormatError(f"no checkpoint at {name!r}; make one with `normscale train`.")
    try:
        with safe_open(name, framework="pt") as file:
            metadata = file.metadata() or {}
            header: dict[str, Any] = json.loads(metadata[_KEY])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
            written_as = int(header["format"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"{name!r} is not a checkpoint of normscale or is damaged ({error}). Delete it to start the training anew."
        ) from error
    if written_as > FORMAT:
        raise FileFormatError(
            f"{name!r} was written by normscale {header.get('version', '?')} in format {written_as}; "
            f"{__version__} reads up to {FORMAT}. Upgrade normscale."
        )
    return tensors, header


def load_checkpoint(
    path: str | os.PathLike[str], model: nn.Module, optimiser: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Put a checkpoint back into a model and, if given, its optimiser and the random generator; returns the header."""
    tensors, header = read_tensors(path)
    weights = {key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is of another network ({str(error).splitlines()[0]}). Use another folder."
        ) from error
    if optimiser is not None:
        for index, parameter in enumerate(p for group in optimiser.param_groups for p in group["params"]):
            momentum = tensors.get(f"momentum.{index}")
            if momentum is not None:
                optimiser.state[parameter]["momentum_buffer"] = momentum.to(parameter.device).clone()
        torch.set_rng_state(tensors["random.torch"])
    return header
