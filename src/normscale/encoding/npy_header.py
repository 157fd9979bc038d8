"""The header of numpy's .npy, read from a file, a zip member or a pipe.

The header is a Python dictionary as text. numpy hands it to Python's parser; here three patterns read it, so that
nothing in it is ever evaluated. What writers of the format really write is understood: any order of keys, either kind
of quotation mark, any spacing, versions 1 to 3.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple, Protocol

import numpy as np

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 4096

_MOST_AXES = 32
_SPACE = rb"[ \t\n]*"
_LENGTH = rb"(?:0|[1-9]\d{0,18})"
_KEY = re.compile(_SPACE + rb"(['\"])(descr|fortran_order|shape)\1" + _SPACE + b":" + _SPACE)
_VALUES = {
    b"descr": re.compile(rb"(['\"])([<>|=]?[biufcSUVO?]\d{0,9})\1"),
    b"fortran_order": re.compile(rb"(True|False)"),
    b"shape": re.compile(
        rb"\((" + _SPACE + rb"(?:" + _LENGTH + _SPACE + b"," + _SPACE + rb")*(?:" + _LENGTH + _SPACE + rb")?)\)"
    ),
}
_AFTER = re.compile(_SPACE + rb"(?:," + _SPACE + rb"|(?=\}))")


class NpyHeaderError(ValueError):
    """The header of an .npy cannot be read; the message goes on after "the file is damaged: "."""


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
    """Take the header off a stream, which is left at the first number."""
    head = stream.read(8)
    if not head.startswith(MAGIC) or len(head) < 8:
        raise NpyHeaderError("it does not begin like one")
    if head[6] not in (1, 2, 3) or head[7] != 0:
        raise NpyHeaderError(f"its version is {head[6]}.{head[7]}, and 1.0 to 3.0 are known")
    size = 2 if head[6] == 1 else 4
    told = stream.read(size)
    length = int.from_bytes(told, "little")
    if length > LONGEST_HEADER:
        raise NpyHeaderError(f"its header says it is {length} bytes long, and {LONGEST_HEADER} are allowed")
    text = stream.read(length)
    if len(told) < size or len(text) < length:
        raise NpyHeaderError("it ends within its header")
    return NpyHeader(*_parsed(text), 8 + size + length)


def _parsed(text: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    found = _fields(text.strip(b" \t\n"))
    if found is None:
        return np.dtype("V"), False, ()
    try:
        dtype = np.dtype(found[b"descr"][1].decode())
    except TypeError as error:
        raise NpyHeaderError(f"its header names a dtype that does not exist ({error})") from None
    return dtype, found[b"fortran_order"][0] == b"True", _shape(found[b"shape"][0])


def _fields(text: bytes) -> dict[bytes, tuple[bytes, ...]] | None:
    """The three values of the header, each as the groups of its pattern; None for records and dates."""
    found: dict[bytes, tuple[bytes, ...]] = {}
    position = 1
    while key := _KEY.match(text, position):
        name = key[2]
        value = _VALUES[name].match(text, key.end())
        if value is None:
            if name == b"descr":
                return None
            raise NpyHeaderError(f"the {name.decode()} in its header cannot be read")
        if name in found:
            raise NpyHeaderError(f"its header names {name.decode()} twice")
        found[name] = value.groups()
        after = _AFTER.match(text, value.end())
        if after is None:
            break
        position = after.end()
    if len(found) != 3 or not text.startswith(b"{") or text[position:] != b"}":
        raise NpyHeaderError("its header is not a dictionary of descr, fortran_order and shape")
    return found


def _shape(text: bytes) -> tuple[int, ...]:
    lengths = tuple(int(part) for part in text.split(b",") if part.strip())
    if len(lengths) == 1 and b"," not in text:
        raise NpyHeaderError("the shape in its header is a number and no tuple")
    if len(lengths) > _MOST_AXES:
        raise NpyHeaderError(f"it has {len(lengths)} axes, and {_MOST_AXES} are allowed")
    return lengths
