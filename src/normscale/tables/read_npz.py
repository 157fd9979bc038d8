"""numpy's .npz: a zip archive of .npy members, read side by side without unpacking any of them whole."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import numpy as np

from normscale.errors import FileFormatError
from normscale.tables.arrays import check_shapes, choose_arrays
from normscale.tables.read_npy import NpyHeader, NpyStream, fill
from normscale.tables.reader import DAMAGE, Block, TableReader

_MAX_NAMES = 1 << 24  # bytes of class names; more is a mistake


class NpzReader(TableReader):
    """Arrays ``logits``, maybe ``features`` and ``labels``, and maybe strings ``class_names``."""

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
            chosen = zip(("logits", "features", "labels"), choose_arrays(self.path, members), strict=True)
            self._members = {role: members[key] for role, key in chosen if key is not None}
            headers = {role: self._header(archive, member) for role, member in self._members.items()}
            check_shapes(
                self.path,
                {role: header.shape for role, header in headers.items()},
                {role: header.dtype for role, header in headers.items()},
            )
            self.n_rows, self.n_classes = headers["logits"].shape
            self._dtype = headers["logits"].dtype.newbyteorder("=")
            self.n_features = headers["features"].shape[1] if "features" in headers else None
            self.has_labels = "labels" in headers
            if "class_names" in members:
                self.class_names = self._names(archive, members["class_names"])

    def _header(self, archive: zipfile.ZipFile, member: str) -> NpyHeader:
        """The header of a member, checked against the size that the archive's directory gives."""
        with _open(archive, member) as stream:
            header = NpyHeader(stream)
            size = archive.getinfo(member).file_size - stream.tell()
            if not header.dtype.hasobject and header.n_bytes != size:
                raise ValueError(f"the size of {member} is not what its header says")
        return header

    def _names(self, archive: zipfile.ZipFile, member: str) -> tuple[str, ...] | None:
        """The class names, if they are one string for each class; anything else is not ours to read."""
        with _open(archive, member) as stream:
            header = NpyHeader(stream)
            if header.dtype.kind != "U" or header.shape != (self.n_classes,) or header.n_bytes > _MAX_NAMES:
                return None
            names = np.empty(header.shape, header.dtype)
            if header.n_bytes:  # strings of length 0 have none
                fill(stream, names)
        return tuple(names.tolist())

    def _blocks(self) -> Iterator[Block]:
        n_rows = self.n_rows or 0
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self._file))
            streams: dict[str, NpyStream] = {}
            for role, member in self._members.items():
                handle = stack.enter_context(_open(archive, member))
                streams[role] = NpyStream(handle, NpyHeader(handle))
            for start in range(0, n_rows, self.chunk_rows):
                count = min(self.chunk_rows, n_rows - start)
                rows: dict[str, Any] = {role: stream.rows(count) for role, stream in streams.items()}
                yield rows["logits"], rows.get("features"), rows.get("labels")


def _open(archive: zipfile.ZipFile, member: str) -> zipfile.ZipExtFile:
    """Open a member for reading; zipfile's types do not say what that gives."""
    return cast(zipfile.ZipExtFile, archive.open(member))
