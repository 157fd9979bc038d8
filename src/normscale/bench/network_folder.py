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

SUFFIX = ".safetensors"
TRAIN, VALIDATION, TEST = OWN_SETS = ("train", "validation", "test")
"""The outputs on the parts of the in-distribution set."""


class NetworkFolder:
    """The paths of a network's files; ``normscale train`` and ``normscale bench`` both write them.

    Examples
    --------
    >>> folder = NetworkFolder("runs/seed0")
    >>> folder.outputs("test").as_posix()
    'runs/seed0/outputs/test.safetensors'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def network(self) -> Path:
        """The trained network."""
        return self.path / "network.safetensors"

    @property
    def result(self) -> Path:
        """What training came to."""
        return self.path / "result.json"

    @property
    def perturbation(self) -> Path:
        """The step by which images were perturbed."""
        return self.path / "perturbation.json"

    @property
    def missing(self) -> Path:
        """Which OoD sets could not be had, and why."""
        return self.path / "missing.json"

    def outputs(self, name: str) -> Path:
        """The outputs on a set: ``train``, ``validation``, ``test``, or the name of an OoD set."""
        return self.path / "outputs" / f"{name}{SUFFIX}"

    def make(self) -> None:
        """Make the folder and that of the outputs."""
        self.outputs("test").parent.mkdir(parents=True, exist_ok=True)
