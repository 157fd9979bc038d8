"""Pictures in another size: bilinear with antialiasing, for a whole set at once and without an image library.

A picture is resized by two small matrices, one for its rows and one for its columns: out = R X C^T. Each row of a
matrix is a triangle as wide as the step from one output pixel to the next, so that shrinking averages over all
pixels that fall together (what Pillow and torch call antialiased bilinear) and enlarging interpolates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK_BYTES = 1 << 26  # of float32 pixels in work at once


def weights(source: int, target: int) -> NDArray[np.float32]:
    """The matrix of shape (target, source) that resizes one side.

    Examples
    --------
    >>> weights(4, 2).round(3)
    array([[0.429, 0.429, 0.143, 0.   ],
           [0.   , 0.143, 0.429, 0.429]], dtype=float32)
    """
    step = source / target
    reach = max(step, 1.0)
    centres = (np.arange(target) + 0.5) * step
    distance = np.abs(np.arange(source) + 0.5 - centres[:, None]) / reach
    triangle = np.maximum(1.0 - distance, 0.0)
    matrix: NDArray[np.float32] = (triangle / triangle.sum(axis=1, keepdims=True)).astype(np.float32)
    return matrix


def resize(images: NDArray[Any], height: int, width: int) -> NDArray[np.uint8]:
    """Resize uint8 pictures of shape (n, h, w, c) to (n, height, width, c)."""
    n, old_height, old_width, channels = images.shape
    if (old_height, old_width) == (height, width):
        return images
    rows, columns = weights(old_height, height), weights(old_width, width)
    resized = np.empty((n, height, width, channels), np.uint8)
    step = max(1, _CHUNK_BYTES // (4 * max(old_height * old_width, height * width) * channels))
    for start in range(0, n, step):
        chunk = images[start : start + step].astype(np.float32)
        chunk = (rows @ chunk.reshape(-1, old_height, old_width * channels)).reshape(-1, old_width, channels)
        chunk = (columns @ chunk).reshape(-1, height, width, channels)
        resized[start : start + step] = np.rint(chunk).clip(0, 255)
    return resized


def as_grey(images: NDArray[Any]) -> NDArray[np.uint8]:
    """Luma of uint8 colour pictures, shape (n, h, w, 1); the integer arithmetic of Pillow's "L"."""
    grey = np.empty((*images.shape[:3], 1), np.uint8)
    for start in range(0, len(images), 1024):
        red, green, blue = np.moveaxis(images[start : start + 1024].astype(np.uint32), 3, 0)
        grey[start : start + 1024, ..., 0] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    return grey
