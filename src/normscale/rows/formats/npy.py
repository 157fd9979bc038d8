"""numpy's .npy, one array with a short header, as a file or a pipe; and .npz, a zip archive of them."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.npy_header import MAGIC, ByteStream, NpyHeader, take_npy_header
from normscale.errors import FileFormatError
from normscale.outputs import LOGITS
from normscale.rows.arrays import ARRAYS, CLASS_NAMES, ArraysReader, Stored, Take, fill, native
from normscale.rows.columns import TEXT
from normscale.rows.files import register_format
from normscale.rows.reader import DAMAGE, KEPT, Block, Columns
from normscale.rows.writing import GatheringSink, texts_of

_MAX_TEXTS = 1 << 24  # bytes of class names; more is a mistake


class NpySink(GatheringSink):
    """One array: the logits, the scores, or the first."""

    def save(self, arrays: Columns) -> None:
        name = next((name for name in (LOGITS, "score") if name in arrays), next(iter(arrays)))
        with open(self.file, "wb") as file:
            np.save(file, arrays[name], allow_pickle=False)


@register_format
class Npy(ArraysReader):
    """One matrix of logits; one in a file here is mapped into memory piece by piece, so that nothing is copied."""

    name, described, suffixes = "npy", "an .npy file (one numpy array)", (".npy",)
    magic, sink, streams, keeps = (MAGIC,), NpySink, True, frozenset()

    def _read_head(self) -> None:
        with self.source.open() as stream:
            header = self._header = take_npy_header(stream)
            self._take_array(LOGITS, self._look(LOGITS))
            self._keys = {LOGITS: LOGITS}
            if self.source.once:
                return  # the rows are counted as they come
            if (there := stream.seek(0, os.SEEK_END) - header.offset) != header.n_bytes:
                raise ValueError(f"its header says {header.n_bytes} bytes of numbers, and there are {there}")

    def _look(self, key: str) -> Stored:
        return Stored(self._header.shape, self._header.dtype)

    def _open_array(self, key: str, stack: ExitStack) -> Take:
        if self.source.path is not None:
            return _mapped(self.source.path, self._header)
        stream = stack.enter_context(self.source.open())
        stream.read(self._header.offset)
        return _taken(stream, self._header)

    def _blocks(self) -> Iterator[Block]:
        yield from super()._blocks()
        if self.source.once and self.source.open().read(1):
            raise ValueError("more bytes follow than its header says")


class NpzSink(GatheringSink):
    """The arrays, uncompressed, as ``numpy.load`` reads them."""

    def save(self, arrays: Columns) -> None:
        """Write arrays by any name, which ``numpy.savez`` cannot: it has parameters called ``file`` and so on."""
        kept = {name: np.array(texts_of(one), np.str_) if one.dtype == TEXT else one for name, one in arrays.items()}
        texts = {name: np.array(texts, np.str_) for name, texts in self.texts.items()}
        with zipfile.ZipFile(self.file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in {**kept, **texts}.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


@register_format
class Npz(ArraysReader):
    """Arrays by name, read side by side without unpacking any of them whole."""

    name, described, suffixes = "npz", "an .npz file (a zip archive of numpy arrays)", (".npz",)
    magic, sink = (b"PK\x03\x04", b"PK\x05\x06"), NpzSink
    # RuntimeError: an encrypted member; NotImplementedError: an unknown compression
    _damage = (*DAMAGE, zipfile.BadZipFile, struct.error, OverflowError, RuntimeError, NotImplementedError)

    def _read_head(self) -> None:
        with ExitStack() as stack:
            archive = self._archive(stack)
            names = archive.namelist()
            keys = [name.removesuffix(".npy") for name in names if name.endswith(".npy")]
            if names and not keys:
                raise FileFormatError(
                    f"{self.path} is a zip archive without .npy members (it holds {', '.join(names[:5])}); is it a "
                    "PyTorch checkpoint or a model? Write numpy.savez('outputs.npz', logits=...)."
                )
            self._headers = {key: _checked_header(archive, f"{key}.npy") for key in keys}
        self._choose_arrays(keys, self._texts(ARRAYS))
        for key, header in self._headers.items():  # one entry per row, numbers or texts: it could be kept
            if len(header.shape) == 1 and header.shape[0] == self.n_rows and header.dtype.kind in "fiuU":
                self.columns_there += (key,)
                if key in self._keep:
                    self.columns[key] = TEXT if header.dtype.kind == "U" else header.dtype.newbyteorder("=")
                    self._keys[KEPT + key] = key
        self.class_names = self._texts(CLASS_NAMES)

    def _archive(self, stack: ExitStack) -> zipfile.ZipFile:
        return stack.enter_context(zipfile.ZipFile(stack.enter_context(self.source.open())))

    def _look(self, key: str) -> Stored:
        return Stored(self._headers[key].shape, self._headers[key].dtype)

    def _open_array(self, key: str, stack: ExitStack) -> Take:
        stream = cast(zipfile.ZipExtFile, stack.enter_context(self._archive(stack).open(f"{key}.npy")))
        return _taken(stream, take_npy_header(stream))

    def _texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts, or None if it is anything else, which is not ours to read."""
        header = self._headers.get(key)
        if header is None or header.dtype.kind != "U" or len(header.shape) != 1 or header.n_bytes > _MAX_TEXTS:
            return None
        return tuple(self._whole(key).tolist())


def _checked_header(archive: zipfile.ZipFile, member: str) -> NpyHeader:
    with archive.open(member) as stream:
        header = take_npy_header(cast(zipfile.ZipExtFile, stream))
        if header.dtype.kind in "fiubU" and header.n_bytes != archive.getinfo(member).file_size - stream.tell():
            raise ValueError(f"the size of {member} is not what its header says")
    return header


def _mapped(path: str, header: NpyHeader) -> Take:
    """The rows of a file.

    One short mapping per chunk keeps resident memory bounded. Mode "c" gives arrays that may be written to without
    touching the file: read-only arrays are another type to compiled kernels.
    """

    def between(start: int, stop: int) -> NDArray[Any]:
        if header.fortran_order:
            whole = np.memmap(path, header.dtype, "r", header.offset, header.shape, order="F")
            return np.ascontiguousarray(whole[start:stop])
        offset = header.offset + start * header.row_bytes
        return np.asarray(np.memmap(path, header.dtype, "c", offset, (stop - start, header.shape[1])))

    return _in_turn(between)


def _taken(stream: ByteStream, header: NpyHeader) -> Take:
    """The rows of a stream that stands behind the header; columns one after the other are read whole first."""
    if not header.fortran_order or len(header.shape) < 2:
        return lambda count: native(fill(stream, (count, *header.shape[1:]), header.dtype))
    whole = fill(stream, header.shape, header.dtype, "F")
    return _in_turn(lambda start, stop: np.ascontiguousarray(whole[start:stop]))


def _in_turn(between: Callable[[int, int], NDArray[Any]]) -> Take:
    row = 0

    def take(count: int) -> NDArray[Any]:
        nonlocal row
        row += count
        return native(between(row - count, row))

    return take
