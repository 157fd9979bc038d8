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
    augment, flip : bool
        Random crops, and half of the pictures mirrored, in :meth:`epoch`. Noise in normalised space takes neither.
    padding : int
        Black pixels on each side before a crop of the old size is cut out.
    mean, std : one number from 0 to 1 per channel, optional
        Of the set that the network was trained on; by default those of ``image_set``.
    channels_last : bool
        Memory layout of the batches; their shape is the same.
    drop_last : bool
        Leave out a last batch that is smaller than the others, in :meth:`epoch`.

    Examples
    --------
    >>> from normscale.bench.data import load
    >>> batches = Batches(load("digits"), 128, padding=1, flip=False, seed=3)
    >>> images, labels = next(batches.epoch(0))
    >>> len(batches), tuple(images.shape), images.dtype, tuple(labels.shape)
    (11, (128, 1, 8, 8), torch.float32, (128,))
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
        channels_last: bool = False,
        drop_last: bool = False,
    ) -> None:
        self.name = image_set.name
        self.batch_size = at_least(batch_size, "batch_size", 1)
        self.seed = at_least(seed, "seed", 0)
        self.padding = at_least(padding, "padding", 0) if augment else 0
        self.flip = flip and augment
        self.augment = augment
        self.drop_last = drop_last
        self.channels_last = channels_last
        self._affine = self._scale_and_shift(image_set, mean or image_set.mean, std or image_set.std)
        self._images = torch.from_numpy(np.ascontiguousarray(image_set.images))
        self._labels = torch.from_numpy(np.ascontiguousarray(image_set.labels))

    def __len__(self) -> int:
        whole, rest = divmod(self.n_images, self.batch_size)
        return whole + bool(rest and not self.drop_last)

    @property
    def n_images(self) -> int:
        """The number of pictures."""
        return int(self._images.shape[0])

    def epoch(self, index: int, *, start: int = 0) -> Iterator[Batch]:
        """Shuffled, augmented batches, from number ``start`` on; the same for the same seed and index."""
        order, down, right, mirrored = self._draw(at_least(index, "index", 0))
        for number in range(start, len(self)):
            chosen = slice(number * self.batch_size, (number + 1) * self.batch_size)
            images = self._images.index_select(0, order[chosen])
            if self.padding:
                images = self._cropped(images, down[chosen], right[chosen])
            if self.flip:
                turned = mirrored[chosen].nonzero().squeeze(1)
                images.index_copy_(0, turned, images.index_select(0, turned).flip(2))
            yield self._normalised(images), self._labels.index_select(0, order[chosen])

    def __iter__(self) -> Iterator[Batch]:
        """Every picture once, in its order and as it is, for evaluation."""
        for first in range(0, self.n_images, self.batch_size):
            chosen = slice(first, first + self.batch_size)
            yield self._normalised(self._images[chosen]), self._labels[chosen]

    def _scale_and_shift(
        self, image_set: ImageSet, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What takes pixels 0..255 to normalised values, for each byte of a row of pixels; None for noise."""
        _, width, channels = image_set.shape
        if image_set.normalised:
            if self.augment:
                raise InvalidInput(f"{self.name!r} is in normalised space and is not augmented; pass augment=False.")
            return None
        if mean is None or std is None:
            raise InvalidInput(
                f"{self.name!r} has no mean and std of its own; pass those of the set the network was trained on."
            )
        if {len(mean), len(std)} != {channels}:
            raise InvalidInput(f"mean and std must have one number per channel ({channels}); got {mean} and {std}.")
        scale, shift = 1 / (255 * np.array(std)), -np.array(mean) / np.array(std)
        rows = [torch.from_numpy(np.tile(numbers, width).astype(np.float32)) for numbers in (scale, shift)]
        return rows[0], rows[1]

    def _draw(self, index: int) -> tuple[torch.Tensor, ...]:
        (state,) = np.random.SeedSequence([self.seed, index]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
        n = self.n_images
        order = torch.randperm(n, generator=generator)
        down, right = (torch.randint(0, 2 * self.padding + 1, (n,), generator=generator) for _ in range(2))
        mirrored = torch.rand(n, generator=generator) < (0.5 if self.flip else 0.0)
        return order, down, right, mirrored

    def _cropped(self, images: torch.Tensor, down: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Copy one run of bytes for each row of each crop out of the padded batch."""
        n, height, width, channels = images.shape
        pad, tall, wide = self.padding, height + 2 * self.padding, width + 2 * self.padding
        padded = torch.zeros((n, tall, wide, channels), dtype=torch.uint8)
        padded[:, pad : pad + height, pad : pad + width] = images
        runs = padded.view(-1).unfold(0, width * channels, channels)  # a view: the run that begins at each pixel
        rows = (torch.arange(n) * tall + down)[:, None] + torch.arange(height)
        return runs.index_select(0, (rows * wide + right[:, None]).view(-1)).view(images.shape)

    def _normalised(self, images: torch.Tensor) -> torch.Tensor:
        if self._affine is not None:
            scale, shift = self._affine
            n, height, width, channels = images.shape
            images = images.reshape(n, height, width * channels).float().mul_(scale).add_(shift).view(images.shape)
        values = images.permute(0, 3, 1, 2)
        # clone: with one channel, contiguous() keeps strides that torch takes for channels-last
        return values if self.channels_last else values.clone(memory_format=torch.contiguous_format)
