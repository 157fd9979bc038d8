"""A network's head as text, for files with room for texts beside their columns: base64 of little-endian numbers."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.json_text import read_json, write_json
from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import Head
from normscale.tables.arrays import Stored, check_head

HEAD = b"normscale.head"
"""Where in a file's metadata the text stands."""

LARGEST = 1 << 25
"""Bytes of weight and bias: Arrow keeps metadata in memory several times over, and refuses texts beyond 100 MB."""

_DTYPES = ("<f2", "<f4", "<f8")


def head_to_text(path: str, head: Head) -> str:
    """The head as JSON.

    Raises
    ------
    InvalidInput
        When it is too large to stand in a file's metadata.
    """
    size = head.weight.nbytes + head.bias.nbytes
    if size > LARGEST:
        raise InvalidInput(
            f"{path}: the head takes {size} bytes, and a .parquet file has room for {LARGEST}; write .npz or "
            ".safetensors."
        )
    return write_json({"weight": _to_text(head.weight), "bias": _to_text(head.bias)})


def head_from_text(path: str, text: bytes) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weight and bias out of what :func:`head_to_text` gave; sizes are checked before anything is decoded."""
    if len(text) > 2 * LARGEST:
        raise FileFormatError(f"{path}: its head takes {len(text)} bytes; at most {2 * LARGEST} are read.")
    try:
        document = read_json(text, words=False)
        stored = [_stored(document[name]) for name in ("weight", "bias")]
        check_head(path, *stored)
        weight, bias = (_decoded(document[name], one) for name, one in zip(("weight", "bias"), stored, strict=True))
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path}: its head is damaged ({error}). Make it again.") from error
    return weight, bias


def _to_text(array: NDArray[Any]) -> dict[str, Any]:
    kept = array if array.dtype.kind == "f" else array.astype(np.float64)
    little = np.ascontiguousarray(kept, kept.dtype.newbyteorder("<"))
    data = base64.b64encode(little.tobytes()).decode()
    return {"dtype": "<" + little.dtype.str[1:], "shape": little.shape, "data": data}


def _stored(entry: Any) -> Stored:
    shape, dtype = entry["shape"], entry["dtype"]
    if dtype not in _DTYPES:
        raise ValueError("its dtype is none of " + ", ".join(_DTYPES))
    if not isinstance(shape, list) or any(type(length) is not int or length < 0 for length in shape):
        raise ValueError("its shape is no list of lengths")
    return Stored(tuple(shape), np.dtype(dtype))


def _decoded(entry: Any, stored: Stored) -> NDArray[Any]:
    size = math.prod(stored.shape) * stored.dtype.itemsize
    if len(entry["data"]) != -(-size // 3) * 4:
        raise ValueError("its size is not what its shape says")
    data = base64.b64decode(entry["data"], validate=True)
    array = np.frombuffer(data, stored.dtype).reshape(stored.shape)
    return array.astype(stored.dtype.newbyteorder("="))
