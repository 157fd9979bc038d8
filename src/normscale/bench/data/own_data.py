"""Bring your own pictures: an .npz file, a folder of class folders, or any torch Dataset."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from normscale._validate import to_numpy
from normscale.bench.data.decode import Picture, decode_all, grey_or_colour, resize
from normscale.bench.data.image_set import ImageSet, channel_moments
from normscale.bench.data.npz_file import read_npz
from normscale.encoding.picture_files import PICTURE_SUFFIXES
from normscale.errors import InvalidInput


class TorchDataset(Protocol):
    """What is needed of a torch ``Dataset``: a length, and pairs of a picture and a class number."""

    def __len__(self) -> int:
        """Return how many pictures there are."""

    def __getitem__(self, index: int, /) -> Any:
        """Return the picture, or a pair of picture and class number."""


def from_npz(path: str | os.PathLike[str], split: str | None = None) -> ImageSet:
    """Read ``images`` (uint8, n, h, w, c) and maybe ``labels`` and ``class_names`` from an .npz file.

    A folder will do too, when it has the file ``<split>.npz``. Float images are taken when the file says
    ``normalised=True``. Where labels are known, mean and standard deviation of the pixels are measured.
    """
    path = Path(path)
    if path.is_dir():
        path = path / f"{split or 'train'}.npz"
    if not path.exists():
        raise InvalidInput(
            f"there is no file {path}; npz: takes an .npz file, or a folder with train.npz and test.npz."
        )
    file = read_npz(path, "Write it by numpy.savez(path, images=..., labels=...).")
    images = file["images"]
    labels = file.get("labels", np.full(len(images) if images.ndim else 0, -1))
    names = tuple(file["class_names"].tolist()) if "class_names" in file else None
    normalised = bool(np.all(file.get("normalised", False)))
    return _with_moments(ImageSet(path.stem, images, labels, names, normalised=normalised))


def from_folder(
    path: str | os.PathLike[str], split: str | None = None, size: tuple[int, int, int] | None = None
) -> ImageSet:
    """Read picture files from class folders: ``path/<class>/*.png``, or ``path/<split>/<class>/*.png``.

    Classes have one number in all splits: those of ``path/train`` come first. Pictures lying in ``path`` itself have no
    label. All must have one size unless ``size`` (height, width, channels)
    says which to make: the shorter side is fitted and the middle cut out. Grey only when every picture is grey.
    """
    path = Path(path)
    if not path.is_dir():
        raise InvalidInput(f"there is no folder {path}; folder: needs a folder with one folder of pictures per class.")
    classes: list[str] = []
    if split is not None and (path / split).is_dir():
        classes = _folders_in(path / "train")
        path = path / split
    classes += [name for name in _folders_in(path) if name not in classes]
    files = [(file, number) for number, name in enumerate(classes) for file in _pictures_below(path / name)]
    if not files:
        classes = []
        files = [(file, -1) for file in _pictures_below(path)]
    if not files:
        raise InvalidInput(
            f"{path} holds no pictures ({', '.join(PICTURE_SUFFIXES)}), neither in folders nor by themselves."
        )
    pictures: list[Picture] = [(str(file), str(file)) for file, _ in files]
    height, width, channels = size or (None, None, None)
    arrays = list(decode_all(pictures, height, width, doing=f"reading {path.name}"))
    for (file, _), array in zip(files, arrays, strict=True):
        if array.shape[:2] != arrays[0].shape[:2]:
            raise InvalidInput(
                f"{file} is {array.shape[0]}x{array.shape[1]} and {files[0][0]} is {arrays[0].shape[0]}x"
                f"{arrays[0].shape[1]}; pass like= (a set whose size all should get), or make them one size."
            )
    in_colour = channels == 3 or (channels is None and any(array.shape[2] == 3 for array in arrays))
    images = np.empty((len(arrays), *arrays[0].shape[:2], 3 if in_colour else 1), np.uint8)
    for row, array in zip(images, arrays, strict=True):
        row[...] = (
            array if in_colour or array.shape[2] == 1 else resize(array[None], array.shape[0], array.shape[1], 1)[0]
        )
    labels = np.array([number for _, number in files])
    return _with_moments(ImageSet(path.name, images, labels, tuple(classes) or None))


def from_torch(dataset: TorchDataset, name: str = "dataset", normalised: bool | None = None) -> ImageSet:
    """Read a torch ``Dataset`` into memory, once; it may give PIL pictures, arrays (h, w, c) or tensors (c, h, w).

    Float values that are multiples of 1/255 (``ToTensor`` makes such) become pixels again; other floats are taken as
    normalised input. ``normalised`` decides it by hand. Random transforms are frozen in the state they had when read:
    leave augmentation to :class:`~normscale.bench.data.Batches`.
    """
    length = len(dataset)
    if length == 0:
        raise InvalidInput(f"the dataset {name!r} is empty.")
    rows: list[NDArray[Any]] = []
    labels = np.full(length, -1, np.int64)
    for index in range(length):
        item = dataset[index]
        if isinstance(item, (tuple, list)):
            picture = item[0]
            if len(item) > 1 and np.ndim(item[1]) == 0:
                labels[index] = int(item[1])
        else:
            picture = item
        rows.append(_as_array(picture, f"item {index} of {name!r}"))
        if rows[index].shape != rows[0].shape:
            raise InvalidInput(
                f"item {index} of {name!r} has shape {rows[index].shape} and item 0 {rows[0].shape}; all must have one "
                "size: add a transform that resizes."
            )
    images = np.stack(rows)
    if images.dtype != np.uint8:
        images = images.astype(np.float32)
        scaled = images * 255
        are_pixels = bool(images.min() >= 0 and images.max() <= 1 and np.abs(scaled - np.rint(scaled)).max() < 1e-2)
        if are_pixels if normalised is None else not normalised:
            return _with_moments(ImageSet(name, np.rint(scaled).clip(0, 255).astype(np.uint8), labels))
        return ImageSet(name, images, labels, normalised=True)
    return _with_moments(ImageSet(name, images, labels))


def _as_array(picture: Any, what: str) -> NDArray[Any]:
    """Shape (h, w, c) from a PIL picture, an array or a tensor."""
    is_tensor = hasattr(picture, "detach")
    if hasattr(picture, "getbands"):
        picture = np.asarray(picture if picture.mode == "F" else grey_or_colour(picture))
    array = to_numpy(picture, what)
    if array.ndim == 2:
        return array[..., None]
    if array.ndim == 3 and is_tensor:
        return array.transpose(1, 2, 0)
    if array.ndim != 3:
        raise InvalidInput(f"{what} must have shape (h, w), (h, w, c) or, as a tensor, (c, h, w); got {array.shape}.")
    return array


def _with_moments(images: ImageSet) -> ImageSet:
    """Measure mean and standard deviation, so that a network can be trained on the set."""
    if images.normalised or not len(images) or images.labels.max() < 0:
        return images
    mean, std = channel_moments(images.images)
    if min(std) <= 0:
        return images
    return replace(images, mean=mean, std=std)


def _folders_in(folder: Path) -> list[str]:
    """Names of the folders in a folder, in order; none where it does not exist."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _pictures_below(folder: Path) -> list[Path]:
    """Picture files anywhere below a folder, in a fixed order; links to folders are not followed."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent) / file for file in sorted(files) if _is_picture(file)]
    return found


def _is_picture(file: str) -> bool:
    return not file.startswith(".") and file.lower().endswith(PICTURE_SUFFIXES)
