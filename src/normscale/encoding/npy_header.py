"""The header of numpy's .npy, read from a file, a zip member or a pipe.

numpy reads the text of the header as a Python literal. Nothing in it is evaluated, and its length is bounded.
"""

from __future__ import annotations

import io
import math
from tokenize import TokenError
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy_format

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 4096
_MOST_AXES = 32


class ByteStream(Protocol):
    """What a file, a zip member and a pipe have in common."""

    def read(self, size: int = -1, /) -> bytes:
        """Exactly ``size`` bytes unless the stream ends before."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer`` from its start as far as bytes are there; 0 at the end."""


class NpyHeader(NamedTuple):
    """What the header says, and where the numbers begin. Records and dates, which are no numbers, have dtype V."""

    dtype: np.dtype[Any]
    fortran_order: bool
    shape: tuple[int, ...]
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: of everything behind the first axis."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def n_bytes(self) -> int:
        """Bytes of all numbers."""
        return self.row_bytes * self.shape[0] if self.shape else self.row_bytes


def take_npy_header(stream: ByteStream) -> NpyHeader:
    """Take the header off a stream, which is left at the first number; ``ValueError`` where it cannot be read."""
    head = stream.read(8)
    if not head.startswith(MAGIC) or len(head) < 8:
        raise ValueError("it does not begin like one")
    if head[6] not in (1, 2, 3) or head[7] != 0:
        raise ValueError(f"its version is {head[6]}.{head[7]}, and 1.0 to 3.0 are known")
    size = 2 if head[6] == 1 else 4
    length_bytes = stream.read(size)
    length = int.from_bytes(length_bytes, "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"its header says it is {length} bytes long, and {LONGEST_HEADER} are allowed")
    text = stream.read(length)
    if len(length_bytes) < size or len(text) < length:
        raise ValueError("it ends within its header")
    try:
        read = npy_format.read_array_header_2_0
        shape, fortran_order, dtype = read(io.BytesIO(length.to_bytes(4, "little") + text), max_header_size=2**16)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, SyntaxError, TokenError) as error:
        raise ValueError(f"its header is no dictionary of descr, fortran_order and shape ({error})") from None
    if len(shape) > _MOST_AXES or any(isinstance(n, bool) or not 0 <= n < 2**63 for n in shape):
        raise ValueError(f"its shape is not of at most {_MOST_AXES} lengths")
    if dtype.kind in "VMm" or dtype.subdtype is not None:
        dtype, fortran_order, shape = np.dtype("V"), False, ()
    return NpyHeader(dtype, fortran_order, shape, 8 + size + length)
