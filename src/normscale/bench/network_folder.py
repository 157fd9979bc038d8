"""The folder of one trained network: where each of its files is.

::

    checkpoint.safetensors, log.jsonl  grow while it trains
    network.safetensors                the network
    result.json                        its accuracy, its log, its settings
    outputs/NAME.safetensors           what it says about a set: train, validation, test, or the name of an OoD set
    perturbation.json                  the step by which images were perturbed, and how it was chosen
    missing.json                       OoD sets that could not be had, and why
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from normscale._atomic import atomic_path
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import FileFormatError

SUFFIX = ".safetensors"
TRAIN, VALIDATION, TEST = OWN_SETS = ("train", "validation", "test")
"""The outputs on the parts of the in-distribution set."""


class NetworkFolder:
    """The paths of a network's files; ``normscale train`` and ``normscale bench`` both write them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.network = self.path / "network.safetensors"
        self.log, self.result = self.path / "log.jsonl", self.path / "result.json"
        self.perturbation = self.path / "perturbation.json"
        self.missing = self.path / "missing.json"

    def outputs(self, name: str) -> Path:
        """The outputs on one of ``OWN_SETS`` or an OoD set."""
        return self.path / "outputs" / f"{name}{SUFFIX}"

    def make(self) -> None:
        """Make the folder and that of the outputs."""
        self.outputs("test").parent.mkdir(parents=True, exist_ok=True)


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a small file of a run, whole or not at all."""
    with atomic_path(path) as temporary:
        Path(temporary).write_text(write_json(document, indent=1) + "\n")


def read_document(path: Path) -> dict[str, Any]:
    """Read a small file of a run; one that is not there is empty."""
    try:
        document = read_json(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise FileFormatError(f"{path} is damaged ({error}); delete it and run the benchmark again.") from error
    return document if isinstance(document, dict) else {}
