"""Run a network as it will be used, and leave it as it was: its modes, its device, its wrapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from normscale.errors import InvalidInput
from normscale.outputs import LOGITS


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, out of what compiles it or spreads it over devices: only there do hooks work."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    inner: Any = model
    while isinstance(inner, (DataParallel, DistributedDataParallel)) or hasattr(inner, "_orig_mod"):  # torch.compile
        inner = inner._orig_mod if hasattr(inner, "_orig_mod") else inner.module
    return inner  # type: ignore[no-any-return]


def device_and_dtype(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where the network lives and in what precision; without parameters, torch's defaults."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.get_default_dtype()


def to_network(inputs: Any, model: nn.Module) -> Any:
    """A copy of inputs where and as the network wants them; channels last, which convolutions on a CPU like best.

    It is always a copy: a network may work in place, and the inputs are the caller's.
    """
    if isinstance(inputs, dict):
        return {name: to_network(value, model) for name, value in inputs.items()}
    device, dtype = device_and_dtype(model)
    tensor = inputs if isinstance(inputs, Tensor) else torch.from_numpy(np.array(inputs))
    layout = torch.channels_last if tensor.ndim == 4 and device.type in ("cpu", "cuda") else torch.preserve_format
    kind = dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(device, kind, non_blocking=True, copy=True, memory_format=layout)


@contextmanager
def evaluating(model: nn.Module, device: str | torch.device | None = None) -> Iterator[None]:
    """Evaluation mode, on a device; afterwards modes and device are as they were, on an error too."""
    modes = [(module, module.training) for module in model.modules()]
    home, _ = device_and_dtype(model)
    try:
        model.eval().to(home if device is None else device)
        yield
    finally:
        model.to(home)
        for module, mode in modes:
            module.training = mode


def logits_of(output: Any) -> Tensor:
    """The logits (n, n_classes) among what a network gives: the tensor itself, or its ``logits``."""
    logits = output.get(LOGITS, output) if isinstance(output, Mapping) else getattr(output, LOGITS, output)
    if isinstance(logits, Tensor) and logits.ndim == 2 and logits.shape[1] >= 2:
        return logits
    what = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
    if isinstance(logits, (tuple, list)):
        what += f" of {len(logits)}"
    raise InvalidInput(
        f"the model must return logits, a tensor (n, n_classes) with n_classes >= 2, or have them as .logits; it "
        f"returned {what}. Wrap it in a module whose forward returns the logits alone."
    )
