"""A torch network that is being run: logits, features and layers of one batch after another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscale import _validate
from normscale.errors import InvalidInput
from normscale.extraction.batch_reader import Inputs, n_inputs, some_inputs
from normscale.extraction.evaluation import device_and_dtype, evaluating, to_network, unwrapped
from normscale.extraction.layers import LayerReader
from normscale.outputs import LOGITS, Head

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""In what precision a network is run; float32 is the network's own."""


class TorchNetwork:
    """Runs a network without gradients; :meth:`running` puts it into evaluation mode and back."""

    def __init__(
        self,
        model: nn.Module,
        say: Callable[[str], object],
        *,
        device: str | torch.device | None = None,
        dtype: str = "float32",
        **read: Any,
    ) -> None:
        """Check names and options; ``read`` is what :class:`LayerReader` takes. Nothing is run."""
        self.model = unwrapped(model)
        self._reader = LayerReader(self.model, **read)
        self._lower = DTYPES[_validate.one_of(dtype, "dtype", tuple(DTYPES))]
        self._device, self._say = device, say
        self._most: int | None = None
        self._is_first = True

    @property
    def head(self) -> Head | None:
        """The network's last layer, once a batch was read."""
        return self._reader.head

    @property
    def class_names(self) -> dict[str, int] | None:
        """The classes by name, where the network's record has them, as those of transformers do."""
        names = getattr(getattr(self.model, "config", None), "label2id", None)
        return {str(name): int(number) for name, number in names.items()} if isinstance(names, dict) else None

    def running(self) -> AbstractContextManager[None]:
        """Evaluation mode on the device that was asked for."""
        return evaluating(self.model, self._device)

    def read(self, inputs: Inputs, first_row: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """The arrays of a batch, float32; an error names the row that is not finite."""
        where, dtype = device_and_dtype(self.model)
        if isinstance(inputs, dict):
            placed: Any = {name: to_network(value, where, dtype) for name, value in inputs.items()}
        else:
            placed = to_network(inputs, where, dtype)
        found = self._halved(placed, where)
        if self._is_first:
            self._is_first = False
            if self._reader.found and not self._reader.found.startswith("features"):
                self._say(self._reader.found)
            if self._lower is not None:
                self._compare(placed, found[LOGITS], where)
        return {name: as_finite_array(tensor, name, first_row) for name, tensor in found.items()}

    def _halved(self, inputs: Any, where: torch.device) -> dict[str, Tensor]:
        """Run a batch; one that is too large for the device's memory in halves, as all that follow."""
        count = n_inputs(inputs)
        while True:
            size = min(count, self._most or count)
            try:
                parts = [self._run(some_inputs(inputs, a, a + size), where) for a in range(0, count, size)]
                return parts[0] if len(parts) == 1 else {n: torch.cat([p[n] for p in parts]) for n in parts[0]}
            except torch.OutOfMemoryError as error:
                if size == 1:
                    raise InvalidInput(f"one input alone is too large for the memory of {where} ({error}).") from error
            self._most = size // 2
            self._say(f"{size} inputs at once are too many for the memory of {where}; going on with {self._most}.")

    def _run(self, inputs: Any, where: torch.device) -> dict[str, Tensor]:
        lower = nullcontext() if self._lower is None else torch.autocast(where.type, dtype=self._lower)
        try:
            with torch.inference_mode(), lower:
                return self._reader.read(inputs)
        except (torch.OutOfMemoryError, InvalidInput):
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AssertionError) as error:
            shapes = {n: tuple(v.shape) for n, v in inputs.items()} if isinstance(inputs, dict) else tuple(inputs.shape)
            message = str(error).strip().splitlines()
            raise InvalidInput(
                f"the model fails on inputs of shape {shapes}: {message[0] if message else type(error).__name__}. Have "
                "they the size and the arguments that it was made for?"
            ) from error

    def _compare(self, inputs: Any, logits: Tensor, where: torch.device) -> None:
        """Say how far the lower precision is from float32 on the first batch."""
        lower, self._lower = self._lower, None
        try:
            exact = self._halved(inputs, where)[LOGITS].float()
        finally:
            self._lower = lower
        far = float((logits.float() - exact).abs().max())
        same = int((logits.argmax(dim=1) == exact.argmax(dim=1)).sum())
        width = float(exact.max() - exact.min())
        self._say(
            f"{str(lower).removeprefix('torch.')}: on the first {len(exact)} inputs the logits are at most {far:.3g} "
            f"off float32's, which span {width:.3g}; {same} of {len(exact)} predicted classes are the same."
        )


def as_finite_array(tensor: Tensor, name: str, first_row: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor as float32 rows; an error that names the row where one is not finite."""
    array = tensor.float().cpu().numpy()
    if not np.isfinite(array).all():
        raise _validate.invalid_row_error(array, name, first_row=first_row)
    return array
