""".safetensors: a JSON header and raw tensors; read here row by row, bfloat16 included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from normscale._validate import Rows
from normscale.errors import FileFormatError
from normscale.tables.arrays import check_shapes, choose_arrays
from normscale.tables.read_npy import fill
from normscale.tables.reader import DAMAGE, Block, TableReader

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


class SafetensorsReader(TableReader):
    """Tensors ``logits``, maybe ``features`` and ``labels``; class names as JSON in the metadata.

    The safetensors library checks the header (that offsets fit the file and do not overlap); the rows are
    then read from their offsets, because its numpy interface has no bfloat16. That becomes float32, exactly.
    """

    format = "safetensors"
    _damage = (*DAMAGE, TypeError, SafetensorError)

    def _read_head(self) -> None:
        with safe_open(self._file, framework="numpy"):
            pass
        with open(self._file, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        chosen = zip(("logits", "features", "labels"), choose_arrays(self.path, header), strict=True)
        self._tensors = {
            role: _Tensor(self.path, key, header[key], 8 + length) for role, key in chosen if key is not None
        }
        check_shapes(
            self.path,
            {role: tensor.shape for role, tensor in self._tensors.items()},
            {role: tensor.dtype for role, tensor in self._tensors.items()},
        )
        logits = self._tensors["logits"]
        self.n_rows, self.n_classes = logits.shape
        self._dtype = np.dtype(np.float32) if logits.bfloat16 else logits.dtype
        self.n_features = self._tensors["features"].shape[1] if "features" in self._tensors else None
        self.has_labels = "labels" in self._tensors
        names = json.loads(metadata["class_names"]) if "class_names" in metadata else None
        if isinstance(names, list) and len(names) == self.n_classes:
            self.class_names = tuple(str(name) for name in names)

    def _blocks(self) -> Iterator[Block]:
        n_rows = self.n_rows or 0
        with open(self._file, "rb") as file:
            for start in range(0, n_rows, self.chunk_rows):
                stop = min(start + self.chunk_rows, n_rows)
                rows: dict[str, Rows] = {}
                for role, tensor in self._tensors.items():
                    file.seek(tensor.offset + start * tensor.row_bytes)
                    array = np.empty((stop - start, *tensor.shape[1:]), tensor.dtype)
                    fill(file, array)
                    rows[role] = _widened(array) if tensor.bfloat16 else array
                yield rows["logits"], rows.get("features"), rows.get("labels")


class _Tensor:
    """Where one tensor lies in the file, and of what."""

    __slots__ = ("bfloat16", "dtype", "offset", "row_bytes", "shape")

    def __init__(self, path: str, name: str, entry: dict[str, Any], data_start: int) -> None:
        if entry["dtype"] not in _DTYPES:
            raise FileFormatError(
                f"{path}: {name} is stored as {entry['dtype']}; expected one of {', '.join(_DTYPES)}. "
                "Convert it to F32 or F16 where it is made."
            )
        self.bfloat16 = entry["dtype"] == "BF16"
        self.dtype: np.dtype[Any] = np.dtype(_DTYPES[entry["dtype"]])
        self.shape = tuple(int(length) for length in entry["shape"])
        self.offset = data_start + int(entry["data_offsets"][0])
        self.row_bytes = self.dtype.itemsize
        for length in self.shape[1:]:
            self.row_bytes *= length


def _widened(bits: Rows) -> Rows:
    """bfloat16 to float32: the same upper sixteen bits, zeros below."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
