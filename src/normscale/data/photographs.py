"""The sets that are archives of photographs: TinyImageNet, Textures (DTD), Places365 and LSUN.

Pictures are decoded straight from the archive; nothing is unpacked but LSUN's databases.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from normscale._progress import bar
from normscale.data.archives import members, unpack
from normscale.data.decode import Picture, decode_all, stack_colour
from normscale.data.image_set import Images
from normscale.data.lmdb_file import read_lmdb
from normscale.data.reading import Content, SplitRequest
from normscale.errors import FileFormatError

LSUN_SCENES = (
    "bedroom", "bridge", "church_outdoor", "classroom", "conference_room",
    "dining_room", "kitchen", "living_room", "restaurant", "tower",
)  # fmt: skip


def read_tiny_imagenet(request: SplitRequest) -> Content:
    """Train: ``train/<wnid>/images/*.JPEG``; test: the validation pictures, named in ``val_annotations.txt``.

    Classes are in the order of their WordNet numbers and carry the first of their words.
    """
    archive = request.path("tiny-imagenet-200.zip")
    texts = {}
    for member in members(archive):
        name = member.name.rsplit("/", 1)[-1]
        if name in ("wnids.txt", "words.txt", "val_annotations.txt"):
            texts[name] = member.read().decode("utf-8")
    if len(texts) != 3:
        raise FileFormatError(f"{archive} lacks wnids.txt, words.txt or val_annotations.txt.")
    classes = {wnid: number for number, wnid in enumerate(sorted(texts["wnids.txt"].split()))}
    words = dict(line.split("\t")[:2] for line in texts["words.txt"].splitlines() if "\t" in line)
    class_of = dict(line.split("\t")[:2] for line in texts["val_annotations.txt"].splitlines() if "\t" in line)
    labels: list[int] = []

    def pictures() -> Iterator[Picture]:
        for member in members(archive):
            if request.split == "train":
                match = re.search(r"/train/(n\d+)/images/[^/]+\.JPEG$", member.name)
                wnid = match[1] if match else None
            else:
                match = re.search(r"/val/images/([^/]+\.JPEG)$", member.name)
                wnid = class_of.get(match[1]) if match else None
            if match:
                if wnid not in classes:
                    raise FileFormatError(f"{archive}: {member.name} is of no class that wnids.txt names.")
                labels.append(classes[wnid])
                yield member.name, member.read()

    images = _decoded(archive, pictures(), request)
    names = tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in classes)
    return Content(images, np.array(labels, np.int64), names)


def read_textures(request: SplitRequest) -> Content:
    """DTD: ``dtd/images/<class>/*.jpg``, all of them, which is what the paper's 5 640 are."""
    archive = request.path("dtd-r1.0.1.tar.gz")
    found: list[str] = []

    def pictures() -> Iterator[Picture]:
        for member in members(archive):
            match = re.search(r"(?:^|/)images/([^/]+)/([^/.][^/]*)\.jpg$", member.name)
            if match:
                found.append(match[1])
                yield member.name, member.read()

    images = _decoded(archive, pictures(), request)
    names = tuple(sorted(set(found)))
    labels = np.array([names.index(name) for name in found], np.int64)
    order = np.argsort(labels, kind="stable")  # the archive's order is that of a file system
    return Content(images[order], labels[order], names)


def read_places365(request: SplitRequest) -> Content:
    """Places365's validation pictures, 256 x 256; with labels when the list of files lies beside them."""
    archive = request.path("val_256.tar")
    found: list[str] = []

    def pictures() -> Iterator[Picture]:
        for member in members(archive):
            name = member.name.rsplit("/", 1)[-1]
            if re.fullmatch(r"Places365_val_\d+\.jpg", name):
                found.append(name)
                yield member.name, member.read()

    images = _decoded(archive, pictures(), request)
    labels, names = _places_labels(request.path("filelist_places365-standard.tar"), found)
    return Content(images, labels, names)


def _places_labels(file_list: Path, found: list[str]) -> tuple[np.ndarray, tuple[str, ...] | None]:
    if not file_list.exists():
        return np.full(len(found), -1, np.int64), None
    class_of: dict[str, int] = {}
    names: dict[int, str] = {}
    for member in members(file_list):
        name = member.name.rsplit("/", 1)[-1]
        if name not in ("places365_val.txt", "categories_places365.txt"):
            continue
        try:
            pairs = [line.rsplit(None, 1) for line in member.read().decode("utf-8").splitlines() if line.strip()]
            if name == "places365_val.txt":
                class_of = {key: int(number) for key, number in pairs}
            else:
                names = {int(number): re.sub(r"^/\w/", "", key) for key, number in pairs}
        except ValueError as error:
            raise FileFormatError(f"{file_list}: {name} must have lines of a name and a number ({error}).") from None
    missing = next((name for name in found if name not in class_of), None)
    if missing is not None or not names:
        raise FileFormatError(f"{file_list} names no class for {missing}; is it the list of Places365-Standard?")
    labels = np.array([class_of[name] for name in found], np.int64)
    return labels, tuple(names[number] for number in sorted(names))


def read_lsun(request: SplitRequest) -> Content:
    """LSUN's ten scenes, the 300 validation pictures of each: a zip around an LMDB database of WebP or JPEG files."""
    labels: list[int] = []
    work = Path(tempfile.mkdtemp(prefix=".unpack-", dir=request.folder))

    def pictures() -> Iterator[Picture]:
        for number, scene in enumerate(LSUN_SCENES):
            archive = request.path(f"{scene}_val_lmdb.zip")
            files = [file for file in unpack(archive, work / scene) if file.name == "data.mdb"]
            if len(files) != 1:
                raise FileFormatError(f"{archive} must hold one data.mdb; it holds {len(files)}.")
            for key, data in read_lmdb(files[0]):
                labels.append(number)
                yield f"{archive.name}: {key.decode('ascii', 'replace')}", data

    try:
        images = _decoded(request.folder, pictures(), request)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Content(images, np.array(labels, np.int64), LSUN_SCENES)


def _decoded(archive: Path, pictures: Iterator[Picture], request: SplitRequest) -> Images:
    """Decode and stack pictures while their number is still unknown, with a bar."""
    shape = (request.height, request.width)
    parts: list[Images] = []
    with bar(f"decoding {archive.name}", None) as line:
        arrays = decode_all(pictures, *shape, done=line.advance)
        while True:
            part = stack_colour((pixels for _, pixels in zip(range(4096), arrays, strict=False)), shape, 4096)
            if not len(part):
                break
            parts.append(part if len(part) == 4096 else part.copy())
    if not parts:
        raise FileFormatError(f"{archive} holds no pictures where the data set has them.")
    return np.concatenate(parts)
