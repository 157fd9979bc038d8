"""Read a network's logits, its penultimate layer and further layers by hooks, and find its last linear layer.

A layer's activations go by the name of its module, as :func:`array_name` writes it; maps are averaged over
space and tokens over their sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscale.errors import InvalidInput
from normscale.extraction.batch_reader import array_name
from normscale.extraction.evaluation import called, logits_of
from normscale.outputs import FEATURES, LOGITS, Head

Layers: TypeAlias = "str | Sequence[str] | None"
"""Which layers to read besides logits and features: none, ``"all"`` (the network's ``stage_names``), or modules."""

NetworkInputs: TypeAlias = "Tensor | dict[str, Tensor]"
"""What a network is called with."""

_TOKEN, _MEAN = "the token that the logits are of", "the mean over tokens"


class LayerReader:
    """Runs a network on batches and gives logits, features and further layers, (n, d) each, by name.

    The network must not be wrapped, and in evaluation mode when it is run; ``layers``, ``features`` and
    ``feature_layer`` are those of :func:`normscale.extraction.extract`.

    Attributes
    ----------
    head : Head or None
        The linear layer that makes the logits of the features; None until a batch was read, and where the logits come
        from something else or ``feature_layer`` is not what goes into it.
    found : str
        What was found, in words; empty until a batch was read.
    """

    def __init__(
        self, model: nn.Module, layers: Layers = None, *, features: bool = True, feature_layer: str | None = None
    ) -> None:
        """Check the names; nothing is run."""
        self.model = model
        self.modules = layer_modules(model, layers)
        self.head: Head | None = None
        self.found = ""
        self._last: _LinearLayer | None = None
        self._looked = False
        self._reads_features = features
        self._feature_layer = feature_layer if features else None
        if self._feature_layer is not None:
            self.modules = {FEATURES: module_of(model, self._feature_layer), **self.modules}

    def read(self, inputs: NetworkInputs) -> dict[str, Tensor]:
        """Logits, features and layers of inputs that are where the network is."""
        if not self._looked:
            few = {k: v[:2].clone() for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[:2].clone()
            self._look(few)
            self._looked = True
        last, mask = self._last, _mask(inputs)
        layers = list(self.modules.values())
        with _hooked(self.model, layers, () if last is None else (last.name,), mask) as (found, calls):
            arrays = {LOGITS: logits_of(called(self.model, inputs))}
        if last is not None and last.name in calls:
            entered, left = calls[last.name]
            if last.ending is not None:  # a model may change it later, in place
                arrays[LOGITS] = left
            if self._reads_features and self._feature_layer is None:
                arrays[FEATURES] = _pooled(entered, left, arrays[LOGITS], last.pooling, mask)
        return arrays | {name: _taken(found, layer) for name, layer in self.modules.items()}

    def _look(self, inputs: NetworkInputs) -> None:
        named = self._feature_layer
        choose = self._reads_features and named is None
        last, given = _last_linear_layer(self.model, inputs, named, choose=choose)
        self._last = last
        if last is not None and last.ending is not None:
            self.found = f"the model ends in a {last.ending}: logits are what {last.name!r} gives before it. "
        if not self._reads_features:
            return
        if choose and last is None:
            raise InvalidInput(
                "no linear layer gives the model's logits, so its penultimate layer is not known; pass the name of "
                f"the layer whose output are the features, feature_layer=...; it has {_listed(self.model)}. "
                "Logits alone: features=False."
            )
        if last is not None:
            pooled = f", {last.pooling}" if last.pooling is not None and choose else ""
            self.found += f"features: {named or f'input of {last.name}'!r}{pooled}."
            self.head = _head(last, given)


def layer_modules(model: nn.Module, layers: Layers) -> dict[str, str]:
    """The modules that were asked for, by the names of their arrays."""
    if layers is None:
        return {}
    if layers == "all":
        stages = getattr(model, "stage_names", None)
        if stages is None:
            raise InvalidInput(
                'layers="all" means the stages of the networks in normscale.bench.train; this model names none (it has '
                "no stage_names). "
                f"Pass their names, such as layers={[name for name, _ in model.named_children()][-3:]}."
            )
        layers = tuple(stages)
    if isinstance(layers, str):
        raise InvalidInput(f'layers must be None, "all", or a sequence of names; got {layers!r}.')
    modules: dict[str, str] = {}
    for module in layers:
        name = array_name(module_of(model, module))
        if name in modules:
            raise InvalidInput(
                f"layers must be different modules with different names; {modules[name]!r} and {module!r} "
                f"would both be {name}."
            )
        modules[name] = module
    return modules


def module_of(model: nn.Module, name: str) -> str:
    """The name of a module, or an error that lists what there is."""
    if name in dict(model.named_modules()):
        return name
    raise InvalidInput(f"the model has no layer {name!r}; it has {_listed(model)}.")


def _listed(model: nn.Module, most: int = 12) -> str:
    """Names of layers for a message: the last ones, since features come late."""
    names = [name for name, _ in model.named_modules() if name]
    listed = ", ".join(repr(name) for name in names[-most:]) or "no named layers"
    return listed if len(names) <= most else f"{len(names)} layers, the last of them {listed}"


@contextmanager
def _hooked(
    model: nn.Module, layers: Collection[str], linear: Collection[str] | None, mask: Tensor | None
) -> Iterator[tuple[dict[str, Tensor], dict[str, tuple[Any, Tensor]]]]:
    """Two dictionaries that a forward pass fills: outputs of layers, and what goes in and out of linear layers (all).

    Outputs are averaged, or copied, at once: later modules may work in place, and whole maps would cost memory.
    """
    outputs: dict[str, Tensor] = {}
    calls: dict[str, tuple[Any, Tensor]] = {}

    def keep_output(name: str, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        outputs[name] = averaged(output, name, mask)

    def keep_call(
        name: str, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Tensor
    ) -> None:
        calls.pop(name, None)  # so that the order is that of the last call
        entered = arguments[0] if arguments else named.get("input")
        calls[name] = entered.clone() if isinstance(entered, Tensor) and entered.ndim == 2 else entered, output

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name in layers:
                stack.callback(module.register_forward_hook(partial(keep_output, name)).remove)
            if isinstance(module, nn.Linear) and (linear is None or name in linear):
                hook = module.register_forward_hook(partial(keep_call, name), with_kwargs=True)
                stack.callback(hook.remove)
        yield outputs, calls


def averaged(activation: Any, layer: str, mask: Tensor | None = None) -> Tensor:
    """A copy of activations (n, d); maps (n, d, height, width) and tokens (n, tokens, d) by their mean."""
    if isinstance(activation, Mapping):  # what blocks and encoders of transformers give
        activation = next(iter(activation.values()), activation)
    elif isinstance(activation, (tuple, list)) and activation:
        activation = activation[0]
    if isinstance(activation, Tensor):
        if activation.ndim == 2:
            return activation.clone()
        if activation.ndim == 3:
            return _mean_of_tokens(activation, mask)
        if activation.ndim >= 4:
            return activation.mean(dim=tuple(range(2, activation.ndim)))
        shape = f"the shape {tuple(activation.shape)}"
    else:
        shape = f"a {type(activation).__name__}"
    raise InvalidInput(
        f"layer {layer!r} must give activations (n, d), tokens (n, tokens, d) or maps (n, d, height, width); it gives "
        f"{shape}. Choose another layer, or put a module behind it that averages as it should be."
    )


def _mask(inputs: NetworkInputs) -> Tensor | None:
    """Which tokens count."""
    return inputs.get("attention_mask") if isinstance(inputs, dict) else None


def _mean_of_tokens(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the tokens that count, so that padding makes no difference."""
    if mask is None or mask.shape != tokens.shape[:2]:
        return tokens.mean(dim=1)
    weight = mask.to(tokens.dtype)[..., None]
    return (tokens * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)


def _taken(found: dict[str, Tensor], layer: str) -> Tensor:
    if layer not in found:
        raise InvalidInput(f"layer {layer!r} did not run in the model's forward pass; choose one that does.")
    return found[layer]


class _LinearLayer(NamedTuple):
    """The linear layer that the logits come from, and how: what a look at two inputs told."""

    name: str
    module: nn.Linear
    entered: Tensor | None
    logits: Tensor
    ending: str | None = None
    """The softmax behind it, if there is one."""
    pooling: str | None = None
    """Which of its tokens the logits are, where it works on tokens."""


def _last_linear_layer(
    model: nn.Module, inputs: NetworkInputs, named: str | None, *, choose: bool
) -> tuple[_LinearLayer | None, Tensor | None]:
    """The linear layer that the logits of a few inputs come from, if there is one; and what the ``named`` layer gives.

    It is the one whose output, or one token of it, the model returns, as it is or behind a softmax; or else the only
    one with as many outputs as there are classes. Where several could be, ``choose`` makes that an error.
    """
    mask = _mask(inputs)
    with _hooked(model, () if named is None else (named,), None, mask) as (found, calls):
        logits = logits_of(called(model, inputs))
    given = None if named is None else _taken(found, named)
    modules: dict[str, Any] = dict(model.named_modules())
    similar: list[_LinearLayer] = []
    for name, (entered, left) in reversed(calls.items()):
        layer = _LinearLayer(name, modules[name], entered if isinstance(entered, Tensor) else None, logits)
        if left is logits:
            return layer, given
        if left.shape == logits.shape:
            similar.append(layer)
            endings = {None: left, "log-softmax": left.log_softmax(dim=1), "softmax": left.softmax(dim=1)}
            for ending, squashed in {**endings, "sigmoid": left.sigmoid()}.items():
                if _equal(squashed, logits):
                    return layer._replace(ending=ending, logits=left), given
        elif left.ndim == 3 and (left.shape[0], left.shape[2]) == tuple(logits.shape) and layer.entered is not None:
            for pooling in (_TOKEN, _MEAN):
                if _equal(_pooled(left, left, logits, pooling, mask), logits):
                    entered = _pooled(layer.entered, left, logits, pooling, mask)
                    return layer._replace(pooling=pooling, entered=entered), given
    if len(similar) > 1 and choose:
        raise InvalidInput(
            f"several linear layers could give the model's logits: {', '.join(repr(one.name) for one in similar)}; "
            "none of them gives them alone. Pass the name of the layer whose output are the features, "
            "feature_layer=..., or features=False."
        )
    return similar[0] if similar else None, given


def _pooled(entered: Any, left: Tensor, logits: Tensor, pooling: str | None, mask: Tensor | None) -> Tensor:
    """What went into the last layer, (n, d); of tokens those that the logits were made of."""
    assert isinstance(entered, Tensor)
    if entered.ndim != 3 or pooling is None:
        return averaged(entered, "the input of the last layer", mask)
    if pooling == _MEAN:
        return _mean_of_tokens(entered, mask)
    place = (left - logits[:, None]).abs().amax(dim=2).argmin(dim=1)
    return entered[torch.arange(len(entered), device=entered.device), place]


def _head(layer: _LinearLayer, features: Tensor | None) -> Head | None:
    """The layer's numbers, if it makes the logits of its input, and that is the features where these are given."""
    inputs = layer.entered
    if inputs is None or inputs.ndim != 2 or (features is not None and not _equal(features, inputs)):
        return None
    if not _equal(functional.linear(inputs, layer.module.weight, layer.module.bias), layer.logits):
        return None  # a class of its own that scales its weights
    weight = layer.module.weight.detach()
    bias = weight.new_zeros(len(weight)) if layer.module.bias is None else layer.module.bias.detach()
    return Head(weight.float().cpu().numpy().copy(), bias.float().cpu().numpy().copy())


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers but for rounding in their precision."""
    if a.shape != b.shape:
        return False
    a, b = a.to(torch.float64), b.to(torch.float64)
    return torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))
