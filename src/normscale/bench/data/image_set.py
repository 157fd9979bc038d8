"""A set of pictures in memory: one array, its labels, and how to normalise it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from normscale._validate import IntArray, as_labels, to_numpy
from normscale.bench.data.decode import resize
from normscale.errors import InvalidInput

Images: TypeAlias = NDArray[Any]
"""Shape (n, height, width, channels): uint8 pixels, or float32 in normalised space."""


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Pictures of one size, in memory; frozen.

    Parameters
    ----------
    name : str
    images : array of shape (n, height, width, channels)
        uint8; or float32 with ``normalised=True``, for noise that is drawn in the network's input space.
    labels : array or list of shape (n,)
        Class numbers; -1 stands for "not known". Kept as int64.
    class_names : tuple of str, optional
    mean, std : one number from 0 to 1 per channel, optional
        How to normalise the pictures when this set is the one a network is trained on.
    normalised : bool, default False
        The images are what the network takes, not pixels.

    Examples
    --------
    >>> blank = ImageSet("blank", np.zeros((4, 32, 32, 3), np.uint8), [0, 0, 1, -1])
    >>> blank
    ImageSet('blank', n=4, 32x32x3, 2 classes)
    >>> blank[blank.labels == 0]
    ImageSet('blank', n=2, 32x32x3, 1 class)
    >>> blank.resized(8, 8, 1).shape
    (8, 8, 1)
    """

    name: str
    images: Images
    labels: IntArray
    class_names: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    normalised: bool = False

    def __post_init__(self) -> None:
        """Check that images, labels and statistics fit together."""
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
        kind = np.float32 if self.normalised else np.uint8
        if images.dtype != kind:
            hint = "" if self.normalised else " For values from 0 to 1: np.rint(images * 255).astype('uint8')."
            raise InvalidInput(
                f"images of {self.name!r} must be {kind.__name__} with normalised={self.normalised}; "
                f"got {images.dtype}.{hint}"
            )
        names = None if self.class_names is None else tuple(str(name) for name in self.class_names)
        labels = to_numpy(self.labels, "labels")
        n_classes = len(names) if names else (int(labels.max()) + 1 if labels.size else 0)
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "class_names", names)
        object.__setattr__(self, "labels", as_labels(labels, "labels", length=len(images), n_classes=max(n_classes, 1)))
        for field in ("mean", "std"):
            value = getattr(self, field)
            if value is not None:
                numbers = tuple(float(number) for number in value)
                if len(numbers) != images.shape[3]:
                    raise InvalidInput(
                        f"{field} of {self.name!r} must have one number per channel ({images.shape[3]}); got {numbers}."
                    )
                object.__setattr__(self, field, numbers)
        if self.std is not None and min(self.std) <= 0:
            raise InvalidInput(f"std of {self.name!r} must be greater than 0 in every channel; got {self.std}.")

    def __len__(self) -> int:
        """Return the number of pictures."""
        return int(self.images.shape[0])

    def __getitem__(self, rows: slice | NDArray[Any] | list[int]) -> ImageSet:
        """Select pictures by slice (a view), Boolean mask or index array."""
        if isinstance(rows, (int, np.integer)):
            raise InvalidInput(f"select pictures by a slice, a mask or an index array, such as [{rows}:{rows + 1}].")
        chosen = rows if isinstance(rows, slice) else np.asarray(rows)
        if not isinstance(chosen, slice) and chosen.size == 0:
            chosen = chosen.astype(np.int64)  # np.asarray([]) is float
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])

    def __repr__(self) -> str:
        """Describe the set in one line."""
        height, width, channels = self.shape
        n_classes = len(np.unique(self.labels[self.labels >= 0]))
        classes = "no labels" if n_classes == 0 else f"{n_classes} class{'es' if n_classes > 1 else ''}"
        normalised = ", normalised" if self.normalised else ""
        return f"ImageSet({self.name!r}, n={len(self)}, {height}x{width}x{channels}, {classes}{normalised})"

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
        """The same pictures in another size (bilinear, antialiased), grey or in colour.

        Grey from colour is the usual luma, 0.299 R + 0.587 G + 0.114 B; colour from grey repeats the channel. The
        statistics for normalising, which were those of the old pixels, are dropped.
        """
        if (height, width, channels) == self.shape:
            return self
        old = "x".join(map(str, self.shape))
        if self.normalised:
            raise InvalidInput(
                f"{self.name!r} is noise of {old} in normalised space and cannot be made {height}x{width}x{channels}; "
                "draw it again with load(..., like=) of the set whose size it should have."
            )
        if channels not in (1, 3) or height < 1 or width < 1:
            raise InvalidInput(
                f"pictures can be made at least 1x1 with 1 or 3 channels; asked for {height}x{width}x{channels} "
                f"of {self.name!r} ({old})."
            )
        return replace(self, images=resize(self.images, height, width, channels), mean=None, std=None)

    def in_size(self, height: int, width: int) -> ImageSet:
        """A training set in another size: :meth:`resized`, with the mean and standard deviation of the new pixels."""
        resized = self.resized(height, width, self.shape[2])
        if resized is self:
            return self
        mean, std = channel_moments(resized.images)
        return replace(resized, mean=mean, std=std)


def channel_moments(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation of each channel, in 0..1; exact, by counting.

    Examples
    --------
    >>> channel_moments(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
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
