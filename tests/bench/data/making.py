"""Small files in the layouts of the big ones."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def make_tar(path: Path, files: Mapping[str, bytes], mode: Any = "w:gz") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def make_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def picture(colour: tuple[int, int, int] | int, width: int = 64, height: int = 64, kind: str = "JPEG") -> bytes:
    """A plain picture; an int makes it grey."""
    file = io.BytesIO()
    Image.new("L" if isinstance(colour, int) else "RGB", (width, height), colour).save(file, kind, quality=95)
    return file.getvalue()


def random_images(n: int, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)
