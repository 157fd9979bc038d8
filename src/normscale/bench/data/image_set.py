"""A set of pictures in memory: one array, its labels, how to normalise it; picture files decoded, and resized."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from normscale._progress import bar
from normscale._validate import IntArray, as_labels, to_numpy
from normscale.errors import InvalidInput

if TYPE_CHECKING:
    from normscale.extraction.items import Item

_AT_ONCE = 64  # pictures, so that photographs are never all in memory at their full size
Images: TypeAlias = NDArray[Any]
"""Shape (n, height, width, channels): uint8 pixels, or float32 in normalised space."""


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Pictures of one size, in memory; frozen.

    ``images`` are uint8 (n, height, width, channels), or float32 with ``normalised=True``: noise in the network's input
    space. A label of -1 is not known. ``mean`` and ``std`` normalise the pictures that a network is trained on.

    Examples
    --------
    >>> blank = ImageSet("blank", np.zeros((4, 32, 32, 3), np.uint8), [0, 0, 1, -1])
    >>> blank
    ImageSet('blank', n=4, 32x32x3, 2 classes)
    >>> blank[blank.labels == 0].resized(8, 8, 1)
    ImageSet('blank', n=2, 8x8x1, 1 class)
    """

    name: str
    images: Images
    labels: IntArray
    class_names: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    normalised: bool = False

    def __post_init__(self) -> None:
        images = np.asarray(self.images)
        if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape[1:3]:
            hint = ""
            if images.ndim == 3:
                hint = " For grey pictures pass images[..., None]."
            elif images.ndim == 4 and images.shape[1] in (1, 3):
                hint = " For channels first pass images.transpose(0, 2, 3, 1)."
            raise InvalidInput(
                f"images of {self.name!r} must have shape (n, height, width, channels) with 1 or 3 channels; "
                f"got {images.shape}.{hint}"
            )
        dtype = np.float32 if self.normalised else np.uint8
        if images.dtype != dtype:
            hint = "" if self.normalised else " For values from 0 to 1: np.rint(images * 255).astype('uint8')."
            raise InvalidInput(
                f"images of {self.name!r} must be {dtype.__name__} with normalised={self.normalised}; "
                f"got {images.dtype}.{hint}"
            )
        for field, numbers in {"mean": self.mean, "std": self.std}.items():
            if numbers is not None and len(numbers) != images.shape[3]:
                raise InvalidInput(
                    f"{field} of {self.name!r} must have one number per channel ({images.shape[3]}); got {numbers}."
                )
        if self.std is not None and min(self.std) <= 0:
            raise InvalidInput(f"std of {self.name!r} must be greater than 0 in every channel; got {self.std}.")
        labels = to_numpy(self.labels, "labels")
        n_classes = len(self.class_names or ()) or (int(labels.max()) + 1 if labels.size else 0)
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "labels", as_labels(labels, "labels", length=len(images), n_classes=max(n_classes, 1)))

    def __len__(self) -> int:
        return int(self.images.shape[0])

    def __getitem__(self, rows: slice | NDArray[Any]) -> ImageSet:
        return replace(self, images=self.images[rows], labels=self.labels[rows])

    def __repr__(self) -> str:
        size, n_classes = "x".join(map(str, self.shape)), len(np.unique(self.labels[self.labels >= 0]))
        classes = "no labels" if n_classes == 0 else f"{n_classes} class{'es' if n_classes > 1 else ''}"
        normalised = ", normalised" if self.normalised else ""
        return f"ImageSet({self.name!r}, n={len(self)}, {size}, {classes}{normalised})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one picture."""
        _, height, width, channels = self.images.shape
        return int(height), int(width), int(channels)

    @property
    def n_classes(self) -> int:
        """The number of classes: of names where there are any, otherwise the largest label plus one."""
        if self.class_names is not None:
            return len(self.class_names)
        return int(self.labels.max()) + 1 if len(self) else 0

    def resized(self, height: int, width: int, channels: int) -> ImageSet:
        """The same pictures in another size (bilinear, antialiased), grey (luma) or in colour, without mean and std."""
        if (height, width, channels) == self.shape:
            return self
        if self.normalised:
            raise InvalidInput(
                f"{self.name!r} is noise of {'x'.join(map(str, self.shape))} in normalised space and cannot be made "
                f"{height}x{width}x{channels}; draw it again with load(..., like=) of the set it should fit."
            )
        return replace(self, images=resize(self.images, height, width, channels), mean=None, std=None)

    def in_size(self, height: int, width: int) -> ImageSet:
        """A training set in another size: :meth:`resized`, with the mean and standard deviation of the new pixels."""
        resized = self.resized(height, width, self.shape[2])
        return self if resized is self else resized.with_moments()

    def with_moments(self) -> ImageSet:
        """The same with the mean and standard deviation of its pixels, if a network can be trained on it."""
        if self.normalised or not len(self) or self.labels.max() < 0:
            return self
        mean, std = channel_moments(self.images)
        return self if min(std) <= 0 else replace(self, mean=mean, std=std)


def channel_moments(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation of each channel, in 0..1; exact, by counting."""
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[3]):
        counts = np.zeros(256, np.int64)
        for start in range(0, len(images), 4096):
            counts += np.bincount(images[start : start + 4096, ..., channel].ravel(), minlength=256)
        total = max(int(counts.sum()), 1)
        mean = float(counts @ values) / total
        means.append(mean)
        stds.append(float(np.sqrt(counts @ (values - mean) ** 2 / total)))
    return tuple(means), tuple(stds)


def decode_all(
    pictures: Sequence[Item], height: int | None = None, width: int | None = None, *, doing: str
) -> Iterator[NDArray[np.uint8]]:
    """Pixels (h, w, 3), or (h, w, 1) where the file is grey, in order; several threads read, a bar shows how far.

    With a size, the shorter side is made to fit (bilinear, antialiased) and the middle is cut out.
    """
    from normscale.extraction.items import opened_picture

    def decode(item: Item) -> NDArray[np.uint8]:
        image = opened_picture(item)
        image = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
        if height is not None and width is not None:
            from PIL import Image, ImageOps

            image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
        pixels: NDArray[np.uint8] = np.asarray(image)
        return pixels[..., None] if pixels.ndim == 2 else pixels

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool, bar(doing, len(pictures)) as line:
        for start in range(0, len(pictures), _AT_ONCE):
            for pixels in pool.map(decode, pictures[start : start + _AT_ONCE]):
                yield pixels
                line.advance(1)


def resize(images: NDArray[Any], height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """uint8 pictures (n, h, w, c) in another size (bilinear, antialiased), grey (luma) or in colour."""
    from PIL import Image

    resized = np.empty((len(images), height, width, channels), np.uint8)
    for new, old in zip(resized, images, strict=True):
        image = Image.fromarray(old.squeeze(axis=2) if old.shape[2] == 1 else old)
        image = image.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
        new[...] = np.asarray(image).reshape(height, width, channels)
    return resized
