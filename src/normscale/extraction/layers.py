"""Read a network's logits, its penultimate layer and further layers by hooks, and find its last linear layer.

A layer's activations go by the name of its module, as :func:`array_name` writes it; maps are averaged over
space and tokens over their sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscale.errors import InvalidInput
from normscale.extraction.evaluation import called, logits_of
from normscale.outputs import FEATURES, LOGITS, Head, check_name

Layers: TypeAlias = "str | Sequence[str] | None"
"""Which layers to read besides logits and features: none, ``"all"`` (the network's ``stage_names``), or modules."""

_INPUT = "input of "
_MASK = "attention_mask"
Look: TypeAlias = "Tensor | dict[str, Tensor]"
"""What a network is called with."""


class LayerReader:
    """Runs a network on batches and gives logits, features and further layers, (n, d) each, by name.

    Parameters
    ----------
    model : nn.Module
        Not wrapped, and in evaluation mode when it is run.
    layers : None, "all", or names of modules
    features : bool
        Whether to read the penultimate layer.
    feature_layer : str, optional
        The module whose output is the penultimate layer; by default the input of the linear layer that the logits come
        from, found by a look at the first two inputs.

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
        self.feature_layer = feature_layer
        self.head: Head | None = None
        self.found = ""
        self._last: _LinearLayer | None = None
        self._looked = False
        self._reads_features = features
        if features and feature_layer is not None:
            module_of(model, feature_layer)

    def read(self, inputs: Look) -> dict[str, Tensor]:
        """Logits, features and layers of inputs that are where the network is."""
        if not self._looked:
            self._look(
                {k: v[:2].clone() for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[:2].clone()
            )
            self._looked = True
        last = self._last
        mask = inputs.get(_MASK) if isinstance(inputs, dict) else None
        with reading(self.model, self.modules.values(), mask) as found, _calls(last.name if last else None) as calls:
            logits = logits_of(calls.run(self.model, inputs))
            if last is not None and last.name in calls.of:
                entered, left = calls.of[last.name]
                if last.ending is not None:  # a model may change it later, in place
                    logits = left
                if self._reads_features and self.feature_layer is None:
                    found[_INPUT + last.name] = _pooled(entered, left, logits, last.pooling, mask)
            arrays = {LOGITS: logits}
            return arrays | {name: _taken(found, module) for name, module in self.modules.items()}

    def _look(self, inputs: Look) -> None:
        named = self.feature_layer if self._reads_features else None
        mask = inputs.get(_MASK) if isinstance(inputs, dict) else None
        with reading(self.model, () if named is None else (named,), mask) as found:
            last = _last_linear_layer(self.model, inputs, choose=self._reads_features and named is None)
            given = None if named is None else _taken(found, named)
        self._last = last
        if last is not None and last.ending is not None:
            self.found = f"the model ends in a {last.ending}: logits are what {last.name!r} gives before it. "
        if not self._reads_features:
            return
        if named is None and last is None:
            raise InvalidInput(
                "no linear layer gives the model's logits, so its penultimate layer is not known; pass the name of "
                f"the layer whose output are the features, feature_layer=...; it has {_listed(self.model)}. "
                "Logits alone: features=False."
            )
        source = named if named is not None else _INPUT + last.name if last is not None else ""
        self.modules = {FEATURES: source, **self.modules}
        pooled = f", {last.pooling}" if last is not None and last.pooling is not None else ""
        self.found += f"features: {source!r}{pooled if named is None else ''}."
        if last is not None:
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
        module_of(model, module)
        name = array_name(module)
        if name in modules:
            raise InvalidInput(
                f"layers must be different modules with different names; {modules[name]!r} and {module!r} "
                f"would both be {name}."
            )
        modules[name] = module
    return modules


def array_name(module: str) -> str:
    """What a module's activations are called in :class:`~normscale.ModelOutputs`.

    Dots become underscores; ``layer_`` comes before what could not be, or already is, an array's name.

    Examples
    --------
    >>> [array_name(module) for module in ("stage1", "stage1.0.conv1", "3", "features", "head")]
    ['stage1', 'stage1_0_conv1', 'layer_3', 'layer_features', 'layer_head']
    """
    name = module.replace(".", "_")
    if name in (LOGITS, FEATURES):
        return f"layer_{name}"
    try:
        return check_name(name)
    except InvalidInput:
        return check_name(f"layer_{name}")


# -- hooks -----------------------------------------------------------------------------------------------------


@contextmanager
def reading(model: nn.Module, layers: Iterable[str], mask: Tensor | None = None) -> Iterator[dict[str, Tensor]]:
    """A dictionary that every forward pass fills with the layers' outputs, (n, d), averaged over space or tokens.

    ``mask`` says which tokens count. The average, or a copy, is taken at once: later modules may work in place, and
    whole maps would cost memory.
    """
    found: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for layer in layers:
            if not layer.startswith(_INPUT):
                stack.callback(module_of(model, layer).register_forward_hook(_keep_output(found, layer, mask)).remove)
        yield found


def _keep_output(found: dict[str, Tensor], layer: str, mask: Tensor | None) -> Any:
    def hook(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        found[layer] = averaged(output, layer, mask)

    return hook


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


def _mean_of_tokens(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the tokens that count, so that padding makes no difference."""
    if mask is None or mask.shape != tokens.shape[:2]:
        return tokens.mean(dim=1)
    weight = mask.to(tokens.dtype)[..., None]
    return (tokens * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)


def _taken(found: dict[str, Tensor], layer: str) -> Tensor:
    """What :func:`reading` found, or an error if the layer took no part."""
    if layer not in found:
        raise InvalidInput(f"layer {layer!r} did not run in the model's forward pass; choose one that does.")
    return found[layer]


def module_of(model: nn.Module, name: str) -> nn.Module:
    """The module called ``name``, or an error that lists what there is."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if name in modules:
        return modules[name]
    raise InvalidInput(f"the model has no layer {name!r}; it has {_listed(model)}.")


def _listed(model: nn.Module, most: int = 12) -> str:
    """Names of layers for a message: the last ones, since features come late."""
    names = [name for name, _ in model.named_modules() if name]
    if not names:
        return "no named layers"
    listed = ", ".join(repr(name) for name in names[-most:])
    return listed if len(names) <= most else f"{len(names)} layers, the last of them {listed}"


# -- the last linear layer -------------------------------------------------------------------------------------


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


class _calls:  # noqa: N801 - a context, used like a function
    """Keeps what goes into linear layers and what comes out: into one by name, or into all of them."""

    def __init__(self, name: str | None, every: bool = False) -> None:
        self.of: dict[str, tuple[Any, Tensor]] = {}
        self._name, self._every = name, every
        self._stack = ExitStack()

    def __enter__(self) -> _calls:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, model: nn.Module, inputs: Look) -> Any:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and (self._every or name == self._name):
                self._stack.callback(module.register_forward_hook(self._hook(name), with_kwargs=True).remove)
        return called(model, inputs)

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
            self.of.pop(name, None)  # so that the order is that of the last call
            entered = arguments[0] if arguments else named.get("input")
            if isinstance(entered, Tensor) and entered.ndim == 2:
                entered = entered.clone()  # a later module may work on it in place
            self.of[name] = entered, output

        return hook


def _last_linear_layer(model: nn.Module, inputs: Look, *, choose: bool) -> _LinearLayer | None:
    """The linear layer that the logits of a few inputs come from, if there is one.

    It is the one whose output, or one token of it, the model returns, as it is or behind a softmax; or else the only
    one with as many outputs as there are classes. Where several could be, ``choose`` makes that an error.
    """
    with _calls(None, every=True) as calls:
        logits = logits_of(calls.run(model, inputs))
    mask = inputs.get(_MASK) if isinstance(inputs, dict) else None
    similar: list[_LinearLayer] = []
    for name, (entered, left) in reversed(calls.of.items()):
        module = module_of(model, name)
        assert isinstance(module, nn.Linear)
        layer = _LinearLayer(name, module, entered if isinstance(entered, Tensor) else None, logits)
        if left is logits:
            return layer
        if left.shape == logits.shape:
            similar.append(layer)
            for ending, squashed in _endings(left):
                if _equal(squashed, logits):
                    return layer._replace(ending=ending, logits=left)
        elif left.ndim == 3 and (left.shape[0], left.shape[2]) == tuple(logits.shape) and layer.entered is not None:
            for pooling in ("the token that the logits are of", "the mean over tokens"):
                if _equal(_pooled(left, left, logits, pooling, mask), logits):
                    return layer._replace(pooling=pooling, entered=_pooled(layer.entered, left, logits, pooling, mask))
    if len(similar) > 1 and choose:
        raise InvalidInput(
            f"several linear layers could give the model's logits: {', '.join(repr(one.name) for one in similar)}; "
            "none of them gives them alone. Pass the name of the layer whose output are the features, "
            "feature_layer=..., or features=False."
        )
    return similar[0] if similar else None


def _endings(left: Tensor) -> Iterator[tuple[str | None, Tensor]]:
    yield None, left
    yield "log-softmax", left.log_softmax(dim=1)
    yield "softmax", left.softmax(dim=1)
    yield "sigmoid", left.sigmoid()


def _pooled(entered: Any, left: Tensor, logits: Tensor, pooling: str | None, mask: Tensor | None) -> Tensor:
    """What went into the last layer, (n, d); of tokens those that the logits were made of."""
    assert isinstance(entered, Tensor)
    if entered.ndim == 3 and pooling is not None:
        if pooling.startswith("the mean"):
            return _mean_of_tokens(entered, mask)
        place = (left - logits[:, None]).abs().amax(dim=2).argmin(dim=1)
        return entered[torch.arange(len(entered), device=entered.device), place]
    return averaged(entered, "the input of the last layer", mask)


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
