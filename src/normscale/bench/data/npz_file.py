"""Plain arrays in an .npz file: ``images``, ``labels`` and ``class_names``; never pickle."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.errors import FileFormatError, InvalidInput

KEYS = ("images", "labels", "class_names", "normalised")


def read_npz(path: Path, advice: str) -> dict[str, NDArray[Any]]:
    """Those of the known arrays that the file has, ``images`` among them.

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
            return {key: file[key] for key in KEYS if key in file}
    except InvalidInput:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, AttributeError, TypeError) as error:
        # AttributeError, TypeError: an .npy array under another name is no context manager
        raise FileFormatError(f"{path} is damaged or no .npz file of plain arrays ({error}). {advice}") from error
