"""The published image sets: torchvision fetches, checks and unpacks them; photographs are decoded here.

Only TinyImageNet, which torchvision does not know, and LSUN are listed here file by file. (torchvision's LSUN keeps a
pickle of its keys in the working folder and loads whatever lies there under that name.)
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import socket
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normscale._validate import IntArray
from normscale.bench.data.image_set import Images, decode_all
from normscale.bench.data.sources import RemoteFile, Source
from normscale.errors import FileFormatError, MissingExtra, NormscaleError
from normscale.extraction.items import Item

NETWORK_SECONDS = 15.0  # without a byte
_LSUN_END = "_val_lmdb"


class DownloadFailed(NormscaleError, OSError):
    """The files could not be fetched; the message says how to get them by hand."""


class Listing(NamedTuple):
    """A split as it was published: its pixels, or its picture files, and for each picture the number of its class."""

    pictures: Images | list[Item]
    labels: Sequence[int] | IntArray
    class_names: Sequence[str] | None = None

    def decoded(self, height: int, width: int) -> dict[str, Any]:
        """Images (n, height, width, channels), labels (n,) and names of classes; photographs are in colour."""
        if isinstance(self.pictures, np.ndarray):
            images = np.ascontiguousarray(self.pictures)
        else:
            images = np.empty((len(self.pictures), height, width, 3), np.uint8)
            for number, pixels in enumerate(decode_all(self.pictures, height, width, doing="decoding")):
                images[number] = pixels  # grey is repeated
        names = {} if self.class_names is None else {"class_names": np.array(self.class_names)}
        return {"images": images, "labels": np.asarray(self.labels, np.int64), **names}


def fetch_published(source: Source, split: str, folder: Path) -> Listing:
    """Make sure that ``folder`` holds what a split needs, checked and unpacked, and list it.

    A file that is missing, or is not what was published, and could not be fetched is a :class:`DownloadFailed` that
    says what a person can do by hand.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_SECONDS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        listing = _READERS[source.name](source, split, folder)
    except MissingExtra:
        raise
    except ImportError as error:
        raise MissingExtra(f"{source.name} needs {error.name}; pip install 'normscale[data]'.") from None
    except (OSError, RuntimeError, http.client.HTTPException, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        lines = [f"{source.name} could not be fetched: {error or type(error).__name__}", "By hand:"]
        for file in source.files_of(split):
            lines += [f"  fetch {file.url}", f"        ({file.describe()})", f"     to {folder / file.path}"]
        raise DownloadFailed("\n".join([*lines, f"then run: normscale data get {source.name}"])) from error
    finally:
        socket.setdefaulttimeout(before)
    if len(listing.pictures) != source.images[split]:
        raise FileFormatError(
            f"{source.name} has {len(listing.pictures)} {split} pictures in {folder}; it should have "
            f"{source.images[split]}. Delete the folder and get it again."
        )
    return listing


def _cifar(source: Source, split: str, folder: Path) -> Listing:
    read = getattr(torchvision_datasets(), source.name.upper())(folder, split == "train", download=True)
    return Listing(read.data, read.targets, read.classes)


def _svhn(source: Source, split: str, folder: Path) -> Listing:
    read = torchvision_datasets().SVHN(folder, split, download=True)
    return Listing(read.data.transpose(0, 2, 3, 1), read.labels)


def _textures(source: Source, split: str, folder: Path) -> Listing:
    torchvision_datasets().DTD(folder, download=True)
    return _in_folders(folder / "dtd" / "dtd" / "images")


def _places365(source: Source, split: str, folder: Path) -> Listing:
    read = torchvision_datasets().Places365(folder, "val", small=True, download=True)
    names = sorted(read.class_to_idx, key=read.class_to_idx.__getitem__)
    return _files(read.imgs, [name[3:] for name in names])


def _tiny_imagenet(source: Source, split: str, folder: Path) -> Listing:
    """Classes are in the order of their WordNet numbers and carry the first of their words."""
    unpacked = folder / "tiny-imagenet-200"
    if not unpacked.exists():
        _fetch(source.files[0], folder, unpacked.name)
    words = dict(line.split("\t")[:2] for line in (unpacked / "words.txt").read_text("utf-8").splitlines())
    if split == "train":
        listing = _in_folders(unpacked / "train")
        wnids = list(listing.class_names or ())
    else:
        wnids = sorted((unpacked / "wnids.txt").read_text("utf-8").split())
        lines = (unpacked / "val" / "val_annotations.txt").read_text("utf-8").splitlines()
        class_of = dict(line.split("\t")[:2] for line in lines)
        pictures = unpacked / "val" / "images"
        listing = _files([(str(pictures / name), wnids.index(class_of[name])) for name in sorted(class_of)], wnids)
    return listing._replace(class_names=[words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids])


def _lsun(source: Source, split: str, folder: Path) -> Listing:
    """A zip around an LMDB database of WebP or JPEG files for each scene."""
    import lmdb

    scenes = [file.path.removesuffix(f"{_LSUN_END}.zip") for file in source.files]
    pictures: list[Item] = []
    for number, (scene, file) in enumerate(zip(scenes, source.files, strict=True)):
        unpacked = folder / f"{scene}{_LSUN_END}"
        if not unpacked.exists():
            _fetch(file, folder, unpacked.name)
        with lmdb.open(str(unpacked), readonly=True, lock=False) as database, database.begin() as view:
            pictures += [Item(f"{scene} {key.decode('ascii')}", bytes(data), number) for key, data in view.cursor()]
    return Listing(pictures, [item.label or 0 for item in pictures], scenes)


_READERS: dict[str, Callable[[Source, str, Path], Listing]] = {
    "cifar10": _cifar,
    "cifar100": _cifar,
    "svhn": _svhn,
    "tinyimagenet": _tiny_imagenet,
    "lsun": _lsun,
    "places365": _places365,
    "textures": _textures,
}


def _files(files: Sequence[tuple[str, int]], class_names: Sequence[str]) -> Listing:
    return Listing([Item(path, path, label) for path, label in files], [label for _, label in files], class_names)


def _in_folders(folder: Path) -> Listing:
    """Pictures in folders of classes, as torchvision lists them."""
    read = torchvision_datasets().ImageFolder(folder)
    return _files(read.samples, read.classes)


def _fetch(file: RemoteFile, folder: Path, unpacked: str) -> None:
    """Fetch an archive that no class of torchvision fetches, check it, and unpack its one folder as a whole."""
    utils = torchvision_datasets().utils
    path, work = folder / file.path, folder / ".unpacking"
    md5 = file.digest if len(file.digest) == 32 else None
    utils.download_url(file.url, str(folder), file.path, md5)
    with open(path, "rb") as opened:
        if md5 is None and hashlib.file_digest(opened, "sha256").hexdigest() != file.digest:
            raise RuntimeError(f"{path.name} is not the published file; delete it")
    utils.extract_archive(str(path), str(work))
    os.replace(work / unpacked, folder / unpacked)
    shutil.rmtree(work)


def torchvision_datasets() -> Any:
    """The module ``torchvision.datasets``, or advice."""
    try:
        from torchvision import datasets
    except ImportError:
        raise MissingExtra(
            "published image sets are fetched and read by torchvision; pip install 'normscale[data]'. "
            "Pictures of your own need none: npz:PATH, folder:PATH."
        ) from None
    except RuntimeError as error:
        raise MissingExtra(
            f"torchvision cannot be imported ({error}). It was built for another torch than the one installed here; "
            "install the two together from one index: pip install --upgrade torch torchvision."
        ) from error
    return datasets
