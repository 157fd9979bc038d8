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
from normscale.data.download import DownloadFailed, RemoteFile, fetch
from normscale.data.embedded_sets import read_embedded
from normscale.data.image_set import ImageSet, channel_moments
from normscale.data.noise import draw_noise
from normscale.data.npm_mirror import NpmFailed
from normscale.data.npz_file import read_npz
from normscale.data.own_data import TorchDataset, from_folder, from_npz, from_torch
from normscale.data.reading import Content, SplitRequest
from normscale.data.sources import Source, find_source
from normscale.errors import FileFormatError, InvalidInput, MissingExtra

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
    splits = tuple(source.images) if split is None else (_check_split(source, split),)
    for one in splits:
        if source.shape is not None:
            _prepared(source, one, folder, source.shape[:2], download=True)
        else:
            with locked(folder):
                _fetch_files(source, one, folder)
    return folder


def is_here(source: Source, root: str | os.PathLike[str] | None = None) -> bool:
    """Whether the set can be loaded without a network."""
    if source.kind != "download":
        return True
    folder = data_root(root) / source.name
    for split in source.images:
        if not _prepared_files(folder, split) and not _files_are_here(source, split, folder):
            return False
    return True


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
    split = _check_split(source, split)
    if source.kind == "embedded":
        return _embedded(source, split)
    height, width = source.shape[:2] if source.shape else like.shape[:2] if like else PHOTOGRAPH_SIZE
    content = _prepared(source, split, data_root(root) / name, (height, width), download=download)
    return ImageSet(
        name, content.images, content.labels, content.class_names or source.class_names, source.mean, source.std
    )


def _check_split(source: Source, split: str | None) -> str:
    if split is None:
        return source.default_split()
    if split not in source.images:
        raise InvalidInput(f"{source.name} has no split {split!r}; it has {', '.join(map(repr, source.images))}.")
    return split


def _embedded(source: Source, split: str) -> ImageSet:
    images, labels = read_embedded(source.name, split)
    mean = std = None
    if "train" in source.images:
        train = images if split == "train" else read_embedded(source.name, "train")[0]
        mean, std = channel_moments(train)
    return ImageSet(source.name, images, labels, source.class_names, mean, std)


# --- fetched sets -------------------------------------------------------------------------------------------------


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
        contents = _obtain(source, split, folder, size)
        for one, content in contents.items():
            expected = source.images[one]
            if len(content.images) != expected:
                raise FileFormatError(
                    f"{source.name} has {len(content.images)} {one} pictures in {folder}; it should have {expected}. "
                    "Delete the folder and get it again."
                )
            _write_prepared(folder / path.name.replace(split, one, 1), content)
    return contents[split]


def _obtain(source: Source, split: str, folder: Path, size: tuple[int, int]) -> dict[str, Content]:
    """Read the published files; from the last resort come all splits at once."""
    assert source.read is not None
    failures: list[str] = []
    if not _files_are_here(source, split, folder) and source.last_resort is not None:
        failures = _try_fetch(source, split, folder)
        if failures:
            try:
                return source.last_resort(folder)
            except (NpmFailed, MissingExtra, FileFormatError) as error:
                raise _no_mirror(source, split, folder, [*failures, str(error)]) from None
    else:
        _fetch_files(source, split, folder)
    return {split: source.read(SplitRequest(folder, split, *size))}


def _files_are_here(source: Source, split: str, folder: Path) -> bool:
    return all((folder / file.name).exists() for file in _files(source, split))


def _files(source: Source, split: str) -> list[RemoteFile]:
    return [file for file in source.files if split in file.splits and not file.optional]


def _try_fetch(source: Source, split: str, folder: Path) -> list[str]:
    """Fetch what is missing; the reasons of the first file that could not be had."""
    for file in _files(source, split):
        _, failures = fetch(file, folder)
        if failures:
            return failures
    return []


def _fetch_files(source: Source, split: str, folder: Path) -> None:
    failures = _try_fetch(source, split, folder)
    if failures:
        raise _no_mirror(source, split, folder, failures)


def _no_mirror(source: Source, split: str, folder: Path, failures: list[str]) -> DownloadFailed:
    """What happened at each mirror, and what a person can do."""
    lines = [f"{source.name} could not be fetched:", *(f"  - {failure}" for failure in failures), "By hand:"]
    for file in source.files:
        if not file.optional and not (folder / file.name).exists():
            needed = "" if split in file.splits else f", only for {' and '.join(file.splits)}"
            lines += [f"  fetch {file.urls[0]}", *(f"     or {url}" for url in file.urls[1:])]
            lines += [f"        ({file.describe()}{needed})", f"     to {folder / file.name}"]
    lines.append(f"then run: normscale data get {source.name}")
    return DownloadFailed("\n".join(lines))


def _prepared_files(folder: Path, split: str) -> list[Path]:
    return [*folder.glob(f"{split}.npz"), *folder.glob(f"{split}-*x*.npz")]


def _write_prepared(path: Path, content: Content) -> None:
    arrays: dict[str, Any] = {"images": content.images, "labels": content.labels}
    if content.class_names is not None:
        arrays["class_names"] = np.array(content.class_names)
    with atomic_path(path) as temporary:
        np.savez(temporary, **arrays)


def _read_prepared(path: Path) -> Content:
    file = read_npz(path, "Delete it; it will be made again.")
    names = tuple(file["class_names"].tolist()) if "class_names" in file else None
    return Content(file["images"], file["labels"], names)
