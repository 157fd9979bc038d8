"""Images batch by batch, from tensors, arrays, data sets, loaders, or batches already made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from normscale import _validate
from normscale._progress import QUIET_SECONDS, bar
from normscale.errors import InvalidInput

ImageData: TypeAlias = "Tensor | NDArray[Any] | Dataset[Any] | DataLoader[Any] | Iterable[Any]"
"""What :class:`BatchReader` understands."""


class Batch(NamedTuple):
    """Some images, and their labels where the data has any."""

    images: Tensor
    labels: Tensor | None


class BatchReader:
    """Images in a fixed order, in batches; ``n_rows`` is None where only the end will tell."""

    def __init__(self, data: ImageData, batch_size: int) -> None:
        """Find out what kind of data it is; nothing is read yet."""
        self.batch_size = _validate.at_least(batch_size, "batch_size", 1)
        self.n_rows: int | None = None
        self._columns: tuple[Any, ...] | None = None
        self._loader: Iterable[Any] = ()
        if isinstance(data, TensorDataset):
            data = data.tensors
        if _is_array(data) or _is_pair(data):
            self._columns = data if isinstance(data, tuple) else (data,)
            lengths = {len(column) for column in self._columns}
            if len(lengths) > 1:
                raise InvalidInput(f"images and labels must have equal lengths; got {sorted(lengths)}.")
            self.n_rows = lengths.pop()
        elif isinstance(data, Dataset):
            self._loader = DataLoader(data, batch_size=self.batch_size)
            self.n_rows = _rows_of(self._loader)
        elif isinstance(data, DataLoader):
            self._loader = data
            self.n_rows = _rows_of(data)
        elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, dict)):
            self._loader = data
            self.n_rows = getattr(data, "n_images", None)
        else:
            raise InvalidInput(
                "data must be a tensor or array of images, a torch Dataset or DataLoader, or an iterable of "
                f"(images, labels) batches; got {type(data).__name__}."
            )

    def batches(self) -> Iterator[Batch]:
        """All rows."""
        if self._columns is not None:
            assert self.n_rows is not None
            for a in range(0, self.n_rows, self.batch_size):
                yield _as_batch([column[a : a + self.batch_size] for column in self._columns], a)
            return
        position = 0
        for item in self._loader:
            batch = _as_batch(item, position)
            position += len(batch.images)
            yield batch

    def first(self) -> Batch:
        """The first batch, which is not lost: an iterator is put together again."""
        if self._columns is None and isinstance(self._loader, Iterator):
            item = next(self._loader, None)
            if item is not None:
                self._loader = chain([item], self._loader)
                return _as_batch(item, 0)
        else:
            for batch in self.batches():
                return batch
        raise InvalidInput("data holds no images; at least one is needed.")


def announced(batches: Iterable[Batch], doing: str, *, total: int | None, show: bool = True) -> Iterator[Batch]:
    """Pass batches on; once it takes longer than two seconds, a terminal gets a bar with the time left."""
    with bar(doing, total, quiet_seconds=QUIET_SECONDS, wanted=show) as line:
        for batch in batches:
            yield batch
            line.advance(len(batch.images))


def _rows_of(loader: DataLoader[Any]) -> int | None:
    """How many rows a loader will give, where that is certain."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None or loader.drop_last:
        return None
    return len(loader.sampler) if isinstance(loader.sampler, Sized) else None


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _is_pair(value: Any) -> bool:
    """Images and labels as two arrays; two batches of images would both have more than one axis."""
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_array, value)) and value[1].ndim == 1


def _as_batch(item: Any, row: int) -> Batch:
    """Images and labels out of what the data yields."""
    if _is_array(item):
        parts = [item]
    elif isinstance(item, (tuple, list)) and item and _is_array(item[0]):
        parts = list(item[:2])
    else:
        raise InvalidInput(
            f"a batch must be images or (images, labels); at row {row} the data gave {type(item).__name__}. "
            "Turn it into that: ((batch['image'], batch['label']) for batch in data)."
        )
    images = _tensor(parts[0])
    if images.ndim < 2:
        raise InvalidInput(
            f"images must come in batches, (n, channels, height, width); at row {row} the data gave shape "
            f"{tuple(images.shape)}."
        )
    if images.dtype == torch.uint8:
        raise InvalidInput(
            "images must be normalised as in training; got uint8 pixels. For example: "
            "(images.float() / 255 - mean) / std."
        )
    if len(parts) == 1:
        return Batch(images, None)
    labels = _tensor(parts[1]) if _is_array(parts[1]) else torch.as_tensor(parts[1])
    if labels.shape != (len(images),):
        raise InvalidInput(
            f"labels must have shape ({len(images)},), one class number per image; at row {row} the data gave "
            f"shape {tuple(labels.shape)}."
        )
    return Batch(images, labels)


def _tensor(value: Tensor | NDArray[Any]) -> Tensor:
    # copied: torch warns of arrays that may not be written to, such as memory maps
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
