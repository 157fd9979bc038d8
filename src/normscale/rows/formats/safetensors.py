""".safetensors: a JSON header and raw tensors; read here row by row, bfloat16 included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np

from normscale._validate import Rows
from normscale.encoding.json_text import read_json, write_json
from normscale.encoding.safetensors_header import DTYPES, TensorPlace, read_safetensors_header, widened
from normscale.errors import InvalidInput
from normscale.rows.arrays import ARRAYS, CLASS_NAMES, ArraysReader, Stored, native
from normscale.rows.columns import LABELS
from normscale.rows.format import register_format
from normscale.rows.formats.npy import fill
from normscale.rows.reader import Block
from normscale.rows.writing import About, Columns, GatheringSink


class SafetensorsSink(GatheringSink):
    """Tensors; there is no place for texts beside the rows."""

    def __init__(self, file: str, path: str, columns: Mapping[str, Any], about: About) -> None:
        if any(not isinstance(kind, np.dtype) or kind.base.kind not in "fiub" for kind in columns.values()):
            raise InvalidInput(
                f"{path}: a .safetensors file holds no texts and times. Write .parquet, .csv, .jsonl or .npz instead."
            )
        super().__init__(file, path, columns, about)

    def save(self, arrays: Columns) -> None:
        """Write the arrays in C order: the library writes memory as it lies, also that of a transposed view."""
        from safetensors.numpy import save_file

        texts = {name: write_json(texts) for name, texts in self.about.texts.items()}
        save_file({name: np.ascontiguousarray(one) for name, one in arrays.items()}, self.file, metadata=texts or None)


@register_format
class Safetensors(ArraysReader):
    """Tensors by name, as :mod:`normscale.rows.arrays` says; class names as JSON in the metadata.

    Rows are read from their offsets, because the library's numpy interface has no bfloat16 and reads tensors whole.
    bfloat16 becomes float32, exactly.
    """

    name, described, suffixes = "safetensors", "a .safetensors file", (".safetensors",)
    sink = SafetensorsSink

    @classmethod
    def begins(cls, head: bytes) -> bool:
        """The length of a JSON header in eight bytes, then its opening brace."""
        return head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 40

    def _read_head(self) -> None:
        with self.source.open() as file:
            self._tensors, metadata = read_safetensors_header(file)
        chosen = self._choose_arrays(self._tensors, _texts(metadata.get(ARRAYS)))
        self._places = {name: self._tensors[key] for name, key in chosen.items()}
        for name, place in self._places.items():
            if place.kind == "BF16":
                self._dtypes[name] = np.dtype(np.float32)
        self.class_names = _texts(metadata.get(CLASS_NAMES))

    def _look(self, key: str) -> Stored:
        place = self._tensors[key]
        if place.kind not in DTYPES:
            raise self._layout_error(
                f"{key} is stored as {place.kind}; expected one of {', '.join(DTYPES)}. Convert it to F32 or F16 where "
                "it is made."
            )
        return Stored(place.shape, place.dtype)

    def _whole(self, key: str) -> Rows:
        with self.source.open() as file:
            return _rows(file, self._tensors[key], 0, self._tensors[key].shape[0])

    def _blocks(self) -> Iterator[Block]:
        n_rows = self.n_rows or 0
        wanted = [*self.widths, *([LABELS] if self.has_labels else [])]
        with self.source.open() as file:
            for start in range(0, n_rows, self.chunk_rows):
                stop = min(start + self.chunk_rows, n_rows)
                yield {name: _rows(file, self._places[name], start, stop) for name in wanted}


def _rows(file: IO[bytes], place: TensorPlace, start: int, stop: int) -> Rows:
    file.seek(place.offset + start * place.row_bytes)
    array = np.empty((stop - start, *place.shape[1:]), place.dtype)
    fill(file, array)  # type: ignore[arg-type]
    return widened(array) if place.kind == "BF16" else native(array)


def _texts(document: str | None) -> tuple[str, ...] | None:
    """A JSON list of texts, or None if it is anything else, which is not ours to read."""
    try:
        texts = None if document is None else read_json(document)
    except ValueError:
        return None
    return tuple(map(str, texts)) if isinstance(texts, list) else None
