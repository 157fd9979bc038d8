""".safetensors: a JSON header and raw tensors; read here row by row, bfloat16 included."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.json_text import read_json, write_json
from normscale.encoding.safetensors_header import DTYPES, read_safetensors_header, widened
from normscale.errors import FileFormatError, InvalidInput
from normscale.rows.arrays import ARRAYS, CLASS_NAMES, ArraysReader, Stored, Take, fill, native
from normscale.rows.files import register_format
from normscale.rows.reader import Columns
from normscale.rows.writing import GatheringSink


class SafetensorsSink(GatheringSink):
    """Tensors; there is no place for texts beside the rows."""

    def open(self) -> None:
        if any(not isinstance(kind, np.dtype) or kind.base.kind not in "fiub" for kind in self.columns.values()):
            raise InvalidInput(
                f"{self.path}: a .safetensors file holds no texts and times. Write .parquet, .csv or .npz instead."
            )
        super().open()

    def save(self, arrays: Columns) -> None:
        """Write the arrays in C order: the library writes memory as it lies, also that of a transposed view."""
        from safetensors.numpy import save_file

        texts = {name: write_json(texts) for name, texts in self.texts.items()}
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
        if "detector" in (header := _document(metadata.get("normscale")) or {}):
            raise FileFormatError(
                f"{self.path} is a detector ({header['detector']}), and a table of outputs is expected here. A "
                "detector comes before the tables: normscale score DETECTOR TABLE."
            )
        self._choose_arrays(list(self._tensors), _texts(metadata.get(ARRAYS)))
        self.class_names = _texts(metadata.get(CLASS_NAMES))

    def _look(self, key: str) -> Stored:
        place = self._tensors[key]
        if place.kind not in DTYPES:
            raise self._layout_error(
                f"{key} is stored as {place.kind}; expected one of {', '.join(DTYPES)}. Convert it to F32 or F16 where "
                "it is made."
            )
        return Stored(place.shape, np.dtype(np.float32) if place.kind == "BF16" else place.dtype)

    def _open_array(self, key: str, stack: ExitStack) -> Take:
        file, place = stack.enter_context(self.source.open()), self._tensors[key]
        file.seek(place.offset)

        def take(count: int) -> NDArray[Any]:
            array = fill(file, (count, *place.shape[1:]), place.dtype)
            return widened(array) if place.kind == "BF16" else native(array)

        return take


def _document(text: str | None) -> Any:
    """A JSON document, or None if it is none."""
    try:
        return None if text is None else read_json(text)
    except ValueError:
        return None


def _texts(text: str | None) -> tuple[str, ...] | None:
    """A JSON list of texts, or None if it is anything else, which is not ours to read."""
    texts = _document(text)
    return tuple(map(str, texts)) if isinstance(texts, list) else None
