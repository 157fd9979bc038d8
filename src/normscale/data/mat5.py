"""As much of MATLAB's version 5 files as SVHN needs: numeric arrays, compressed or not.

Format: a header of 128 bytes, then elements of a tag (type, length) and data padded to 8 bytes. A matrix is an
element of elements: flags, dimensions, name, numbers. A compressed element is zlib around one matrix.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.errors import FileFormatError

_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_MAX_BYTES = 4 << 30


def read_mat5(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Every numeric array of a file by its name; other kinds (text, cells, structures) are passed over."""
    with open(path, "rb") as file:
        data = memoryview(file.read())
    try:
        return _read(data)
    except (struct.error, ValueError, zlib.error, IndexError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{os.fspath(path)} is damaged or no MATLAB version 5 file ({error}).") from error


def _read(data: memoryview) -> dict[str, NDArray[Any]]:
    order = {b"IM": "<", b"MI": ">"}.get(bytes(data[126:128]))
    if order is None:
        hint = "; it is HDF5 (version 7.3)" if bytes(data[:4]) == b"\x89HDF" else ""
        raise ValueError(f"its header has no byte order mark{hint}")
    arrays: dict[str, NDArray[Any]] = {}
    position = 128
    while position < len(data):
        kind, content, position = _element(data, position, order)
        if kind == _COMPRESSED:
            kind, content = _inflate(content, order)
        if kind == _MATRIX:
            matrix = _matrix(content, order)
            if matrix is not None:
                arrays[matrix[0]] = matrix[1]
    return arrays


def _element(data: memoryview, position: int, order: str) -> tuple[int, memoryview, int]:
    """Type and data of the element at ``position``, and where the next one begins."""
    kind, length = struct.unpack_from(order + "II", data, position)
    if kind >> 16:  # four bytes or less, packed into the tag itself
        kind, length = kind & 0xFFFF, kind >> 16
        start, end = position + 4, position + 8
        if length > 4:
            raise ValueError(f"a small element claims {length} bytes")
    else:
        start = position + 8
        end = start + length + (0 if kind == _COMPRESSED else -length % 8)
    if start + length > len(data):
        raise ValueError(f"an element claims {length} bytes where {max(len(data) - start, 0)} are left")
    return kind, data[start : start + length], end


def _inflate(content: memoryview, order: str) -> tuple[int, memoryview]:
    """The one element inside a compressed one; never more bytes than it claims to have."""
    inflater = zlib.decompressobj()
    tag = inflater.decompress(content, 8)
    kind, length = struct.unpack(order + "II", tag)
    if kind >> 16 or length > _MAX_BYTES:
        raise ValueError(f"a compressed element claims {length} bytes")
    inner = inflater.decompress(inflater.unconsumed_tail, length) if length else b""
    if len(inner) != length:
        raise ValueError(f"a compressed element claims {length} bytes and has {len(inner)}")
    return kind, memoryview(inner)


def _matrix(content: memoryview, order: str) -> tuple[str, NDArray[Any]] | None:
    """Name and array, or None where the matrix holds something else than real numbers."""
    _, flags, position = _element(content, 0, order)
    (word,) = struct.unpack_from(order + "I", flags)
    if word & 0xFF not in _CLASSES or word & 0x0800:  # no numbers, or complex ones
        return None
    _, sides, position = _element(content, position, order)
    shape = tuple(int(side) for side in np.frombuffer(sides, order + "i4"))
    _, name, position = _element(content, position, order)
    kind, numbers, _ = _element(content, position, order)
    if kind not in _NUMBERS:
        raise ValueError(f"numbers of the unknown type {kind}")
    # numbers are stored in the smallest type that holds them; the class says what they are
    flat = np.frombuffer(numbers, order + _NUMBERS[kind])
    if min(shape) < 0 or flat.size != math.prod(shape):
        raise ValueError(f"{bytes(name).decode()} has {flat.size} numbers for the shape {shape}")
    return bytes(name).decode("ascii"), flat.astype(_CLASSES[word & 0xFF], copy=False).reshape(shape, order="F")
