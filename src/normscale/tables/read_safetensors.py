""".safetensors: a JSON header and raw tensors; read here row by row, bfloat16 included."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader

import numpy as np

from normscale._validate import Rows
from normscale.encoding.json_text import read_json
from normscale.encoding.safetensors_header import DTYPES, TensorPlace, read_safetensors_header, widened
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
from normscale.tables.read_npy import fill
from normscale.tables.reader import Block, TableReader


class SafetensorsReader(TableReader):
    """Tensors by name, as :mod:`normscale.tables.arrays` says; class names as JSON in the metadata.

    Rows are read from their offsets, because the library's numpy interface has no bfloat16 and reads tensors whole.
    bfloat16 becomes float32, exactly.
    """

    format = "safetensors"

    def _read_head(self) -> None:
        with open(self._file, "rb") as file:
            tensors, metadata = read_safetensors_header(file)
            declared = _texts(metadata.get(ARRAYS))
            chosen = choose_arrays(
                self.path, tensors, lambda key: self._look(key, tensors[key]), declared, self._wanted
            )
            self.left_out = chosen.left_out
            self._places = {name: tensors[key] for name, key in chosen.arrays.items()}
            for name, place in self._places.items():
                self.n_rows, self.widths[name] = place.shape
                self._dtypes[name] = np.dtype(np.float32) if place.kind == "BF16" else place.dtype
            if chosen.labels is not None:
                self.has_labels = True
                self._places[LABELS] = tensors[chosen.labels]
            if chosen.has_head:
                weight, bias = (tensors[key] for key in (HEAD_WEIGHT, HEAD_BIAS))
                self.head = checked_head(self.path, _rows(file, weight), _rows(file, bias), self.widths)
            self.class_names = _texts(metadata.get(CLASS_NAMES))

    def _look(self, name: str, place: TensorPlace) -> Stored:
        if place.kind not in DTYPES:
            raise FileFormatError(
                f"{self.path}: {name} is stored as {place.kind}; expected one of {', '.join(DTYPES)}. "
                "Convert it to F32 or F16 where it is made."
            )
        return Stored(place.shape, place.dtype)

    def _blocks(self) -> Iterator[Block]:
        n_rows = self.n_rows or 0
        wanted = [*self.widths, *([LABELS] if self.has_labels else [])]
        with open(self._file, "rb") as file:
            for start in range(0, n_rows, self.chunk_rows):
                stop = min(start + self.chunk_rows, n_rows)
                yield {name: _rows(file, self._places[name], start, stop) for name in wanted}


def _rows(file: BufferedReader, place: TensorPlace, start: int = 0, stop: int | None = None) -> Rows:
    """Some rows of a tensor, by default all."""
    file.seek(place.offset + start * place.row_bytes)
    array = np.empty(((place.shape[0] if stop is None else stop) - start, *place.shape[1:]), place.dtype)
    fill(file, array)
    return widened(array) if place.kind == "BF16" else native(array)


def _texts(document: str | None) -> tuple[str, ...] | None:
    """A JSON list of texts, or None if it is anything else, which is not ours to read."""
    try:
        texts = None if document is None else read_json(document)
    except ValueError:
        return None
    return tuple(map(str, texts)) if isinstance(texts, list) else None
