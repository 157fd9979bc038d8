"""numpy's .npz: a zip archive of .npy members, read side by side without unpacking any of them whole.

Of archives that a stranger sent only what ``numpy.savez`` writes is read: members that are stored as they are. Nothing
is decompressed, so an archive never becomes larger than the body it came in, and its directory is bounded before
Python's zipfile reads it.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.npy_header import NpyHeader
from normscale.errors import BodyRefused, FileFormatError
from normscale.rows.arrays import ARRAYS, CLASS_NAMES, LABELS, Stored, native
from normscale.rows.columns import TEXT
from normscale.rows.format import ArrayMap, Body, BodyLimits, TableFormat, quoted, register_format
from normscale.rows.formats.npy import NpyStream, fill, parse_rows, stored_as
from normscale.rows.named_arrays import NamedArraysReader
from normscale.rows.reader import DAMAGE, KEPT, Block, ReadOptions, TableReader
from normscale.rows.source import ByteSource
from normscale.rows.writing import About, Columns, GatheringSink, Sink, texts_of

_MAX_TEXTS = 1 << 24  # bytes of class names; more is a mistake
_END, _END_BYTES = b"PK\x05\x06", 22
_LOCATOR_64, _LOCATOR_BYTES = b"PK\x06\x07", 20
_MOST_MEMBERS, _MOST_DIRECTORY = 64, 16 << 10
_ZIP_ERRORS = (zipfile.BadZipFile, struct.error, OSError, EOFError, ValueError, OverflowError, NotImplementedError)


@register_format
class Npz(TableFormat):
    """Arrays by name; :mod:`normscale.rows.arrays` says which array is what."""

    name, described = "npz", "an .npz file (a zip archive of numpy arrays)"
    suffixes, media_types = (".npz",), ("application/x-npz",)
    magic = (b"PK\x03\x04", _END)

    def open(self, source: ByteSource, options: ReadOptions) -> TableReader:
        """Read the headers of the members."""
        return NpzReader(self, source, options)

    def sink(self, file: str, path: str, columns: Mapping[str, Any], about: About) -> Sink:
        """Write the arrays, uncompressed, as ``numpy.load`` reads them."""
        return _NpzSink(file, path, columns, about)

    def parse(self, body: Body, limits: BodyLimits) -> ArrayMap:
        """Exactly the arrays that are wanted."""
        members = _members(body, limits.widths)
        return {name: parse_rows(members[name], name, limits) for name in limits.widths}


class _NpzSink(GatheringSink):
    def save(self, arrays: Columns) -> None:
        """Write arrays by any name, which ``numpy.savez`` cannot: it has parameters called ``file`` and so on."""
        kept = {name: np.array(texts_of(one), np.str_) if one.dtype == TEXT else one for name, one in arrays.items()}
        texts = {name: np.array(texts, np.str_) for name, texts in self.about.texts.items()}
        with zipfile.ZipFile(self.file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in {**kept, **texts}.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


class NpzReader(NamedArraysReader):
    """Members of an archive."""

    # RuntimeError: an encrypted member; NotImplementedError: an unknown compression
    _damage = (*DAMAGE, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError)

    def _read_head(self) -> None:
        with self.source.open() as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            members = {name.removesuffix(".npy"): name for name in names if name.endswith(".npy")}
            if names and not members:
                shown = ", ".join(names[:5])
                raise FileFormatError(
                    f"{self.path} is a zip archive without .npy members (it holds {shown}); is it a PyTorch "
                    "checkpoint or a model? Write numpy.savez('outputs.npz', logits=...)."
                )

            def look(key: str) -> Stored:
                header = self._header(archive, members[key])
                return Stored(header.shape, header.dtype)

            declared = _texts(archive, members[ARRAYS]) if ARRAYS in members else None
            keys = self._take(members, look, declared, lambda key: _whole(archive, members[key]))
            self._members = {name: members[key] for name, key in keys.items()}
            for key in members:
                self._look_at_column(archive, key, members[key])
            if CLASS_NAMES in members:
                self.class_names = _texts(archive, members[CLASS_NAMES])

    def _look_at_column(self, archive: zipfile.ZipFile, key: str, member: str) -> None:
        """Note an array of one entry per row, numbers or texts, that could be kept beside the outputs."""
        with _open(archive, member) as stream:
            header = stored_as(stream)
        if len(header.shape) == 1 and header.shape[0] == self.n_rows and header.dtype.kind in "fiuU":
            self.columns_there += (key,)
            if key in self._keep:
                self.columns[key] = TEXT if header.dtype.kind == "U" else header.dtype.newbyteorder("=")
                self._members[KEPT + key] = member

    def _header(self, archive: zipfile.ZipFile, member: str) -> NpyHeader:
        """The header of a member, checked against the size that the archive's directory gives."""
        with _open(archive, member) as stream:
            header = stored_as(stream)
            size = archive.getinfo(member).file_size - stream.tell()
            if header.dtype.kind in "fiubU" and header.n_bytes != size:
                raise ValueError(f"the size of {member} is not what its header says")
        return header

    def _blocks(self) -> Iterator[Block]:
        n_rows = self.n_rows or 0
        wanted = [*self.widths, *([LABELS] if self.has_labels else []), *(KEPT + name for name in self.columns)]
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(self.source.open())))
            streams: dict[str, NpyStream] = {}
            for name in wanted:
                handle = stack.enter_context(_open(archive, self._members[name]))
                streams[name] = NpyStream(handle, stored_as(handle))
            for start in range(0, n_rows, self.chunk_rows):
                count = min(self.chunk_rows, n_rows - start)
                block = {name: stream.rows(count) for name, stream in streams.items()}
                for name, dtype in self.columns.items():
                    block[KEPT + name] = block[KEPT + name].astype(dtype, copy=False)
                yield block


def _texts(archive: zipfile.ZipFile, member: str) -> tuple[str, ...] | None:
    """A list of texts, or None if it is anything else, which is not ours to read."""
    with _open(archive, member) as stream:
        header = stored_as(stream)
        if header.dtype.kind != "U" or len(header.shape) != 1 or header.n_bytes > _MAX_TEXTS:
            return None
        texts = np.empty(header.shape, header.dtype)
        if header.n_bytes:  # texts of length 0 have none
            fill(stream, texts)
    return tuple(native(texts).tolist())


def _whole(archive: zipfile.ZipFile, member: str) -> NDArray[Any]:
    """An array whose size was checked, read at once."""
    with _open(archive, member) as stream:
        header = stored_as(stream)
        array = np.empty(header.shape, header.dtype, order="F" if header.fortran_order else "C")
        fill(stream, array)
    return native(array)


def _open(archive: zipfile.ZipFile, member: str) -> zipfile.ZipExtFile:
    """Open a member for reading; zipfile's types do not say what that gives."""
    return cast(zipfile.ZipExtFile, archive.open(member))


# -- the body of a request ---------------------------------------------------------------------------------------


def _members(body: Body, names: Collection[str]) -> dict[str, bytearray]:
    """Each array's own .npy, by name: exactly the arrays that are wanted."""
    _check_directory(body)
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) != len(archive.infolist()):
                raise _damaged("two of its arrays have one name")
            _check_names(members, names)
            return {name: _content(archive, members[name], len(body)) for name in names}
    except BodyRefused:
        raise
    except _ZIP_ERRORS as error:
        raise _damaged(quoted(error)) from None
    except RuntimeError:  # zipfile's word for it
        raise BodyRefused("unknown format", "the .npz is encrypted. Write it with numpy.savez.") from None


def _check_directory(body: Body) -> None:
    """Refuse a directory that would take more memory than an archive of a few arrays has reason to."""
    end = body[-_END_BYTES:]
    if len(end) < _END_BYTES or not end.startswith(_END):
        raise _damaged("it does not end like one")
    members, size = struct.unpack_from("<HI", end, 10)
    if body[-_END_BYTES - _LOCATOR_BYTES : -_END_BYTES].startswith(_LOCATOR_64):
        raise _damaged("its directory is of the form for 4 GB and more")
    if members > _MOST_MEMBERS or size > _MOST_DIRECTORY:
        raise BodyRefused("too large", f"the .npz holds {members} arrays; at most {_MOST_MEMBERS} are looked at.")


def _check_names(found: Collection[str], wanted: Collection[str]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        there = quoted(", ".join(found)) or "nothing"
        raise BodyRefused("rule", f"{' and '.join(missing)} must be in the .npz, too; it holds {there}.")
    other = [name for name in found if name not in wanted]
    if other:
        raise BodyRefused(
            "rule", f"the .npz holds {quoted(', '.join(other))}, which nobody reads; send {', '.join(wanted)}."
        )


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most_bytes: int) -> bytearray:
    if info.compress_type != zipfile.ZIP_STORED:
        raise BodyRefused("unknown format", "compressed .npz files are not read. Write it with numpy.savez.")
    if info.file_size != info.compress_size or info.file_size > most_bytes:
        raise _damaged("an array says it is larger than the file")
    return bytearray(archive.read(info))  # writable, so that its numbers need not be copied once more


def _damaged(reason: str) -> BodyRefused:
    return BodyRefused(
        "damaged", f"the body is not a whole .npz file: {reason}. Make it with numpy.savez(file, logits=...)."
    )
