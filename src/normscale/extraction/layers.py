"""Run a network with hooks that keep its layers, and find its last linear layer.

A layer's activations go by the name of its module, as :func:`normscale.outputs.array_name` writes it; maps are averaged
over space and tokens over their sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, Head, array_name

Layers: TypeAlias = "str | Sequence[str] | None"
"""Which layers to read besides logits and features: none, ``"all"`` (the network's ``stage_names``), or modules."""


def layer_modules(model: nn.Module, layers: Layers, feature_layer: str | None = None) -> dict[str, str]:
    """The modules that were asked for, by the names of their arrays."""
    if isinstance(layers, str):
        names = getattr(model, "stage_names", None)
        if layers != "all" or names is None:
            raise InvalidInput(
                f"layers must be None or a sequence of names, such as {list(dict(model.named_children()))[-3:]}; "
                f'"all" is for models with stage_names; got {layers!r}.'
            )
        layers = tuple(names)
    there = dict(model.named_modules())
    modules = {} if feature_layer is None else {FEATURES: feature_layer}
    for layer in (*modules.values(), *(layers or ())):
        if layer not in there:
            raise InvalidInput(f"the model has no layer {layer!r}; it has {_listed(model)}.")
    for layer in layers or ():
        name = array_name(layer)
        if name in modules:
            raise InvalidInput(
                f"layers must be different modules with different names; {modules[name]!r} and {layer!r} "
                f"would both be {name}."
            )
        modules[name] = layer
    return modules


def _listed(model: nn.Module) -> str:
    """Names of layers for a message: the last ones, since features come late."""
    names = [repr(name) for name, _ in model.named_modules() if name] or ["no named layers"]
    return ", ".join(names) if len(names) <= 12 else f"{len(names)} layers, the last of them {', '.join(names[-12:])}"


class ForwardPass(NamedTuple):
    """What happened inside a network while it ran."""

    logits: Tensor
    outputs: dict[str, Tensor]
    """Of layers by name, (n, d)."""
    calls: dict[str, tuple[Tensor, Tensor]]
    """What went into and out of linear layers, in the order of their last calls."""


def forward(
    model: nn.Module, inputs: Any, layers: Collection[str], linear: Collection[str] | None = None
) -> ForwardPass:
    """Run a network and keep outputs of ``layers``, and the calls of ``linear`` layers, by default of all.

    Outputs are averaged, or copied, at once: later modules may work in place, and whole maps would cost memory.
    """
    outputs: dict[str, Tensor] = {}
    calls: dict[str, tuple[Tensor, Tensor]] = {}
    mask = token_mask(inputs)

    def keep_output(name: str, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        outputs[name] = averaged(output, name, mask)

    def keep_call(name: str, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        calls.pop(name, None)  # so that the order is that of the last call
        entered = arguments[0] if arguments else named.get("input")
        if isinstance(entered, Tensor) and isinstance(output, Tensor):
            calls[name] = entered.clone() if entered.ndim == 2 else entered, output

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name in layers:
                stack.callback(module.register_forward_hook(partial(keep_output, name)).remove)
            if isinstance(module, nn.Linear) and (linear is None or name in linear):
                hook = module.register_forward_hook(partial(keep_call, name), with_kwargs=True)
                stack.callback(hook.remove)
        output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    logits = logits_of(output)
    for name in layers:
        if name not in outputs:
            raise InvalidInput(f"layer {name!r} did not run in the model's forward pass; choose one that does.")
    return ForwardPass(logits, outputs, calls)


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


def averaged(activation: Any, layer: str, mask: Tensor | None = None) -> Tensor:
    """A copy of activations (n, d); maps (n, d, height, width) and tokens (n, tokens, d) by their mean."""
    if isinstance(activation, Mapping):  # what blocks and encoders of transformers give
        activation = next(iter(activation.values()), activation)
    elif isinstance(activation, (tuple, list)) and activation:
        activation = activation[0]
    n_axes = activation.ndim if isinstance(activation, Tensor) else 0
    if n_axes == 2:
        return activation.clone()  # type: ignore[no-any-return]
    if n_axes == 3 and mask is not None and mask.shape == activation.shape[:2]:  # padding makes no difference
        weight = mask.to(activation.dtype)[..., None]
        return (activation * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)  # type: ignore[no-any-return]
    if n_axes >= 3:
        return activation.mean(dim=1 if n_axes == 3 else tuple(range(2, n_axes)))  # type: ignore[no-any-return]
    shape = f"the shape {tuple(activation.shape)}" if n_axes else f"a {type(activation).__name__}"
    raise InvalidInput(
        f"layer {layer!r} must give activations (n, d), tokens (n, tokens, d) or maps (n, d, height, width); it gives "
        f"{shape}. Choose another layer, or put a module behind it that averages as it should be."
    )


def token_mask(inputs: Any) -> Tensor | None:
    """Which tokens count."""
    return inputs.get("attention_mask") if isinstance(inputs, dict) else None


_ENDINGS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda left: left,
    "log-softmax": lambda left: left.log_softmax(dim=1),
    "softmax": lambda left: left.softmax(dim=1),
    "sigmoid": lambda left: left.sigmoid(),
}


class LastLayer(NamedTuple):
    """The linear layer that the logits come from."""

    name: str
    head: Head | None
    """Its numbers, where it makes the logits of the features."""
    ending: str | None = None
    """The softmax behind it, if there is one."""
    takes_token: bool = False
    """Whether the logits are what it makes of one token; otherwise of the mean over tokens, where it has any."""


def find_last_layer(model: nn.Module, inputs: Any, feature_layer: str | None, choose: bool) -> LastLayer:
    """The linear layer that the logits of a few inputs come from; its name is empty where there is none.

    It is the one whose output, or one token of it, the model returns, as it is or behind a softmax; or else the only
    one with as many outputs as there are classes. Where none or several could be, ``choose`` makes that an error.
    """
    inputs = {name: value.clone() for name, value in inputs.items()} if isinstance(inputs, dict) else inputs.clone()
    run = forward(model, inputs, () if feature_layer is None else (feature_layer,))
    features = None if feature_layer is None else run.outputs[feature_layer]
    logits, mask = run.logits, token_mask(inputs)
    modules: dict[str, Any] = dict(model.named_modules())
    similar: list[LastLayer] = []
    if not bool(logits.isfinite().all()):
        return LastLayer("", None)  # the caller refuses the row
    for name, (entered, left) in reversed(run.calls.items()):
        if left.shape == logits.shape:
            for ending, make in _ENDINGS.items():
                if _equal(make(left), logits):
                    return LastLayer(name, _head(modules[name], entered, left, features), ending)
            similar.append(LastLayer(name, _head(modules[name], entered, logits, features)))
        elif left.ndim == 3 and (left.shape[0], left.shape[2]) == tuple(logits.shape):
            for takes_token in (True, False):
                if _equal(pooled(left, left, logits, takes_token, mask), logits):
                    entered = pooled(entered, left, logits, takes_token, mask)
                    return LastLayer(name, _head(modules[name], entered, logits, features), None, takes_token)
    if choose and len(similar) != 1:
        why = "no linear layer gives the model's logits, so its penultimate layer is not known."
        if similar:
            names = ", ".join(repr(one.name) for one in similar)
            why = f"several linear layers could give the model's logits: {names}; none of them gives them alone."
        raise InvalidInput(
            f"{why} Pass the name of the layer whose output are the features, feature_layer='NAME', or features=False; "
            f"the model has {_listed(model)}."
        )
    return similar[0] if similar else LastLayer("", None)


def pooled(entered: Tensor, left: Tensor, logits: Tensor, takes_token: bool, mask: Tensor | None) -> Tensor:
    """What went into the last layer, (n, d); of tokens those that the logits were made of."""
    if entered.ndim != 3 or not takes_token:
        return averaged(entered, "the input of the last layer", mask)
    place = (left - logits[:, None]).abs().amax(dim=2).argmin(dim=1)
    return entered[torch.arange(len(entered), device=entered.device), place]


def _head(layer: nn.Linear, entered: Tensor, logits: Tensor, features: Tensor | None) -> Head | None:
    """The layer's numbers, if it makes the logits of its input, and that is the features where these are given."""
    if entered.ndim != 2 or (features is not None and not _equal(features, entered)):
        return None
    if not _equal(functional.linear(entered, layer.weight, layer.bias), logits):
        return None  # a class of its own that scales its weights
    weight = layer.weight.detach()
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
    return Head(weight.float().cpu().numpy().copy(), bias.float().cpu().numpy().copy())


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers but for rounding in their precision."""
    if a.shape != b.shape:
        return False
    a, b = a.to(torch.float64), b.to(torch.float64)
    return torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))
