"""Inputs batch by batch, from tensors, arrays, data sets, loaders, or batches already made."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._progress import QUIET_SECONDS, bar
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, check_name

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset

InputData: TypeAlias = "Tensor | NDArray[Any] | Dataset[Any] | DataLoader[Any] | Mapping[str, Any] | Iterable[Any]"
"""What :class:`BatchReader` understands."""

Inputs: TypeAlias = "Tensor | NDArray[Any] | dict[str, Tensor | NDArray[Any]]"
"""What a network is called with: one array, or several by the names of its arguments."""


class Batch(NamedTuple):
    """Some inputs, and their labels where the data has any."""

    inputs: Inputs
    labels: NDArray[Any] | None
    paths: list[str] = []  # noqa: RUF012 - never changed
    """Where each came from, where that is known."""

    @property
    def n_rows(self) -> int:
        """The number of inputs."""
        return n_inputs(self.inputs)


def n_inputs(inputs: Inputs) -> int:
    """How many inputs there are."""
    return len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)


def some_inputs(inputs: Any, start: int, stop: int) -> Any:
    """The rows from ``start`` to ``stop`` of an array, or of several by name or in a tuple."""
    if isinstance(inputs, Mapping):
        return {name: value[start:stop] for name, value in inputs.items()}
    return [column[start:stop] for column in inputs] if isinstance(inputs, tuple) else inputs[start:stop]


class BatchReader:
    """Inputs in a fixed order, in batches; ``n_rows`` is None where only the end will tell."""

    def __init__(self, data: InputData | Any, batch_size: int) -> None:
        """Find out what kind of data it is; nothing is read yet."""
        size = _validate.at_least(batch_size, "batch_size", 1)
        self.n_rows: int | None = None
        loading = sys.modules.get("torch.utils.data")  # nobody has a data set of torch without it
        if loading is not None and isinstance(data, loading.TensorDataset):
            data = data.tensors
        columns = list(data.values()) if isinstance(data, Mapping) else data if isinstance(data, tuple) else (data,)
        if _is_array(data) or _is_pair(data) or (isinstance(data, Mapping) and data and all(map(_is_array, columns))):
            lengths = {len(column) for column in columns}
            if len(lengths) != 1:
                raise InvalidInput(f"images and labels must have equal lengths; got {sorted(lengths)}.")
            n_rows = self.n_rows = lengths.pop()
            self._items: Iterable[Any] = (some_inputs(data, a, a + size) for a in range(0, n_rows, size))
        elif loading is not None and isinstance(data, (loading.Dataset, loading.DataLoader)):
            loader = loading.DataLoader(data, size) if isinstance(data, loading.Dataset) else data
            is_open = isinstance(loader.dataset, loading.IterableDataset) or loader.batch_size is None
            if isinstance(loader.sampler, Sized) and not is_open and not loader.drop_last:
                self.n_rows = len(loader.sampler)
            self._items = loader
        elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
            self._items = data
            self.n_rows = getattr(data, "n_images", None)
        else:
            raise InvalidInput(
                "data must be a tensor or array of images, a torch Dataset or DataLoader, an iterable of (images, "
                f"labels) batches or of dictionaries, or the path of a folder or file; got {type(data).__name__}."
            )

    def batches(self) -> Iterator[Batch]:
        """All rows."""
        position = 0
        for item in self._items:
            batch = _as_batch(item, position)
            position += batch.n_rows
            yield batch


def array_name(module: str) -> str:
    """What a module's activations are called in :class:`~normscale.ModelOutputs`.

    Other signs than letters and digits become underscores; ``layer_`` comes before what could not be, or already is,
    an array's name.

    Examples
    --------
    >>> [array_name(module) for module in ("stage1", "stage1.0.conv1", "3", "features", "head", "/relu_out.0")]
    ['stage1', 'stage1_0_conv1', 'layer_3', 'layer_features', 'layer_head', 'relu_out_0']
    """
    name = "".join(letter if letter.isalnum() else "_" for letter in module).strip("_")
    if name in (LOGITS, FEATURES):
        return f"layer_{name}"
    try:
        return check_name(name)
    except InvalidInput:
        return check_name(f"layer_{name}")


def announced(batches: Iterable[Batch], doing: str, *, total: int | None, show: bool = True) -> Iterator[Batch]:
    """Pass batches on; once it takes longer than two seconds, a terminal gets a bar with speed and time left."""
    done, start = 0, time.monotonic()
    with bar(doing, total, quiet_seconds=QUIET_SECONDS, wanted=show) as line:
        for batch in batches:
            yield batch
            done += batch.n_rows
            line.at(done, f"{doing}, {done / max(time.monotonic() - start, 1e-3):,.0f} inputs/s")


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "detach") and hasattr(value, "ndim"))


def _is_pair(value: Any) -> bool:
    """Images and labels as two arrays; two batches of images would both have more than one axis."""
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_array, value)) and value[1].ndim == 1


def _as_batch(item: Any, row: int) -> Batch:
    """Inputs and labels out of what the data yields."""
    if isinstance(item, Mapping) and item:
        named = {str(name): value for name, value in item.items()}
        labels = next((named.pop(name) for name in ("labels", "label") if name in named), None)
        inputs: Any = {name: value for name, value in named.items() if _is_array(value)}
        if not inputs:
            raise InvalidInput(f"a batch that is a dictionary needs arrays; at row {row} it holds {', '.join(item)}.")
        lengths = {len(value) for value in inputs.values()}
        if len(lengths) > 1:
            raise InvalidInput(f"the arrays of a batch must have equal lengths; at row {row}: {sorted(lengths)}.")
        pictures = [inputs[name] for name in ("pixel_values", "image", "images") if name in inputs]
    else:
        if _is_array(item):
            item = [item]
        if not isinstance(item, (tuple, list)) or not item or not _is_array(item[0]):
            raise InvalidInput(
                f"a batch must be images, (images, labels), or a dictionary of what the model's forward takes; at row "
                f"{row} the data gave {type(item).__name__}."
            )
        inputs, labels = item[0], item[1] if len(item) > 1 else None
        pictures = [inputs]
    for images in pictures:
        if images.ndim < 2:
            raise InvalidInput(
                f"images must come in batches, (n, channels, height, width); at row {row} the data gave shape "
                f"{tuple(images.shape)}."
            )
        if str(images.dtype).endswith("uint8"):
            raise InvalidInput(
                "images must be normalised as in training; got uint8 pixels. For example: "
                "(images.float() / 255 - mean) / std."
            )
    if labels is None:
        return Batch(inputs, None)
    count = n_inputs(inputs)
    known = np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels)
    if known.shape != (count,):
        raise InvalidInput(
            f"labels must have shape ({count},), one class number per image; at row {row} the data gave "
            f"shape {tuple(known.shape)}."
        )
    return Batch(inputs, known)
