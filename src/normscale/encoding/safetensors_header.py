"""The header of a .safetensors file: eight bytes of length, then JSON that says where each tensor lies.

The safetensors library reads whole tensors, and knows no bfloat16 in numpy; rows are read piece by piece.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import numpy as np

from normscale.encoding.json_text import read_json

LONGEST_HEADER = 100_000_000
"""Bytes, as the safetensors library allows."""

DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(text)
    for name, text in {
        "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
        "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
        "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
    }.items()
}  # fmt: skip
"""Names of the format for numpy's dtypes. bfloat16 is read as its bits."""


class TensorPlace(NamedTuple):
    """Where one tensor lies in the file, and of what it is."""

    kind: str
    """The format's name of the dtype; maybe one that is not in :data:`DTYPES`."""
    shape: tuple[int, ...]
    offset: int
    """Of its first byte in the file."""
    end: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """As numpy reads it; ``KeyError`` for a kind that numpy has not."""
        return DTYPES[self.kind]


def read_safetensors_header(file: IO[bytes]) -> tuple[dict[str, TensorPlace], dict[str, str]]:
    """The tensors of an open file by name, and the texts beside them.

    ``ValueError`` unless every tensor lies in the file, behind the one before.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, LONGEST_HEADER):
        raise ValueError("its header is cut off or too long")
    document = read_json(file.read(length), words=False)
    metadata = document.pop("__metadata__", {}) if isinstance(document, dict) else None
    if not isinstance(metadata, dict):
        raise ValueError("its header or its metadata is no JSON object")
    tensors = {str(name): _place(str(name), entry, 8 + length) for name, entry in document.items()}
    end = 8 + length
    for place in sorted(tensors.values(), key=lambda place: (place.offset, place.end)):
        if place.offset != end:
            raise ValueError("its tensors overlap or leave gaps")
        end = place.end
    if end != size:
        raise ValueError(f"its header says {end} bytes, and there are {size}")
    return tensors, {str(key): value for key, value in metadata.items() if isinstance(value, str)}


def widened(bits: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """bfloat16 to float32: the same upper sixteen bits, zeros below."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _place(name: str, entry: Any, data_start: int) -> TensorPlace:
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
        is_clear = type(kind) is str and type(shape) is list and all(type(n) is int for n in numbers)
        is_clear = is_clear and min(numbers) >= 0 and end >= begin
    except (TypeError, KeyError, ValueError):
        is_clear = False
    if not is_clear:
        raise ValueError(f"its header does not say where {name!r} lies")
    if kind in DTYPES and math.prod(shape) * DTYPES[kind].itemsize != end - begin:
        raise ValueError(f"the size of {name!r} is not what its header says")
    return TensorPlace(kind, tuple(shape), data_start + begin, data_start + end)
