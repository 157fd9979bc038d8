"""Run a network as it will be used, and read its hidden layers by hooks; the network is left as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from normscale.errors import InvalidInput

_INPUT = "input of "


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, out of what compiles it or spreads it over devices: only there do hooks work."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    inner = getattr(model, "_orig_mod", model)  # torch.compile
    if isinstance(inner, (DataParallel, DistributedDataParallel)):
        inner = inner.module
    assert isinstance(inner, nn.Module)
    return inner


def device_and_dtype(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where the network lives and in what precision; without parameters, torch's defaults."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.get_default_dtype()


def to_network(images: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Images where and as the network wants them; channels last, which convolutions on a CPU like best."""
    images = images.detach().to(device, dtype if images.is_floating_point() else None, non_blocking=True)
    if images.ndim == 4 and device.type in ("cpu", "cuda"):
        images = images.to(memory_format=torch.channels_last)
    return images


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module is back in its own mode, on an error too."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def reading(model: nn.Module, layers: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """A dictionary that every forward pass fills with the layers' activations, (n, d), averaged over space.

    ``"input of <name>"`` is what goes into a module, any other name what comes out of it.
    The average is taken at once: later modules may work in place, and whole maps would cost memory.
    """
    found: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for layer in layers:
            module = module_of(model, layer.removeprefix(_INPUT))
            if layer.startswith(_INPUT):
                handle = module.register_forward_pre_hook(_keep_input(found, layer))
            else:
                handle = module.register_forward_hook(_keep_output(found, layer))
            stack.callback(handle.remove)
        yield found


def _keep_input(found: dict[str, Tensor], layer: str) -> Any:
    def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if not arguments:
            raise InvalidInput(f"{layer} is passed by keyword, where it cannot be read; pass layer= another name.")
        found[layer] = averaged(arguments[0], layer)

    return hook


def _keep_output(found: dict[str, Tensor], layer: str) -> Any:
    def hook(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        found[layer] = averaged(output, layer)

    return hook


def averaged(activation: Any, layer: str) -> Tensor:
    """Activations (n, d) as they are; maps (n, d, height, width) by their mean over space."""
    if isinstance(activation, Tensor):
        if activation.ndim == 2:
            return activation
        if activation.ndim >= 4:
            return activation.mean(dim=tuple(range(2, activation.ndim)))
        shape = f"the shape {tuple(activation.shape)}"
    else:
        shape = f"a {type(activation).__name__}"
    raise InvalidInput(
        f"layer {layer!r} must give activations (n, d) or maps (n, d, height, width); it gives {shape}. "
        "Choose another layer, or put a module behind it that averages as it should be."
    )


def module_of(model: nn.Module, name: str) -> nn.Module:
    """The module called ``name``, or an error that lists what there is."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if name in modules:
        return modules[name]
    raise InvalidInput(f"the model has no layer {name!r}; it has {_listed(modules)}.")


def _listed(modules: dict[str, nn.Module], most: int = 12) -> str:
    """Names of layers for a message: the last ones, since features come late."""
    names = [name for name in modules if name]
    if not names:
        return "no named layers"
    listed = ", ".join(repr(name) for name in names[-most:])
    return listed if len(names) <= most else f"{len(names)} layers, the last of them {listed}"


def logits_of(output: Any) -> Tensor:
    """The output of a network, if it is logits (n, n_classes)."""
    if isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] >= 2:
        return output
    if isinstance(output, Tensor):
        what = f"a tensor of shape {tuple(output.shape)}"
    elif isinstance(output, (tuple, list)):
        what = f"a {type(output).__name__} of {len(output)}"
    else:
        what = f"a {type(output).__name__}"
    raise InvalidInput(
        f"the model must return logits, a tensor (n, n_classes) with n_classes >= 2; it returned {what}. "
        "Wrap it in a module whose forward returns the logits alone."
    )


def classifier_input(model: nn.Module, images: Tensor) -> str:
    """Find the classifier, the linear layer the logits come from, by a look at a few images.

    Returns the name of its input for :func:`reading`. Of several linear layers it is the one whose output the model
    returns, or else the last one that ran and has as many outputs as there are classes.
    """
    ran: dict[str, Tensor] = {}
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    with ExitStack() as stack:
        for name, module in linear.items():

            def hook(module: nn.Module, arguments: Any, output: Tensor, name: str = name) -> None:
                ran.pop(name, None)  # so that the order is that of the last call
                ran[name] = output

            stack.callback(module.register_forward_hook(hook).remove)
        logits = logits_of(model(images))
    for name, output in ran.items():
        if output is logits:
            return _INPUT + name
    for name, output in reversed(ran.items()):
        if output.shape == logits.shape:
            return _INPUT + name
    raise InvalidInput(
        "no linear layer gives the model's logits, so its penultimate layer is not known; pass the name of the layer "
        f"whose output are the features, layer=...; it has {_listed(dict(model.named_modules()))}. "
        "Logits alone: features=False."
    )


def by_name(found: dict[str, Tensor], layer: str) -> Tensor:
    """What :func:`reading` found, or an error if the layer took no part."""
    if layer not in found:
        raise InvalidInput(f"layer {layer!r} did not run in the model's forward pass; choose one that does.")
    return found.pop(layer)
