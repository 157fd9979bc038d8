"""Write an .npz: arrays by any name, which ``numpy.savez`` cannot (it has parameters called ``file`` and so on)."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_npz(path: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays, uncompressed, as ``numpy.load`` reads them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
