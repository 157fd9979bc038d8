"""State in a file: named arrays and one JSON document, as safetensors. No pickle, ever.

Detectors, networks, checkpoints and results are stored alike; the metadata key of the document tells the kinds apart.
Files are written to a temporary name and moved into place, so a crash leaves the old file or the new one, never half
of one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale._atomic import atomic_path
from normscale._version import __version__
from normscale.encoding.json_text import read_json, write_json
from normscale.encoding.safetensors_header import safetensors_header_of
from normscale.errors import FileFormatError

FORMAT = 1
"""Grows when a file can no longer be read by older versions."""


class Kind(NamedTuple):
    """What a file holds, and what to say when it does not; ``{path}`` stands for its name."""

    key: str
    """Where in the metadata the document stands."""
    noun: str
    when_absent: str
    when_damaged: str
    when_foreign: str = "It is of another kind; choose another file."


DETECTOR = Kind(
    "normscale",
    "detector",
    "Make one with `normscale fit ... -o {path}`.",
    "restore it from a copy or fit the detector again.",
    "Is it a table of logits? Then fit a detector on it first.",
)


def save_state(
    path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], kind: Kind = DETECTOR
) -> None:
    """Write a header and named arrays to ``path`` atomically."""
    data = pack_state(header, tensors, kind)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


def pack_state(header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], kind: Kind = DETECTOR) -> bytes:
    """What :func:`save_state` writes, as bytes: for keeping a state in a database."""
    from safetensors.numpy import save

    document = {"format": FORMAT, "version": __version__, **header}
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    arrays.setdefault("_", np.zeros(0))  # without arrays, one tensor is still needed to be a valid file
    return save(arrays, metadata={kind.key: write_json(document)})


def packed_metadata(data: bytes) -> dict[str, str]:
    """The metadata of what :func:`pack_state` gave: the document, as it is written, by its kind's key."""
    return safetensors_header_of(data).metadata


def unpack_state(data: bytes, kind: Kind = DETECTOR) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read back what :func:`pack_state` gave."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors, metadata = load(data), packed_metadata(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise FileFormatError(f"a stored {kind.noun} is damaged ({error!r}); {kind.when_damaged}") from error
    return _document(metadata, tensors, kind, f"a stored {kind.noun}")


def load_header(path: str | os.PathLike[str], kind: Kind = DETECTOR) -> dict[str, Any]:
    """Read the header alone; the arrays stay on disk."""
    return _load(path, kind, with_arrays=False)[0]


def load_state(path: str | os.PathLike[str], kind: Kind = DETECTOR) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read back what :func:`save_state` wrote; a damaged, foreign or newer file is a :class:`FileFormatError`."""
    return _load(path, kind, with_arrays=True)


def _load(
    path: str | os.PathLike[str], kind: Kind, *, with_arrays: bool
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    if not os.path.isfile(name):
        raise FileFormatError(f"no {kind.noun} file at {name!r}. {kind.when_absent.format(path=name)}")
    try:
        with safe_open(name, framework="np") as file:
            metadata = file.metadata() or {}
            names = file.keys() if with_arrays else ()
            tensors = {key: file.get_tensor(key) for key in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise FileFormatError(
            f"{name!r} is not a readable safetensors file ({error}). It is damaged or of another kind; "
            f"{kind.when_damaged}"
        ) from error
    return _document(metadata, tensors, kind, repr(name))


def _document(
    metadata: Mapping[str, str], tensors: dict[str, NDArray[Any]], kind: Kind, name: str
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the arrays, once it is known that this version can read them."""
    if kind.key not in metadata:
        raise FileFormatError(
            f"{name} is a safetensors file but holds no normscale {kind.noun} (no {kind.key!r} in its metadata). "
            f"{kind.when_foreign}"
        )
    try:
        header = read_json(metadata[kind.key])
        written_as = int(header["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"the header of {name} is damaged ({error!r}); {kind.when_damaged}") from error
    if written_as > FORMAT:
        raise FileFormatError(
            f"{name} was written by normscale {header.get('version', '?')} in format {written_as}; this version, "
            f"{__version__}, reads up to format {FORMAT}. Upgrade normscale."
        )
    tensors.pop("_", None)
    return header, tensors
