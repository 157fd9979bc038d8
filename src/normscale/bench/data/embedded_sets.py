"""The pictures inside the package; ``embedded/README.md`` says where they come from and under which licence."""

from __future__ import annotations

import os

import numpy as np

from normscale._validate import IntArray
from normscale.bench.data.image_set import Images

_FILE = os.path.join(os.path.dirname(__file__), "embedded", "pictures.npz")


def read_embedded(name: str, split: str) -> tuple[Images, IntArray]:
    """Images of shape (n, 8, 8, 1) and labels of shape (n,).

    Examples
    --------
    >>> images, labels = read_embedded("digits", "train")
    >>> images.shape, np.bincount(labels).tolist()
    ((1297, 8, 8, 1), [128, 132, 127, 133, 131, 132, 131, 129, 124, 130])
    """
    with np.load(_FILE, allow_pickle=False) as file:
        return file[f"{name}_{split}_images"], file[f"{name}_{split}_labels"].astype(np.int64)
