"""SVHN's cropped digits: a MATLAB file with ``X`` of shape (32, 32, 3, n) and ``y``, where 10 stands for zero."""

from __future__ import annotations

import numpy as np

from normscale.data.mat5 import read_mat5
from normscale.data.reading import Content, SplitRequest
from normscale.errors import FileFormatError


def read_svhn(request: SplitRequest) -> Content:
    """Read ``train_32x32.mat`` or ``test_32x32.mat``."""
    path = request.path(f"{request.split}_32x32.mat")
    arrays = read_mat5(path)
    pixels, digits = arrays.get("X"), arrays.get("y")
    if pixels is None or digits is None:
        raise FileFormatError(f"{path} must hold the arrays X and y; it holds {', '.join(arrays) or 'none'}.")
    is_right = pixels.ndim == 4 and pixels.shape[:3] == (32, 32, 3) and pixels.dtype == np.uint8
    if not is_right or digits.size != pixels.shape[3]:
        raise FileFormatError(
            f"{path} must hold X of shape (32, 32, 3, n), uint8, and n labels y; "
            f"got {pixels.shape}, {pixels.dtype}, and {digits.size}."
        )
    return Content(np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), digits.ravel().astype(np.int64) % 10)
