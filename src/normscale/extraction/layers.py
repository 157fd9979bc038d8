"""Read a network's logits, its penultimate layer and further layers by hooks, and find its last linear layer.

A layer's activations go by the name of its module, as :func:`array_name` writes it; maps are averaged over space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscale.errors import InvalidInput
from normscale.extraction.evaluation import logits_of
from normscale.outputs import FEATURES, LOGITS, Head, check_name

Layers: TypeAlias = "str | Sequence[str] | None"
"""Which layers to read besides logits and features: none, ``"all"`` (the network's ``stage_names``), or modules."""

_INPUT = "input of "


class LayerReader:
    """Runs a network on batches of images and gives logits, features and further layers, (n, d) each, by name.

    Parameters
    ----------
    model : nn.Module
        Not wrapped, and in evaluation mode when it is run.
    layers : None, "all", or names of modules
    features : bool
        Whether to read the penultimate layer.
    feature_layer : str, optional
        The module whose output is the penultimate layer; by default the input of the linear layer that the logits come
        from, found by a look at the first images.

    Attributes
    ----------
    head : Head or None
        The linear layer that makes the logits of the features; None until a batch was read, and where the logits come
        from something else or ``feature_layer`` is not what goes into it.
    """

    def __init__(
        self, model: nn.Module, layers: Layers = None, *, features: bool = True, feature_layer: str | None = None
    ) -> None:
        """Check the names; nothing is run."""
        self.model = model
        self.modules = layer_modules(model, layers)
        self.feature_layer = feature_layer
        self.head: Head | None = None
        self._reads_features = features
        if features and feature_layer is not None:
            module_of(model, feature_layer)

    def read(self, images: Tensor) -> dict[str, Tensor]:
        """Logits, features and layers of images that are where the network is."""
        if self._reads_features and FEATURES not in self.modules:
            self._find_features(images[:2].clone())  # a model may change its input
        with reading(self.model, self.modules.values()) as found:
            arrays = {LOGITS: logits_of(self.model(images))}
            return arrays | {name: _taken(found, module) for name, module in self.modules.items()}

    def _find_features(self, images: Tensor) -> None:
        named = self.feature_layer
        with reading(self.model, () if named is None else (named,)) as found:
            logits, last = _last_linear_layer(self.model, images)
            given = None if named is None else _taken(found, named)
        if given is None:
            if last is None:
                raise InvalidInput(
                    "no linear layer gives the model's logits, so its penultimate layer is not known; pass the name of "
                    f"the layer whose output are the features, feature_layer=...; it has {_listed(self.model)}. "
                    "Logits alone: features=False."
                )
            source = _INPUT + last.name
        else:
            assert named is not None
            source = named
        self.modules = {FEATURES: source, **self.modules}
        if last is not None:
            self.head = _head(last, logits, given)


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
def reading(model: nn.Module, layers: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """A dictionary that every forward pass fills with the layers' activations, (n, d), averaged over space.

    ``"input of <name>"`` is what goes into a module, any other name what comes out of it.
    The average, or a copy, is taken at once: later modules may work in place, and whole maps would cost memory.
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
            raise InvalidInput(
                f"{layer} is passed by keyword, where it cannot be read; pass feature_layer= another name."
            )
        found[layer] = averaged(arguments[0], layer)

    return hook


def _keep_output(found: dict[str, Tensor], layer: str) -> Any:
    def hook(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        found[layer] = averaged(output, layer)

    return hook


def averaged(activation: Any, layer: str) -> Tensor:
    """A copy of activations (n, d); maps (n, d, height, width) by their mean over space."""
    if isinstance(activation, Tensor):
        if activation.ndim == 2:
            return activation.clone()
        if activation.ndim >= 4:
            return activation.mean(dim=tuple(range(2, activation.ndim)))
        shape = f"the shape {tuple(activation.shape)}"
    else:
        shape = f"a {type(activation).__name__}"
    raise InvalidInput(
        f"layer {layer!r} must give activations (n, d) or maps (n, d, height, width); it gives {shape}. "
        "Choose another layer, or put a module behind it that averages as it should be."
    )


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
    """A linear layer, and what went into it."""

    name: str
    module: nn.Linear
    arguments: tuple[Any, ...]


def _last_linear_layer(model: nn.Module, images: Tensor) -> tuple[Tensor, _LinearLayer | None]:
    """The logits of a few images, and the linear layer they come from, if there is one.

    Of several it is the one whose output the model returns, or else the last one that ran and has as many outputs as
    there are classes.
    """
    ran: dict[str, tuple[_LinearLayer, Tensor]] = {}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):

                def hook(module: nn.Module, arguments: Any, output: Tensor, name: str = name) -> None:
                    assert isinstance(module, nn.Linear)
                    ran.pop(name, None)  # so that the order is that of the last call
                    ran[name] = _LinearLayer(name, module, arguments), output

                stack.callback(module.register_forward_hook(hook).remove)
        logits = logits_of(model(images))
    same = [layer for layer, output in ran.values() if output is logits]
    similar = [layer for layer, output in reversed(ran.values()) if output.shape == logits.shape]
    return logits, next(iter((*same, *similar)), None)


def _head(layer: _LinearLayer, logits: Tensor, features: Tensor | None) -> Head | None:
    """The layer's numbers, if it makes the logits of its input, and that is the features where these are given."""
    inputs = layer.arguments[0] if layer.arguments else None
    if not isinstance(inputs, Tensor) or inputs.ndim != 2:
        return None
    if features is not None and not _equal(features, inputs):
        return None
    if not _equal(functional.linear(inputs, layer.module.weight, layer.module.bias), logits):
        return None  # a class of its own that scales its weights, or a softmax behind it
    weight = layer.module.weight.detach()
    bias = weight.new_zeros(len(weight)) if layer.module.bias is None else layer.module.bias.detach()
    return Head(weight.float().cpu().numpy().copy(), bias.float().cpu().numpy().copy())


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers but for rounding in their precision."""
    if a.shape != b.shape:
        return False
    a, b = a.to(torch.float64), b.to(torch.float64)
    return torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))
