"""numpy's .npy, taken from bytes that a client sent; every number in its header is compared with what is there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.npy_header import NpyHeader, NpyHeaderError, NpyHoldsRecords, npy_header_of
from normscale.serve.bad_request import BadRequest, Body, shown


def read_header(body: Body) -> NpyHeader:
    """Read the header of an .npy that holds floats or integers; anything else is a :class:`BadRequest`."""
    try:
        header = npy_header_of(body)
    except NpyHoldsRecords:
        raise BadRequest(
            422, "the .npy holds neither floats nor integers. Send logits as numpy.float32 or numpy.float64."
        ) from None
    except NpyHeaderError as error:
        raise _damaged(str(error)) from None
    if header.dtype.kind not in "fiu" or header.dtype.itemsize > 8:
        objects = header.dtype.hasobject
        what = "Python objects, which are pickles and never opened" if objects else shown(header.dtype.str)
        raise BadRequest(
            422, f"the .npy must hold float16 to float64 or integers; it holds {what}. Convert it: x.astype('float32')."
        )
    return header


def read_numbers(body: Body, header: NpyHeader) -> NDArray[Any]:
    """The numbers behind the header, in this machine's byte order and in C order.

    Little-endian numbers in C order are not copied when ``body`` can be written to (a ``bytearray``). From ``bytes``
    they are copied once: numpy would give a read-only array, which is another type to compiled kernels.
    """
    expected, there = header.n_bytes, len(body) - header.offset
    if expected != there:
        raise _damaged(f"its header says {shown(expected)} bytes of numbers, and there are {there}")
    flat = np.frombuffer(body, header.dtype, math.prod(header.shape), header.offset)
    array = flat.reshape(header.shape, order="F" if header.fortran_order else "C")
    flags = array.flags
    ready = flags.c_contiguous and flags.writeable and flags.aligned and header.dtype.isnative
    return array if ready else np.array(array, dtype=header.dtype.newbyteorder("="), order="C")


def _damaged(reason: str) -> BadRequest:
    return BadRequest(400, f"the body is not a whole .npy file: {reason}. Make it with numpy.save(file, array).")
