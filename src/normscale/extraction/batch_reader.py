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

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset

InputData: TypeAlias = "Tensor | NDArray[Any] | Dataset[Any] | DataLoader[Any] | Mapping[str, Any] | Iterable[Any]"
"""What :func:`read_batches` takes."""

Inputs: TypeAlias = "Tensor | NDArray[Any] | dict[str, Tensor | NDArray[Any]]"
"""What a network is called with: one array, or several by the names of its arguments."""


class Batch(NamedTuple):
    """Some inputs, and their labels where the data has any."""

    inputs: Inputs
    labels: NDArray[Any] | None
    paths: list[str] = []  # noqa: RUF012 - never changed
    """Where each came from, where that is known."""


def n_inputs(inputs: Inputs) -> int:
    """How many inputs there are."""
    return len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)


def some_inputs(inputs: Any, start: int, stop: int) -> Any:
    """The rows from ``start`` to ``stop`` of an array, or of several by name or in a tuple."""
    if isinstance(inputs, Mapping):
        return {name: value[start:stop] for name, value in inputs.items()}
    return [column[start:stop] for column in inputs] if isinstance(inputs, tuple) else inputs[start:stop]


def finite(arrays: dict[str, NDArray[np.float32]], first_row: int) -> dict[str, NDArray[np.float32]]:
    """The outputs of a batch as they are; an error names the row that holds NaN or infinity."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise _validate.invalid_row_error(array, name, first_row=first_row)
    return arrays


def read_batches(data: Any, batch_size: int) -> tuple[int | None, Iterator[Batch]]:
    """How many rows there are, None where only the end will tell; and the rows in batches, in a fixed order."""
    size = _validate.at_least(batch_size, "batch_size", 1)
    loading: Any = sys.modules.get("torch.utils.data")  # nobody has a data set of torch without it
    if loading is not None and isinstance(data, loading.TensorDataset):
        data = data.tensors if len(data.tensors) > 1 else data.tensors[0]
    columns = list(data.values()) if isinstance(data, Mapping) else data if _is_table(data) else (data,)
    if columns and all(map(_is_array, columns)):
        lengths = {len(column) for column in columns}
        if len(lengths) != 1:
            raise InvalidInput(f"images and labels must have equal lengths; got {sorted(lengths)}.")
        n_rows = lengths.pop()
        return n_rows, _checked(some_inputs(data, start, start + size) for start in range(0, n_rows, size))
    if loading is not None and isinstance(data, (loading.Dataset, loading.DataLoader)):
        loader = loading.DataLoader(data, size) if isinstance(data, loading.Dataset) else data
        is_open = isinstance(loader.dataset, loading.IterableDataset) or loader.batch_size is None
        is_counted = isinstance(loader.sampler, Sized) and not is_open and not loader.drop_last
        return len(loader.sampler) if is_counted else None, _checked(loader)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        return getattr(data, "n_images", None), _checked(data)
    raise InvalidInput(
        "data must be a tensor or array of images, a torch Dataset or DataLoader, an iterable of (images, labels) "
        f"batches or of dictionaries, or the path of a folder or file; got {type(data).__name__}."
    )


def numbered(
    batches: Iterable[Batch], doing: str, *, total: int | None, first: int = 0, show: bool = True
) -> Iterator[tuple[int, Batch]]:
    """Each batch with the number of its first row; a terminal gets a bar once it takes longer than two seconds."""
    done, start = 0, time.monotonic()
    with bar(doing, total, quiet_seconds=QUIET_SECONDS, wanted=show) as line:
        for batch in batches:
            yield first + done, batch
            done += n_inputs(batch.inputs)
            line.at(done, f"{doing}, {done / max(time.monotonic() - start, 1e-3):,.0f} inputs/s")


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "detach") and hasattr(value, "ndim"))


def _is_table(value: Any) -> bool:
    """Whether arrays are images and labels; two batches of images would both have more than one axis."""
    return isinstance(value, tuple) and len(value) > 1 and all(map(_is_array, value)) and value[1].ndim == 1


def _checked(items: Iterable[Any]) -> Iterator[Batch]:
    """Inputs and labels out of what the data yields."""
    row = 0
    for item in items:
        inputs, labels = _inputs_and_labels(item, row)
        count = n_inputs(inputs)
        if labels is not None:
            labels = np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels)
            if labels.shape != (count,):
                raise InvalidInput(
                    f"labels must have shape ({count},), one class number per image; at row {row} the data gave "
                    f"shape {labels.shape}."
                )
        yield Batch(inputs, labels)
        row += count
    if row == 0:
        raise InvalidInput("data holds no images; at least one is needed.")


def _inputs_and_labels(item: Any, row: int) -> tuple[Any, Any]:
    inputs: Any
    if isinstance(item, Mapping) and item:
        named = {str(name): value for name, value in item.items()}
        labels = next((named.pop(name) for name in ("labels", "label") if name in named), None)
        inputs = {name: value for name, value in named.items() if _is_array(value)}
        if not inputs:
            raise InvalidInput(f"a batch that is a dictionary needs arrays; at row {row} it holds {', '.join(item)}.")
        lengths = {len(value) for value in inputs.values()}
        if len(lengths) > 1:
            raise InvalidInput(f"the arrays of a batch must have equal lengths; at row {row}: {sorted(lengths)}.")
        images = [inputs[name] for name in ("pixel_values", "image", "images") if name in inputs]
    else:
        parts = [item] if _is_array(item) else item
        if not isinstance(parts, (tuple, list)) or not parts or not _is_array(parts[0]):
            raise InvalidInput(
                f"a batch must be images, (images, labels), or a dictionary of what the model's forward takes; at row "
                f"{row} the data gave {type(item).__name__}."
            )
        inputs, labels, images = parts[0], parts[1] if len(parts) > 1 else None, [parts[0]]
    for one in images:
        if one.ndim < 2:
            raise InvalidInput(
                f"images must come in batches, (n, channels, height, width); at row {row} the data gave shape "
                f"{tuple(one.shape)}."
            )
        if str(one.dtype).endswith("uint8"):
            raise InvalidInput(
                "images must be normalised as in training; got uint8 pixels. For example: "
                "(images.float() / 255 - mean) / std."
            )
    return inputs, labels
