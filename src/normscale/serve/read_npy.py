"""numpy's .npy, and .npz, which is several of them in one zip archive, taken from bytes that a stranger sent.

Every number in a header is compared with what is there. Of archives only what ``numpy.savez`` writes is read: members
that are stored as they are. Nothing is decompressed, so an archive never becomes larger than the body it came in, and
its directory is bounded before Python's zipfile reads it.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.npy_header import NpyHeader, NpyHeaderError, NpyHoldsRecords, npy_header_of
from normscale.serve.bad_request import BadRequest, Body, shown

ZIP_MAGIC = b"PK\x03\x04"
_END, _END_BYTES = b"PK\x05\x06", 22
_LOCATOR_64, _LOCATOR_BYTES = b"PK\x06\x07", 20
_MOST_MEMBERS, _MOST_DIRECTORY = 64, 16 << 10
_ZIP_ERRORS = (zipfile.BadZipFile, struct.error, OSError, EOFError, ValueError, OverflowError, NotImplementedError)


def read_rows(body: Body, name: str, width: int, max_rows: int) -> NDArray[Any]:
    """Rows (n, width) out of an .npy; a single row may come without its first axis."""
    header = read_header(body)
    shape = header.shape
    if len(shape) not in (1, 2) or shape[-1] != width:
        raise BadRequest(422, f"{name} must have shape (n, {width}), or ({width},) for one row; got {shown(shape)}.")
    if len(shape) == 2 and not 1 <= shape[0] <= max_rows:
        if not shape[0]:
            raise BadRequest(422, "the .npy holds no rows; at least one is needed.")
        raise BadRequest(413, f"{shape[0]} rows in one request; at most {max_rows} are taken. Send them in parts.")
    return read_numbers(body, header).reshape(-1, width)


def read_inputs_of_npy(body: Body, axes: int, wanted: np.dtype[Any], max_elements: int) -> NDArray[Any]:
    """A model's inputs of type ``wanted`` and with so many axes, the batch first, out of an .npy."""
    header = read_header(body)
    count = math.prod(header.shape)
    if count > max_elements:
        raise BadRequest(413, f"{shown(count)} numbers in one request; at most {max_elements} are taken.")
    if header.dtype.kind == "f" and wanted.kind != "f":
        raise BadRequest(422, f"the model takes {wanted}; got {header.dtype.name}. Convert the inputs.")
    numbers = read_numbers(body, header)
    with np.errstate(over="ignore"):  # too large for the model's type: infinite, and refused as such
        array = numbers.astype(wanted, copy=False)
    if wanted.kind != "f" and not np.array_equal(array, numbers):
        raise BadRequest(422, f"the model takes {wanted}, which does not hold every number sent.")
    return array if array.ndim != axes - 1 else array[None]


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


def read_members(body: Body, names: Collection[str]) -> dict[str, bytearray]:
    """Each array's own .npy, by name: exactly the arrays that are wanted.

    Examples
    --------
    >>> import numpy as np
    >>> file = io.BytesIO()
    >>> np.savez(file, logits=np.eye(2))
    >>> bytes(read_members(file.getvalue(), ["logits"])["logits"][1:6])
    b'NUMPY'
    """
    _check_directory(body)
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) != len(archive.infolist()):
                raise _damaged_archive("two of its arrays have one name")
            _check_names(members, names)
            return {name: _content(archive, members[name], len(body)) for name in names}
    except _ZIP_ERRORS as error:
        raise _damaged_archive(shown(error)) from None
    except RuntimeError:  # zipfile's word for it
        raise BadRequest(415, "the .npz is encrypted. Write it with numpy.savez.") from None


def _check_directory(body: Body) -> None:
    """Refuse a directory that would take more memory than an archive of a few arrays has reason to."""
    end = body[-_END_BYTES:]
    if len(end) < _END_BYTES or not end.startswith(_END):
        raise _damaged_archive("it does not end like one")
    members, size = struct.unpack_from("<HI", end, 10)
    if body[-_END_BYTES - _LOCATOR_BYTES : -_END_BYTES].startswith(_LOCATOR_64):
        raise _damaged_archive("its directory is of the form for 4 GB and more")
    if members > _MOST_MEMBERS or size > _MOST_DIRECTORY:
        raise BadRequest(413, f"the .npz holds {members} arrays; at most {_MOST_MEMBERS} are looked at.")


def _check_names(found: Collection[str], wanted: Collection[str]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise BadRequest(
            422, f"{' and '.join(missing)} must be in the .npz, too; it holds {shown(', '.join(found)) or 'nothing'}."
        )
    other = [name for name in found if name not in wanted]
    if other:
        raise BadRequest(
            422, f"the .npz holds {shown(', '.join(other))}, which nobody reads; send {', '.join(wanted)}."
        )


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most_bytes: int) -> bytearray:
    if info.compress_type != zipfile.ZIP_STORED:
        raise BadRequest(415, "compressed .npz files are not read. Write it with numpy.savez.")
    if info.file_size != info.compress_size or info.file_size > most_bytes:
        raise _damaged_archive("an array says it is larger than the file")
    return bytearray(archive.read(info))  # writable, so that its numbers need not be copied once more


def _damaged(reason: str) -> BadRequest:
    return BadRequest(400, f"the body is not a whole .npy file: {reason}. Make it with numpy.save(file, array).")


def _damaged_archive(reason: str) -> BadRequest:
    return BadRequest(400, f"the body is not a whole .npz file: {reason}. Make it with numpy.savez(file, logits=...).")
