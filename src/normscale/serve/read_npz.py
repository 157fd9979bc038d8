"""numpy's .npz, several arrays in one zip archive, taken from bytes that a stranger sent.

Only what ``numpy.savez`` writes is read: members that are stored as they are. Nothing is decompressed, so an archive
never becomes larger than the body it came in, and its directory is bounded before Python's zipfile reads it.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Collection

from normscale.serve.bad_request import BadRequest, Body, shown

MAGIC = b"PK\x03\x04"
_END, _END_BYTES = b"PK\x05\x06", 22
_LOCATOR_64, _LOCATOR_BYTES = b"PK\x06\x07", 20
_MOST_MEMBERS, _MOST_DIRECTORY = 64, 16 << 10


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
                raise _damaged("two of its arrays have one name")
            _check_names(members, names)
            return {name: _content(archive, members[name], len(body)) for name in names}
    except (
        zipfile.BadZipFile,
        struct.error,
        OSError,
        EOFError,
        ValueError,
        OverflowError,
        NotImplementedError,
    ) as error:
        raise _damaged(shown(error)) from None
    except RuntimeError:  # zipfile's word for it
        raise BadRequest(415, "the .npz is encrypted. Write it with numpy.savez.") from None


def _check_directory(body: Body) -> None:
    """Refuse a directory that would take more memory than an archive of a few arrays has reason to."""
    end = body[-_END_BYTES:]
    if len(end) < _END_BYTES or not end.startswith(_END):
        raise _damaged("it does not end like one")
    members, size = struct.unpack_from("<HI", end, 10)
    if body[-_END_BYTES - _LOCATOR_BYTES : -_END_BYTES].startswith(_LOCATOR_64):
        raise _damaged("its directory is of the form for 4 GB and more")
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
        raise _damaged("an array says it is larger than the file")
    return bytearray(archive.read(info))  # writable, so that its numbers need not be copied once more


def _damaged(reason: str) -> BadRequest:
    return BadRequest(400, f"the body is not a whole .npz file: {reason}. Make it with numpy.savez(file, logits=...).")
