"""A torch network that is being run: logits, features and layers of one batch after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from normscale import _validate
from normscale.errors import InvalidInput, first_line
from normscale.extraction.batch_reader import Inputs, finite, n_inputs, some_inputs
from normscale.extraction.layers import LastLayer, Layers, find_last_layer, forward, layer_modules, pooled, token_mask
from normscale.outputs import FEATURES, LOGITS, Head

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""In what precision a network is run; float32 is the network's own."""


class TorchNetwork:
    """Runs a network without gradients and gives logits, features and further layers, (n, d) each, by name.

    Options are those of :func:`normscale.extraction.extract`. ``model`` is the network itself, without what compiles it
    or spreads it over devices; ``head`` the linear layer that makes the logits of the features, known once a batch was
    read.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Layers = None,
        features: bool = True,
        feature_layer: str | None = None,
        device: str | torch.device | None = None,
        dtype: str = "float32",
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Check names and options; nothing is run."""
        self.model = unwrapped(model)
        self.head: Head | None = None
        self._features, self._feature_layer = features, feature_layer if features else None
        self._layers = layer_modules(self.model, layers, self._feature_layer)
        self._lower = DTYPES[_validate.one_of(dtype, "dtype", tuple(DTYPES))]
        self._device, self._say = _usable(device), say
        self._largest_batch: int | None = None
        self._last: LastLayer | None = None

    @property
    def class_names(self) -> dict[str, int] | None:
        """The classes by name, where the network's record has them, as those of transformers do."""
        names = getattr(getattr(self.model, "config", None), "label2id", None)
        return {str(name): int(number) for name, number in names.items()} if isinstance(names, dict) else None

    def running(self) -> AbstractContextManager[None]:
        """Evaluation mode on the device that was asked for."""
        return evaluating(self.model, self._device)

    def read(self, inputs: Inputs, first_row: int, prefix: str = "") -> dict[str, NDArray[np.float32]]:
        """The arrays of a batch, their names behind a prefix; an error names the row that is not finite."""
        placed, is_first = to_network(inputs, self.model), self._last is None
        tensors = self._in_memory(placed, self._lower)
        if is_first and self._lower is not None:
            self._compare(placed, tensors[LOGITS])
        return finite({prefix + name: tensor.float().cpu().numpy() for name, tensor in tensors.items()}, first_row)

    def _in_memory(self, inputs: Any, lower: torch.dtype | None) -> dict[str, Tensor]:
        """Run a batch; one that is too large for the device's memory in halves, as all that follow."""
        count = size = n_inputs(inputs)
        while True:
            size = min(size, self._largest_batch or size)
            try:
                parts = [self._run(some_inputs(inputs, start, start + size), lower) for start in range(0, count, size)]
                return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            except torch.OutOfMemoryError as error:
                where, _ = device_and_dtype(self.model)
                if size == 1:
                    raise InvalidInput(f"one input alone is too large for the memory of {where} ({error}).") from error
            self._say(f"{size} inputs at once are too many for the memory of {where}; going on with {size // 2}.")
            self._largest_batch = size // 2

    def _run(self, inputs: Any, lower: torch.dtype | None) -> dict[str, Tensor]:
        device, _ = device_and_dtype(self.model)
        precision = nullcontext() if lower is None else torch.autocast(device.type, dtype=lower)
        try:
            with torch.inference_mode(), precision:
                return self._forward(inputs)
        except (torch.OutOfMemoryError, InvalidInput):
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AssertionError) as error:
            shapes = {n: tuple(v.shape) for n, v in inputs.items()} if isinstance(inputs, dict) else tuple(inputs.shape)
            raise InvalidInput(
                f"the model fails on inputs of shape {shapes}: {first_line(error)}. Check that they have the size and "
                "the names that it was made for."
            ) from error

    def _forward(self, inputs: Any) -> dict[str, Tensor]:
        finds_features = self._features and self._feature_layer is None
        if self._last is None:
            self._last = find_last_layer(self.model, some_inputs(inputs, 0, 2), self._feature_layer, finds_features)
            self.head = self._last.head if self._features else None
            if self._last.ending is not None:
                self._say(
                    f"the model ends in a {self._last.ending}: logits are what {self._last.name!r} gives before it."
                )
        last = self._last
        run = forward(self.model, inputs, self._layers.values(), (last.name,))
        arrays = {LOGITS: run.logits}
        if last.name in run.calls:
            entered, left = run.calls[last.name]
            if last.ending is not None:  # a model may change it later, in place
                arrays[LOGITS] = left
            if finds_features:
                arrays[FEATURES] = pooled(entered, left, arrays[LOGITS], last.takes_token, token_mask(inputs))
        return arrays | {name: run.outputs[layer] for name, layer in self._layers.items()}

    def _compare(self, inputs: Any, logits: Tensor) -> None:
        """Say how far the lower precision is from float32 on the first batch."""
        exact = self._in_memory(inputs, None)[LOGITS].float()
        far = float((logits.float() - exact).abs().max())
        same = int((logits.argmax(dim=1) == exact.argmax(dim=1)).sum())
        width = float(exact.max() - exact.min())
        self._say(
            f"{str(self._lower).removeprefix('torch.')}: on the first {len(exact)} inputs the logits are at most "
            f"{far:.3g} off float32's, which span {width:.3g}; {same} of {len(exact)} predicted classes are the same."
        )


def unwrapped(model: Any) -> nn.Module:
    """The network itself, out of what compiles it or spreads it over devices: only there do hooks work."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    if hasattr(model, "_orig_mod"):  # of torch.compile
        return unwrapped(model._orig_mod)
    return unwrapped(model.module) if isinstance(model, (DataParallel, DistributedDataParallel)) else model


def _usable(device: str | torch.device | None) -> str | torch.device | None:
    """The device that was asked for; one that this machine or this torch does not have is an error."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInput(
            f"nothing runs on the device {str(device)!r} here ({first_line(error)}). Leave device out."
        ) from error
    return device


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
