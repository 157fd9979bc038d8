"""numpy's .npz: a zip archive of .npy members, read side by side without unpacking any of them whole."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.npy_header import NpyHeader, take_npy_header
from normscale.errors import FileFormatError
from normscale.rows.arrays import ARRAYS, CLASS_NAMES, ArraysReader, Stored, native
from normscale.rows.columns import LABELS, TEXT
from normscale.rows.format import register_format
from normscale.rows.formats.npy import NpyStream, fill
from normscale.rows.reader import DAMAGE, KEPT, Block
from normscale.rows.writing import Columns, GatheringSink, texts_of

_MAX_TEXTS = 1 << 24  # bytes of class names; more is a mistake


class NpzSink(GatheringSink):
    """The arrays, uncompressed, as ``numpy.load`` reads them."""

    def save(self, arrays: Columns) -> None:
        """Write arrays by any name, which ``numpy.savez`` cannot: it has parameters called ``file`` and so on."""
        kept = {name: np.array(texts_of(one), np.str_) if one.dtype == TEXT else one for name, one in arrays.items()}
        texts = {name: np.array(texts, np.str_) for name, texts in self.about.texts.items()}
        with zipfile.ZipFile(self.file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in {**kept, **texts}.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


@register_format
class Npz(ArraysReader):
    """Arrays by name; :mod:`normscale.rows.arrays` says which array is what."""

    name, described, suffixes = "npz", "an .npz file (a zip archive of numpy arrays)", (".npz",)
    magic, sink = (b"PK\x03\x04", b"PK\x05\x06"), NpzSink
    # RuntimeError: an encrypted member; NotImplementedError: an unknown compression
    _damage = (*DAMAGE, zipfile.BadZipFile, struct.error, OverflowError, RuntimeError, NotImplementedError)

    def _read_head(self) -> None:
        with self._archive() as archive:
            names = archive.namelist()
            members = {name.removesuffix(".npy"): name for name in names if name.endswith(".npy")}
            if names and not members:
                raise FileFormatError(
                    f"{self.path} is a zip archive without .npy members (it holds {', '.join(names[:5])}); is it a "
                    "PyTorch checkpoint or a model? Write numpy.savez('outputs.npz', logits=...)."
                )
            self._headers = {key: self._checked_header(archive, member) for key, member in members.items()}
            chosen = self._choose_arrays(members, self._texts(ARRAYS))
            self._members = {name: members[key] for name, key in chosen.items()}
            for key, header in self._headers.items():  # one entry per row, numbers or texts: it could be kept
                if len(header.shape) == 1 and header.shape[0] == self.n_rows and header.dtype.kind in "fiuU":
                    self.columns_there += (key,)
                    if key in self._keep:
                        self.columns[key] = TEXT if header.dtype.kind == "U" else header.dtype.newbyteorder("=")
                        self._members[KEPT + key] = members[key]
            self.class_names = self._texts(CLASS_NAMES)

    def _blocks(self) -> Iterator[Block]:
        n_rows = self.n_rows or 0
        wanted = [*self.widths, *([LABELS] if self.has_labels else []), *(KEPT + name for name in self.columns)]
        with ExitStack() as stack:
            archive = stack.enter_context(self._archive())
            streams: dict[str, NpyStream] = {}
            for name in wanted:
                handle = stack.enter_context(_open(archive, self._members[name]))
                streams[name] = NpyStream(handle, take_npy_header(handle))
            for start in range(0, n_rows, self.chunk_rows):
                count = min(self.chunk_rows, n_rows - start)
                block = {name: stream.take(count) for name, stream in streams.items()}
                for name, dtype in self.columns.items():
                    block[KEPT + name] = block[KEPT + name].astype(dtype, copy=False)
                yield block

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with self.source.open() as file, zipfile.ZipFile(file) as archive:
            yield archive

    def _checked_header(self, archive: zipfile.ZipFile, member: str) -> NpyHeader:
        """The header of a member, checked against the size that the archive's directory gives."""
        info = archive.getinfo(member)
        with _open(archive, member) as stream:
            header = take_npy_header(stream)
            if header.dtype.kind in "fiubU" and header.n_bytes != info.file_size - stream.tell():
                raise ValueError(f"the size of {member} is not what its header says")
        return header

    def _look(self, key: str) -> Stored:
        return Stored(self._headers[key].shape, self._headers[key].dtype)

    def _whole(self, key: str) -> NDArray[Any]:
        """An array whose size was checked, read at once."""
        with self._archive() as archive, _open(archive, f"{key}.npy") as stream:
            header = take_npy_header(stream)
            array = np.empty(header.shape, header.dtype, order="F" if header.fortran_order else "C")
            fill(stream, array)
        return native(array)

    def _texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts, or None if it is anything else, which is not ours to read."""
        header = self._headers.get(key)
        if header is None or header.dtype.kind != "U" or len(header.shape) != 1 or header.n_bytes > _MAX_TEXTS:
            return None
        return tuple(self._whole(key).tolist())


def _open(archive: zipfile.ZipFile, member: str) -> zipfile.ZipExtFile:
    """Open a member for reading; zipfile's types do not say what that gives."""
    return cast(zipfile.ZipExtFile, archive.open(member))
