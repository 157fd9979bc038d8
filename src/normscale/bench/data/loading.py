"""``load`` and ``get``: a data set by its name, fetched and prepared on first use.

Below the root every set has a folder with the files as published and, once read, ``<split>.npz`` (photographs:
``<split>-<height>x<width>.npz``), plain arrays that load in a moment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from normscale._atomic import atomic_path
from normscale._lock import locked
from normscale._validate import at_least
from normscale.bench.data.embedded_sets import read_embedded
from normscale.bench.data.image_set import ImageSet, channel_moments
from normscale.bench.data.noise import draw_noise
from normscale.bench.data.npz_file import read_npz
from normscale.bench.data.own_data import TorchDataset, from_folder, from_npz, from_torch
from normscale.bench.data.published_sets import Content, fetch_published
from normscale.bench.data.sources import Source, find_source
from normscale.errors import InvalidInput

PHOTOGRAPH_SIZE = (64, 64)  # of sets whose pictures have no size of their own, unless like= gives one


def load(
    name: str | ImageSet | TorchDataset,
    split: str | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = True,
    like: ImageSet | None = None,
    seed: int = 0,
) -> ImageSet:
    """Load a data set.

    Parameters
    ----------
    name : str, ImageSet or torch Dataset
        A name of :func:`list_sets`, ``npz:PATH``, ``folder:PATH``, or pictures that are already there.
    split : "train" or "test", optional
        By default "train" where the set has it, otherwise its only split.
    root : path, optional
        Where data sets are kept; ``$NORMSCALE_DATA``, or ``~/.cache/normscale``.
    download : bool, default True
        Fetch what is missing.
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
    >>> load("fashion", like=digits)
    ImageSet('fashion', n=1000, 8x8x1, 10 classes)
    """
    images = _load(name, split, root=root, download=download, like=like, seed=seed)
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
    splits = tuple(source.images) if split is None else (source.checked_split(split),)
    for one in splits:
        if source.shape is not None:
            _prepared(source, one, folder, source.shape[:2], download=True)
        else:
            with locked(folder):
                fetch_published(source, one, folder)
    return folder


def is_here(source: Source, root: str | os.PathLike[str] | None = None) -> bool:
    """Whether the set can be loaded without a network."""
    if source.kind != "download":
        return True
    folder = data_root(root) / source.name
    prepared = {path.name.split(".")[0].split("-")[0] for path in folder.glob("*.npz")}
    return all(split in prepared or _files_are_here(source, split, folder) for split in source.images)


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder data sets are kept in."""
    return Path(root or os.environ.get("NORMSCALE_DATA") or Path.home() / ".cache" / "normscale").expanduser()


def _load(
    name: str | ImageSet | TorchDataset,
    split: str | None,
    *,
    root: str | os.PathLike[str] | None,
    download: bool,
    like: ImageSet | None,
    seed: int,
) -> ImageSet:
    if isinstance(name, ImageSet):
        return name
    if not isinstance(name, str):
        if not (hasattr(name, "__len__") and hasattr(name, "__getitem__")):
            raise InvalidInput(f"name must be a data set's name, an ImageSet or a torch Dataset; got {type(name)}.")
        return from_torch(name)
    if split is not None and split not in ("train", "test"):
        raise InvalidInput(f"split must be 'train' or 'test'; got {split!r}.")
    if name.startswith("npz:"):
        return from_npz(name.removeprefix("npz:"), split)
    if name.startswith("folder:"):
        return from_folder(name.removeprefix("folder:"), split, None if like is None else like.shape)
    source = find_source(name)
    if source.kind == "noise":
        if like is None:
            raise InvalidInput(f"{name} noise has the size of another set; pass like=, such as load('digits', 'test').")
        return draw_noise(name, like, at_least(seed, "seed", 0))
    split = source.checked_split(split)
    if source.kind == "embedded":
        return _embedded(source, split)
    height, width = source.shape[:2] if source.shape else like.shape[:2] if like else PHOTOGRAPH_SIZE
    content = _prepared(source, split, data_root(root) / name, (height, width), download=download)
    return ImageSet(
        name, content.images, content.labels, content.class_names or source.class_names, source.mean, source.std
    )


def _embedded(source: Source, split: str) -> ImageSet:
    images, labels = read_embedded(source.name, split)
    mean = std = None
    if "train" in source.images:
        train = images if split == "train" else read_embedded(source.name, "train")[0]
        mean, std = channel_moments(train)
    return ImageSet(source.name, images, labels, source.class_names, mean, std)


def _prepared(source: Source, split: str, folder: Path, size: tuple[int, int], *, download: bool) -> Content:
    """The arrays of a split: from the prepared file, or from the published files, which are fetched if need be."""
    path = folder / (f"{split}.npz" if source.shape else f"{split}-{size[0]}x{size[1]}.npz")
    if path.exists():
        return _read_prepared(path)
    if not download and not _files_are_here(source, split, folder):
        raise InvalidInput(
            f"{source.name} is not in {folder}; run `normscale data get {source.name}` or pass download=True."
        )
    with locked(folder):
        if path.exists():  # made by another process while this one waited
            return _read_prepared(path)
        content = fetch_published(source, split, folder).decoded(*size)
        arrays: dict[str, Any] = {"images": content.images, "labels": content.labels}
        if content.class_names is not None:
            arrays["class_names"] = np.array(content.class_names)
        with atomic_path(path) as temporary:
            np.savez(temporary, **arrays)
    return content


def _files_are_here(source: Source, split: str, folder: Path) -> bool:
    return all((folder / file.path).exists() for file in source.files_of(split))


def _read_prepared(path: Path) -> Content:
    file = read_npz(path, "Delete it; it will be made again.")
    names = tuple(file["class_names"].tolist()) if "class_names" in file else None
    return Content(file["images"], file["labels"], names)
