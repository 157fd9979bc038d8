"""``load`` and ``get``: a data set by its name, fetched and prepared on first use.

Below the root every set has a folder with the files as published and, once read, ``<split>.npz`` (photographs:
``<split>-<height>x<width>.npz``), plain arrays that load in a moment.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._atomic import atomic_path
from normscale._lock import locked
from normscale._validate import at_least
from normscale.bench.data.image_set import ImageSet, channel_moments, decode_all, resize
from normscale.bench.data.published_sets import fetch_published
from normscale.bench.data.sources import Source, find_source
from normscale.errors import FileFormatError, InvalidInput

PHOTOGRAPH_SIZE = (64, 64)  # of sets whose pictures have no size of their own, unless like= gives one
_EMBEDDED = Path(__file__).parent / "embedded" / "pictures.npz"  # README.md beside it: origins and licences
_NOISE = {"gaussian": 1, "uniform": 2}  # streams of random numbers, so that one seed serves both


def load(
    name: str,
    split: str | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    like: ImageSet | None = None,
    seed: int = 0,
) -> ImageSet:
    """Load a data set; what is missing is fetched.

    Parameters
    ----------
    name : str
        A name of :func:`list_sets`, ``npz:PATH`` or ``folder:PATH``.
    split : "train" or "test", optional
        By default "train" where the set has it, otherwise its only split.
    root : path, optional
        Where data sets are kept; ``$NORMSCALE_DATA``, or ``~/.cache/normscale``.
    like : ImageSet, optional
        The set of the network: pictures are made of its size, and noise is drawn of its size and length.
    seed : int, default 0
        Of the noise.

    Examples
    --------
    >>> digits = load("digits", "test")
    >>> digits
    ImageSet('digits', n=500, 8x8x1, 10 classes)
    >>> load("uniform", like=digits)
    ImageSet('uniform', n=500, 8x8x1, no labels, normalised)
    """
    if split is not None and split not in ("train", "test"):
        raise InvalidInput(f"split must be 'train' or 'test'; got {split!r}.")
    kind, colon, path = name.partition(":")
    if colon and kind == "npz":
        images = from_npz(path, split)
    elif colon and kind == "folder":
        images = from_folder(path, split, None if like is None else like.shape)
    elif (source := find_source(name)).kind == "noise":
        return _noise(name, like, at_least(seed, "seed", 0))
    elif source.kind == "embedded":
        images = _embedded(source, source.checked_split(split))
    else:
        size = source.shape[:2] if source.shape else like.shape[:2] if like else PHOTOGRAPH_SIZE
        content = _prepared(source, source.checked_split(split), data_root(root) / name, size)
        names = class_names_of(content) or source.class_names
        images = ImageSet(name, content["images"], content["labels"], names, source.mean, source.std)
    return images if like is None else images.resized(*like.shape)


def get(name: str, split: str | None = None, *, root: str | os.PathLike[str] | None = None) -> Path | None:
    """Fetch a data set, all of it or the files of one split, and prepare it; returns its folder.

    None when there is nothing to fetch. A set of photographs is fetched and checked here, and decoded when it is
    loaded, because only then the size is known.
    """
    source = find_source(name)
    if source.kind != "download":
        return None
    folder = data_root(root) / name
    for one in tuple(source.images) if split is None else (source.checked_split(split),):
        if source.shape is not None:
            _prepared(source, one, folder, source.shape[:2])
        else:
            with locked(folder):
                fetch_published(source, one, folder)
    return folder


def is_here(source: Source, root: str | os.PathLike[str] | None = None) -> bool:
    """Whether the set can be loaded without a network."""
    folder = data_root(root) / source.name
    prepared = {path.name.split(".")[0].split("-")[0] for path in folder.glob("*.npz")}
    splits = [split for split in source.images if source.kind == "download" and split not in prepared]
    return all((folder / file.path).exists() for split in splits for file in source.files_of(split))


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder data sets are kept in."""
    return Path(root or os.environ.get("NORMSCALE_DATA") or Path.home() / ".cache" / "normscale").expanduser()


def _noise(name: str, like: ImageSet | None, seed: int) -> ImageSet:
    """N(0, 1) or U(0, 1) where the network reads, after normalisation, as the paper's published code draws it."""
    if like is None:
        raise InvalidInput(f"{name} noise has the size of another set; pass like=, such as load('digits', 'test').")
    rng = np.random.default_rng([seed, _NOISE[name]])
    draw = rng.standard_normal if name == "gaussian" else rng.random
    return ImageSet(name, draw(like.images.shape, dtype=np.float32), np.full(len(like), -1), normalised=True)


def _embedded(source: Source, split: str) -> ImageSet:
    with np.load(_EMBEDDED, allow_pickle=False) as file:
        images, labels = (file[f"{source.name}_{split}_{what}"] for what in ("images", "labels"))
        trained_on = "train" in source.images
        mean, std = channel_moments(file[f"{source.name}_train_images"]) if trained_on else (None, None)
    return ImageSet(source.name, images, labels, source.class_names, mean, std)


def _prepared(source: Source, split: str, folder: Path, size: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """The arrays of a split: from the prepared file, or from the published files, which are fetched if need be."""
    path = folder / (f"{split}.npz" if source.shape else f"{split}-{size[0]}x{size[1]}.npz")
    if not path.exists():
        with locked(folder):
            if not path.exists():  # another process may have made it while this one waited
                arrays = fetch_published(source, split, folder).decoded(*size)
                with atomic_path(path) as temporary:
                    np.savez(temporary, **arrays)
                return arrays
    return read_npz(path, "Delete it; it will be made again.")


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
    return ImageSet(path.stem, images, labels, class_names_of(file), normalised=normalised).with_moments()


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
    return ImageSet(path.name, images, labels, classes or None).with_moments()
