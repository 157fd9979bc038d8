"""numpy's .npz: a zip archive of .npy members, read side by side without unpacking any of them whole."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import numpy as np

from normscale.encoding.npy_header import NpyHeader
from normscale.errors import FileFormatError
from normscale.tables.arrays import (
    ARRAYS,
    CLASS_NAMES,
    HEAD_BIAS,
    HEAD_WEIGHT,
    LABELS,
    Stored,
    checked_head,
    choose_arrays,
    native,
)
from normscale.tables.kept_columns import KEPT, TEXT
from normscale.tables.read_npy import NpyStream, fill, stored_as
from normscale.tables.reader import DAMAGE, Block, TableReader

_MAX_TEXTS = 1 << 24  # bytes of class names; more is a mistake


class NpzReader(TableReader):
    """Arrays by name; :mod:`normscale.tables.arrays` says which array is what."""

    format = "npz"
    # RuntimeError: an encrypted member; NotImplementedError: an unknown compression
    _damage = (*DAMAGE, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError)

    def _read_head(self) -> None:
        with zipfile.ZipFile(self._file) as archive:
            names = archive.namelist()
            members = {name.removesuffix(".npy"): name for name in names if name.endswith(".npy")}
            if names and not members:
                shown = ", ".join(names[:5])
                raise FileFormatError(
                    f"{self.path} is a zip archive without .npy members (it holds {shown}); is it a PyTorch "
                    "checkpoint or a model? Write numpy.savez('outputs.npz', logits=...)."
                )
            headers: dict[str, NpyHeader] = {}

            def look(key: str) -> Stored:
                headers[key] = self._header(archive, members[key])
                return Stored(headers[key].shape, headers[key].dtype)

            declared = _texts(archive, members[ARRAYS]) if ARRAYS in members else None
            chosen = choose_arrays(self.path, members, look, declared, self._wanted)
            self.left_out = chosen.left_out
            for name, key in chosen.arrays.items():
                self.n_rows, self.widths[name] = headers[key].shape
                self._dtypes[name] = headers[key].dtype.newbyteorder("=")
            self._members = {name: members[key] for name, key in chosen.arrays.items()}
            if chosen.labels is not None:
                self.has_labels = True
                self._members[LABELS] = members[chosen.labels]
            if chosen.has_head:
                weight, bias = (_whole(archive, members[key]) for key in (HEAD_WEIGHT, HEAD_BIAS))
                self.head = checked_head(self.path, weight, bias, self.widths)
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
            if header.dtype.kind in "fiub" and header.n_bytes != size:
                raise ValueError(f"the size of {member} is not what its header says")
        return header

    def _blocks(self) -> Iterator[Block]:
        n_rows = self.n_rows or 0
        wanted = [*self.widths, *([LABELS] if self.has_labels else []), *(KEPT + name for name in self.columns)]
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self._file))
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


def _whole(archive: zipfile.ZipFile, member: str) -> np.ndarray[Any, np.dtype[Any]]:
    """An array whose size was checked, read at once."""
    with _open(archive, member) as stream:
        header = stored_as(stream)
        array = np.empty(header.shape, header.dtype, order="F" if header.fortran_order else "C")
        fill(stream, array)
    return native(array)


def _open(archive: zipfile.ZipFile, member: str) -> zipfile.ZipExtFile:
    """Open a member for reading; zipfile's types do not say what that gives."""
    return cast(zipfile.ZipExtFile, archive.open(member))
