"""Batches for a network: the set is one uint8 tensor; crop, flip and normalisation work on a whole batch at once.

There is no loop over pictures and no worker process. A random crop is a gather of rows: the batch is padded once, and
each row of each crop is one run of bytes in it. What is drawn depends on the seed and the epoch alone, so a training
that was interrupted goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch

from normscale._validate import at_least
from normscale.bench.data.image_set import ImageSet
from normscale.errors import InvalidInput

Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Normalised float32 images of shape (b, channels, height, width), and int64 labels of shape (b,)."""


class Batches:
    """A data set cut into batches, augmented and normalised.

    Parameters
    ----------
    image_set : ImageSet
    batch_size : int, default 128
    augment : bool, default True
        Random crop and flip in :meth:`epoch`. Noise in normalised space takes ``augment=False``.
    flip : bool, default True
        Mirror half of the pictures; not for digits or letters.
    padding : int, default 4
        Black pixels on each side before a crop of the old size is cut out.
    mean, std : one number from 0 to 1 per channel, optional
        For normalisation; by default those of ``image_set``. When pictures are shown to a network that was trained on
        another set, pass that set's.
    seed : int, default 0
    device : str or torch.device, default "cpu"
        Where the tensor is kept and batches are made.
    channels_last : bool, default False
        Memory layout of the batches; their shape is the same.
    drop_last : bool, default False
        Leave out a last batch that is smaller than the others, in :meth:`epoch`.

    Examples
    --------
    >>> from normscale.bench.data import load
    >>> batches = Batches(load("digits"), 128, padding=1, flip=False, seed=3)
    >>> len(batches)
    11
    >>> images, labels = next(batches.epoch(0))
    >>> tuple(images.shape), images.dtype, tuple(labels.shape)
    ((128, 1, 8, 8), torch.float32, (128,))
    >>> again, _ = next(batches.epoch(0))
    >>> torch.equal(images, again)
    True
    """

    def __init__(
        self,
        image_set: ImageSet,
        batch_size: int = 128,
        *,
        augment: bool = True,
        flip: bool = True,
        padding: int = 4,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        channels_last: bool = False,
        drop_last: bool = False,
    ) -> None:
        """Copy the set into one tensor in the layout the batches will have."""
        self.name = image_set.name
        self.batch_size = at_least(batch_size, "batch_size", 1)
        self.seed = at_least(seed, "seed", 0)
        self.padding = at_least(padding, "padding", 0) if augment else 0
        self.flip = flip and augment
        self.augment = augment
        self.drop_last = drop_last
        self.channels_last = channels_last
        self.height, self.width, self.channels = image_set.shape
        self._scale, self._shift = self._affine(image_set, mean, std, device)
        layout = image_set.images if channels_last else image_set.images.transpose(0, 3, 1, 2)
        self._images = torch.from_numpy(np.ascontiguousarray(layout)).to(device)
        self._labels = torch.from_numpy(np.ascontiguousarray(image_set.labels)).to(device)
        self.device = self._images.device

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        whole, rest = divmod(self.n_images, self.batch_size)
        return whole + bool(rest and not self.drop_last)

    def __repr__(self) -> str:
        """Describe the batches in one line."""
        return f"Batches({self.name!r}, {len(self)} of {self.batch_size}, augment={self.augment}, {self.device})"

    @property
    def n_images(self) -> int:
        """The number of pictures."""
        return int(self._images.shape[0])

    def epoch(self, index: int, *, start: int = 0) -> Iterator[Batch]:
        """Shuffled, augmented batches; the same for the same seed and index.

        Parameters
        ----------
        index : int
            The number of the epoch, from 0.
        start : int, default 0
            The first batch wanted, to go on in the middle of an epoch.
        """
        at_least(index, "index", 0)
        order, down, right, mirrored = self._draw(index)
        for number in range(start, len(self)):
            chosen = slice(number * self.batch_size, (number + 1) * self.batch_size)
            rows = order[chosen]
            images = self._images.index_select(0, rows)
            if self.augment:
                images = self._augmented(images, down[chosen], right[chosen], mirrored[chosen])
            yield self._normalised(images), self._labels.index_select(0, rows)

    def __iter__(self) -> Iterator[Batch]:
        """Every picture once, in its order and as it is, for evaluation."""
        for first in range(0, self.n_images, self.batch_size):
            chosen = slice(first, first + self.batch_size)
            yield self._normalised(self._images[chosen]), self._labels[chosen]

    def _affine(
        self,
        image_set: ImageSet,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        device: str | torch.device,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Scale and shift that take pixels 0..255 to normalised values, shaped for the layout; None for noise."""
        if image_set.normalised:
            if self.augment:
                raise InvalidInput(f"{self.name!r} is in normalised space and is not augmented; pass augment=False.")
            return None, None
        means, stds = mean or image_set.mean, std or image_set.std
        if means is None or stds is None:
            raise InvalidInput(
                f"{self.name!r} has no mean and std of its own; pass those of the set the network was trained on."
            )
        if len(means) != self.channels or len(stds) != self.channels or min(stds) <= 0:
            raise InvalidInput(
                f"mean and std must have one number per channel ({self.channels}), std greater than 0; "
                f"got {means} and {stds}."
            )
        scale = 1 / (255 * np.array(stds))
        shift = -np.array(means) / np.array(stds)
        if self.channels_last:  # one entry per byte of a row, so that the arithmetic runs over whole rows
            scale, shift = np.tile(scale, self.width), np.tile(shift, self.width)
        else:
            scale, shift = scale.reshape(-1, 1, 1), shift.reshape(-1, 1, 1)
        as_tensor = [torch.from_numpy(array.astype(np.float32)).to(device) for array in (scale, shift)]
        return as_tensor[0], as_tensor[1]

    def _draw(self, index: int) -> tuple[torch.Tensor, ...]:
        """Order, offsets and flips of an epoch, drawn on the CPU so that every device sees the same."""
        (state,) = np.random.SeedSequence([self.seed, index]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
        n = self.n_images
        order = torch.randperm(n, generator=generator)
        down = torch.randint(0, 2 * self.padding + 1, (n,), generator=generator)
        right = torch.randint(0, 2 * self.padding + 1, (n,), generator=generator)
        mirrored = torch.rand(n, generator=generator) < (0.5 if self.flip else 0.0)
        return tuple(tensor.to(self.device) for tensor in (order, down, right, mirrored))

    def _augmented(
        self, images: torch.Tensor, down: torch.Tensor, right: torch.Tensor, mirrored: torch.Tensor
    ) -> torch.Tensor:
        """Crop each picture at its own offset and mirror some; the layout stays."""
        if self.padding:
            images = self._cropped(images, down, right)
        if self.flip:
            chosen = mirrored.nonzero().squeeze(1)
            across = 2 if self.channels_last else 3
            images.index_copy_(0, chosen, images.index_select(0, chosen).flip(across))
        return images

    def _cropped(self, images: torch.Tensor, down: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Copy one run of bytes for each row of each crop out of the padded batch."""
        pad, height, width = self.padding, self.height, self.width
        # channels first: every channel is a picture of one-byte pixels by itself, moved like its siblings
        pixel = self.channels if self.channels_last else 1
        planes = images.view(-1, height, width, pixel)
        siblings = planes.shape[0] // images.shape[0]
        down, right = down.repeat_interleave(siblings), right.repeat_interleave(siblings)
        tall, wide = height + 2 * pad, width + 2 * pad
        padded = torch.zeros((planes.shape[0], tall, wide, pixel), dtype=torch.uint8, device=images.device)
        padded[:, pad : pad + height, pad : pad + width] = planes
        runs = padded.view(-1).unfold(0, width * pixel, pixel)  # a view: the run that begins at each pixel
        first_row = torch.arange(planes.shape[0], device=images.device) * tall + down
        rows = first_row[:, None] + torch.arange(height, device=images.device)
        return runs.index_select(0, (rows * wide + right[:, None]).view(-1)).view(images.shape)

    def _normalised(self, images: torch.Tensor) -> torch.Tensor:
        """Float32 of shape (b, channels, height, width), in the memory layout asked for."""
        if self._scale is None or self._shift is None:
            values = images
        elif self.channels_last:
            rows = images.reshape(-1, self.height, self.width * self.channels)
            values = rows.float().mul_(self._scale).add_(self._shift).view(images.shape)
        else:
            values = images.float().mul_(self._scale).add_(self._shift)
        return values.permute(0, 3, 1, 2) if self.channels_last else values
