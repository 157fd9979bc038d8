"""A table of outputs written part by part, so that work that was killed can go on; in the end one .safetensors file.

Beside the table ``outputs.safetensors`` a folder ``outputs.safetensors.parts`` holds what is done: numbered parts, the
head where there is one, and a manifest that says of which model and data. When all rows are there, the parts are copied
into the table, array by array, and the folder goes. Every file appears whole or not at all, so a kill at any moment
costs at most a part.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from normscale._atomic import atomic_path
from normscale.encoding.json_text import read_json, write_json
from normscale.encoding.safetensors_header import TensorPlace, read_safetensors_header, safetensors_header_bytes
from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import Head, ModelOutputs

PART_SECONDS = 20.0
"""How much work a kill may cost."""
PART_BYTES = 64 << 20
"""How much memory waits for it."""

LABELS, HEAD_WEIGHT, HEAD_BIAS = "labels", "head_weight", "head_bias"
"""What is in a table besides arrays by name, as :func:`normscale.read_table` knows it."""

_KEY = "normscale.extraction"
_MANIFEST, _HEAD = "manifest.json", "head.safetensors"


class ResumableTable:
    """Outputs that are kept under ``path``, begun here or in an earlier run with the same ``about``.

    Parameters
    ----------
    path : path that ends in .safetensors
    about : mapping that JSON can hold
        What the outputs are made of.
    replace : bool
        What to do with a table, finished or begun, that was made of something else: start again, or refuse.
    """

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, Any], *, replace: bool = False) -> None:
        """Open what is there."""
        self.path = Path(path)
        if self.path.suffix != ".safetensors":
            raise InvalidInput(f"path must end in .safetensors; got {os.fspath(path)!r}.")
        if not self.path.absolute().parent.is_dir():
            raise InvalidInput(
                f"path lies in a folder that does not exist: {os.fspath(path)!r}. Make the folder first."
            )
        self.folder = self.path.with_name(self.path.name + ".parts")
        self.about = dict(about)
        if replace:
            self._discard_others()
        if _is_torn(self.folder):
            shutil.rmtree(self.folder)
        self.finished = self.path.exists()
        if self.finished:
            self._compare(made_of(self.path), self.path)
        elif self.folder.exists():
            self._compare(_about_parts(self.folder), self.folder)
        else:
            self.folder.mkdir()
            with atomic_path(self.folder / _MANIFEST) as temporary:
                Path(temporary).write_text(write_json(self.about))
        self._waiting: list[ModelOutputs] = []
        self._last_write = time.monotonic()
        self.n_rows = sum(stop - start for start, stop, _ in self._parts())

    def _discard_others(self) -> None:
        """Delete what was made of something else; what does not say so stays, and is refused."""
        if made_of(self.path) not in (None, self.about):
            self.path.unlink()
        if _about_parts(self.folder) not in (None, self.about):
            shutil.rmtree(self.folder)

    def _compare(self, there: dict[str, Any] | None, where: Path) -> None:
        """Raise when ``where`` holds something else than what is asked for."""
        if there is None:
            raise InvalidInput(f"{where} exists and was not made by extract. Delete it or choose another path.")
        differing = [key for key in sorted({*there, *self.about}) if there.get(key) != self.about.get(key)]
        if differing:
            raise InvalidInput(
                f"{where} was made with another {' and another '.join(differing)}. "
                "Delete it to start again, or choose another path."
            )

    def add(self, outputs: ModelOutputs) -> None:
        """Keep the rows that follow; they reach the disk within :data:`PART_SECONDS`, or on :meth:`flush`."""
        self._waiting.append(outputs)
        n_bytes = sum(array.nbytes for part in self._waiting for array in _rows(part).values())
        if n_bytes >= PART_BYTES or time.monotonic() - self._last_write >= PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        rows = ModelOutputs.concatenate(self._waiting)
        stop = self.n_rows + len(rows)
        if rows.head is not None and not (self.folder / _HEAD).exists():
            with atomic_path(self.folder / _HEAD) as temporary:
                save_file({HEAD_WEIGHT: rows.head.weight, HEAD_BIAS: rows.head.bias}, temporary)
        with atomic_path(self.folder / f"{self.n_rows:012d}-{stop:012d}.safetensors") as temporary:
            save_file(_rows(rows), temporary)
        self.n_rows = stop
        self._waiting = []
        self._last_write = time.monotonic()

    def finish(self) -> ModelOutputs:
        """Put the table together and read it, mapped into memory."""
        if not self.finished:
            self.flush()
            if self.n_rows == 0:
                raise InvalidInput("data holds no images; at least one is needed.")
            with atomic_path(self.path) as temporary:
                self._write_table(temporary)
            self.finished = True
        shutil.rmtree(self.folder, ignore_errors=True)
        return _mapped(self.path)

    def _parts(self) -> list[tuple[int, int, Path]]:
        """The parts that follow each other from row 0 on."""
        there: dict[int, tuple[int, Path]] = {}
        for file in sorted(self.folder.glob("[0-9]*-[0-9]*.safetensors")):
            start, stop = map(int, file.stem.split("-"))
            there[start] = (stop, file)
        chain, position = [], 0
        while position in there:
            stop, file = there[position]
            chain.append((position, stop, file))
            position = stop
        return chain

    def _write_table(self, path: str) -> None:
        """Copy one array after the other out of the parts; never more than a part is held in memory."""
        parts, head = [file for _, _, file in self._parts()], self.folder / _HEAD
        try:
            tensors = {
                name: (place.dtype, (self.n_rows, *place.shape[1:])) for name, place in _tensors_in(parts[0]).items()
            }
            files = dict.fromkeys(tensors, parts)
            for name, place in _tensors_in(head).items() if head.exists() else ():
                tensors[name] = place.dtype, place.shape
                files[name] = [head]
            # eight-byte numbers first, so that every array lies at a multiple of its own size
            names = sorted(tensors, key=lambda name: (-tensors[name][0].itemsize, name))
            with open(path, "wb") as table:
                header = {name: tensors[name] for name in names}
                table.write(safetensors_header_bytes(header, {_KEY: write_json(self.about)}))
                for name in names:
                    for file in files[name]:
                        with safe_open(file, framework="np") as part:
                            table.write(np.ascontiguousarray(part.get_tensor(name)).data)
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise FileFormatError(
                f"a part in {self.folder} is damaged ({error}). Delete the folder and start again."
            ) from error


def made_of(path: Path) -> dict[str, Any] | None:
    """What a finished table says it was made of; None if it does not."""
    try:
        with safe_open(path, framework="np") as file:
            about = read_json((file.metadata() or {})[_KEY])
    except (SafetensorError, OSError, KeyError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def _rows(outputs: ModelOutputs) -> dict[str, NDArray[Any]]:
    """Everything that has a row per input."""
    arrays = {name: np.ascontiguousarray(outputs.array(name)) for name in outputs.names}
    return arrays if outputs.labels is None else {**arrays, LABELS: outputs.labels}


def _tensors_in(path: Path) -> dict[str, TensorPlace]:
    with open(path, "rb") as file:
        return read_safetensors_header(file).tensors


def _about_parts(folder: Path) -> dict[str, Any] | None:
    try:
        about = read_json((folder / _MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def _is_torn(folder: Path) -> bool:
    """Whether a kill left parts without the manifest that comes first and goes with the rest."""
    if not folder.is_dir() or (folder / _MANIFEST).exists():
        return False
    return all(file.name.endswith((".safetensors", ".tmp.json")) for file in folder.iterdir())


def _mapped(path: Path) -> ModelOutputs:
    """A finished table, read from disk as it is used; changes to the arrays stay in memory."""
    arrays = {
        name: np.asarray(np.memmap(path, place.dtype, "c", place.offset, place.shape))
        for name, place in _tensors_in(path).items()
    }
    head = Head(arrays.pop(HEAD_WEIGHT), arrays.pop(HEAD_BIAS)) if HEAD_WEIGHT in arrays else None
    return ModelOutputs(head=head, **arrays)
