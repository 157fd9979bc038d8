"""Bring your own pictures: an .npz file of plain arrays, or a folder of class folders."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.bench.data.image_set import ImageSet, decode_all, resize
from normscale.errors import FileFormatError, InvalidInput

_KEYS = ("images", "labels", "class_names", "normalised")


def read_npz(path: Path, advice: str) -> dict[str, NDArray[Any]]:
    """Those of the known arrays that the file has, ``images`` among them; never pickle.

    A damaged file is an error that ends with ``advice``.
    """
    try:
        # opened here: numpy does not close a file that it finds to be no archive
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            if "images" not in file:
                raise InvalidInput(
                    f"{path} must hold 'images' of shape (n, height, width, channels), uint8, and may hold 'labels'; "
                    f"it holds {', '.join(file) or 'nothing'}."
                )
            return {key: file[key] for key in _KEYS if key in file}
    except InvalidInput:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, AttributeError, TypeError) as error:
        # AttributeError, TypeError: an .npy array under another name is no context manager
        raise FileFormatError(f"{path} is damaged or no .npz file of plain arrays ({error}). {advice}") from error


def class_names_of(arrays: dict[str, NDArray[Any]]) -> tuple[str, ...] | None:
    """The names of the classes in an .npz file, where it has any."""
    return tuple(arrays["class_names"].tolist()) if "class_names" in arrays else None


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
    normalised = bool(np.all(file.get("normalised", False)))
    return _measured(ImageSet(path.stem, images, labels, class_names_of(file), normalised=normalised))


def from_folder(
    path: str | os.PathLike[str], split: str | None = None, size: tuple[int, int, int] | None = None
) -> ImageSet:
    """Read picture files from class folders: ``path/<class>/*.png``, or ``path/<split>/<class>/*.png``.

    Classes have one number in all splits: those of ``path/train`` come first. Pictures in ``path`` itself have none.
    Without a ``size`` (height, width, channels) all must have one. Grey only when every picture is grey.
    """
    from normscale.extraction.items import open_items

    path = Path(path)
    if not path.is_dir():
        raise InvalidInput(f"there is no folder {path}; folder: needs a folder with one folder of pictures per class.")
    classes: tuple[str, ...] = ()
    if split is not None and (path / split).is_dir():
        if split != "train" and (path / "train").is_dir():
            classes = open_items(str(path / "train")).class_names or ()
        path = path / split
    there = open_items(str(path))
    own = there.class_names or ()
    classes += tuple(name for name in own if name not in classes)
    pictures = list(there.between(0, there.n))
    height, width, channels = size or (None, None, None)
    arrays = list(decode_all(pictures, height, width, doing=f"reading {path.name}"))
    for item, array in zip(pictures, arrays, strict=True):
        if array.shape[:2] != arrays[0].shape[:2]:
            raise InvalidInput(
                f"{item.name} is {array.shape[0]}x{array.shape[1]} and {pictures[0].name} is {arrays[0].shape[0]}x"
                f"{arrays[0].shape[1]}; pass like= (a set whose size all should get), or make them one size."
            )
    in_colour = channels == 3 or (channels is None and any(array.shape[2] == 3 for array in arrays))
    shape = (*arrays[0].shape[:2], 3 if in_colour else 1)
    images = np.stack([resize(array[None], *shape)[0] if array.shape != shape else array for array in arrays])
    numbers = {number: classes.index(name) for number, name in enumerate(own)}
    labels = np.array([-1 if item.label is None else numbers.get(item.label, item.label) for item in pictures])
    return _measured(ImageSet(path.name, images, labels, classes or None))


def _measured(images: ImageSet) -> ImageSet:
    return images if images.normalised or not len(images) or images.labels.max() < 0 else images.with_moments()
