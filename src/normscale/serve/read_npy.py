"""numpy's .npy, taken from bytes that a stranger sent.

The header is a Python dictionary as text. numpy hands it to Python's parser; here three patterns read it, so that
nothing in it is ever evaluated, and every number in it is compared with the bytes that are there before an array is
made. What writers of the format really write is understood: any order of keys, either kind of quote, any spacing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.serve.bad_request import BadRequest, Body, shown

MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 4096
_MOST_AXES = 32
_SPACE = rb"[ \t\n]*"
_LENGTH = rb"(?:0|[1-9]\d{0,18})"
_KEY = re.compile(_SPACE + rb"(['\"])(descr|fortran_order|shape)\1" + _SPACE + b":" + _SPACE)
_VALUES = {
    b"descr": re.compile(rb"(['\"])([<>|=]?[A-Za-z]\d{0,3})\1"),
    b"fortran_order": re.compile(rb"(True|False)"),
    b"shape": re.compile(
        rb"\((" + _SPACE + rb"(?:" + _LENGTH + _SPACE + b"," + _SPACE + rb")*(?:" + _LENGTH + _SPACE + rb")?)\)"
    ),
}
_AFTER = re.compile(_SPACE + rb"(?:," + _SPACE + rb"|(?=\}))")
_NUMBERS = re.compile(rb"(?:[<>=]?f[248]|[<>=|]?[iu]1|[<>=]?[iu][248])")


class NpyHeader(NamedTuple):
    """What the header says, and where the numbers begin."""

    dtype: np.dtype[Any]
    fortran_order: bool
    shape: tuple[int, ...]
    offset: int


def read_header(body: Body) -> NpyHeader:
    """Read the header of an .npy; versions 1 to 3.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.eye(3, dtype=np.float32))
    >>> read_header(file.getvalue())
    NpyHeader(dtype=dtype('float32'), fortran_order=False, shape=(3, 3), offset=128)
    """
    if not body.startswith(MAGIC) or len(body) < 10:
        raise _damaged("it does not begin like one")
    version = body[6]
    if version not in (1, 2, 3) or body[7] != 0:
        raise _damaged(f"its version is {body[6]}.{body[7]}, and 1.0 to 3.0 are known")
    start = 10 if version == 1 else 12
    length = int.from_bytes(body[8:start], "little")
    if length > _LONGEST_HEADER:
        raise _damaged(f"its header says it is {length} bytes long, and {_LONGEST_HEADER} are allowed")
    text = body[start : start + length]
    if len(text) < length:
        raise _damaged("it ends within its header")
    return NpyHeader(*_parsed(bytes(text)), start + length)


def read_numbers(body: Body, header: NpyHeader) -> NDArray[Any]:
    """The numbers behind the header, in this machine's byte order and in C order.

    Little-endian numbers in C order are not copied when ``body`` can be written to (a ``bytearray``). From ``bytes``
    they are copied once: numpy would give a read-only array, which is another type to compiled kernels.
    """
    count = 1
    for length in header.shape:
        count *= length
    expected, there = count * header.dtype.itemsize, len(body) - header.offset
    if expected != there:
        raise _damaged(f"its header says {shown(expected)} bytes of numbers, and there are {there}")
    flat = np.frombuffer(body, header.dtype, count, header.offset)
    array = flat.reshape(header.shape, order="F" if header.fortran_order else "C")
    flags = array.flags
    ready = flags.c_contiguous and flags.writeable and flags.aligned and header.dtype.isnative
    return array if ready else np.array(array, dtype=header.dtype.newbyteorder("="), order="C")


@lru_cache(maxsize=64)  # a client sends the same header again and again
def _parsed(text: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    found = _fields(text.strip(b" \t\n"))
    return _dtype(found[b"descr"][1]), found[b"fortran_order"][0] == b"True", _shape(found[b"shape"][0])


def _fields(text: bytes) -> dict[bytes, tuple[bytes, ...]]:
    """The three values of the header, each as the groups of its pattern."""
    found: dict[bytes, tuple[bytes, ...]] = {}
    position = 1
    while key := _KEY.match(text, position):
        name = key[2]
        value = _VALUES[name].match(text, key.end())
        if value is None:
            if name == b"descr":
                raise BadRequest(
                    422, "the .npy holds neither floats nor integers. Send logits as numpy.float32 or numpy.float64."
                )
            raise _damaged(f"the {name.decode()} in its header cannot be read")
        if name in found:
            raise _damaged(f"its header names {name.decode()} twice")
        found[name] = value.groups()
        after = _AFTER.match(text, value.end())
        if after is None:
            break
        position = after.end()
    if len(found) != 3 or not text.startswith(b"{") or text[position:] != b"}":
        raise _damaged("its header is not a dictionary of descr, fortran_order and shape")
    return found


def _dtype(descr: bytes) -> np.dtype[Any]:
    if not _NUMBERS.fullmatch(descr):
        what = "Python objects, which are pickles and never opened" if descr.endswith(b"O") else shown(descr.decode())
        raise BadRequest(
            422, f"the .npy must hold float16 to float64 or integers; it holds {what}. Convert it: x.astype('float32')."
        )
    return np.dtype(descr.decode())


def _shape(text: bytes) -> tuple[int, ...]:
    lengths = tuple(int(part) for part in text.split(b",") if part.strip())
    if len(lengths) == 1 and b"," not in text:
        raise _damaged("the shape in its header is a number and no tuple")
    if len(lengths) > _MOST_AXES:
        raise _damaged(f"it has {len(lengths)} axes, and {_MOST_AXES} are allowed")
    return lengths


def _damaged(reason: str) -> BadRequest:
    return BadRequest(400, f"the body is not a whole .npy file: {reason}. Make it with numpy.save(file, array).")
