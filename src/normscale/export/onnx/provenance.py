"""Where a model's detector came from, in the model's metadata."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from normscale._version import __version__
from normscale.detectors.base import Detector
from normscale.encoding.json_text import read_json, write_json
from normscale.state import DETECTOR, packed_metadata

if TYPE_CHECKING:
    from onnx import ModelProto

SHA256 = "normscale.detector_sha256"


def provenance(detector: Detector) -> dict[str, str]:
    """Version, header, threshold and checksum: what ``detector.save`` would write, less the arrays."""
    packed = detector.pack()
    header = packed_metadata(packed)[DETECTOR.key]
    return {
        "normscale.version": __version__,
        "normscale.detector": header,
        "normscale.threshold": write_json(read_json(header)["threshold"]),
        SHA256: hashlib.sha256(packed).hexdigest(),
    }


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def note(model: ModelProto, entries: dict[str, str]) -> None:
    """Set entries of a model's metadata."""
    known = {entry.key: entry for entry in model.metadata_props}
    for key, value in entries.items():
        entry = known.get(key) or model.metadata_props.add()
        entry.key, entry.value = key, value
