"""CIFAR's binary archives: records of one or two label bytes and 3072 pixels, channel by channel. No pickle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from normscale.data.archives import members
from normscale.data.image_set import Images
from normscale.data.reading import Content, SplitRequest
from normscale.errors import FileFormatError

_PIXELS = 3 * 32 * 32


def read_cifar10(request: SplitRequest) -> Content:
    """CIFAR-10: five training files and one test file in ``cifar-10-batches-bin/``."""
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)] if request.split == "train" else ["test_batch.bin"]
    files = _read_files(request.path("cifar-10-binary.tar.gz"), batches)
    images, labels = zip(*(_records(file, data, label_bytes=1) for file, data in files.items()), strict=True)
    return Content(np.concatenate(images), np.concatenate(labels))


def read_cifar100(request: SplitRequest) -> Content:
    """CIFAR-100: two label bytes (coarse, fine); the fine one counts, and ``fine_label_names.txt`` names it."""
    file = f"{request.split}.bin"
    files = _read_files(request.path("cifar-100-binary.tar.gz"), [file, "fine_label_names.txt"])
    names = tuple(files["fine_label_names.txt"].decode("ascii").split())
    return Content(*_records(file, files[file], label_bytes=2), class_names=names)


def _read_files(archive: Path, wanted: list[str]) -> dict[str, bytes]:
    """The wanted files of an archive, whatever folder they are in, in the wanted order."""
    found = {}
    for member in members(archive):
        name = member.name.rsplit("/", 1)[-1]
        if name in wanted:
            found[name] = member.read()
    missing = [name for name in wanted if name not in found]
    if missing:
        raise FileFormatError(f"{archive} lacks {', '.join(missing)}; it is cut off or no binary CIFAR archive.")
    return {name: found[name] for name in wanted}


def _records(name: str, data: bytes, *, label_bytes: int) -> tuple[Images, np.ndarray]:
    """Images of shape (n, 32, 32, 3) and the last label byte of each record."""
    length = label_bytes + _PIXELS
    if not data or len(data) % length:
        raise FileFormatError(f"{name} has {len(data)} bytes, which is no multiple of {length}, one CIFAR record.")
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    images = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, label_bytes - 1].astype(np.int64)
