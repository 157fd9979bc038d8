"""All that a server is told at its start; travels to its workers as JSON. Tokens are not in it, only their file."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from dataclasses import dataclass, field
from typing import Self

from normscale.detectors.base import Detector
from normscale.detectors.registry import DEFAULT, load_detector, make_detector
from normscale.detectors.threshold import Threshold
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput
from normscale.guard import Guard, Policy, open_guard
from normscale.serve.bounds import Bounds

SAMPLE = "sample"
ENVIRONMENT = "NORMSCALE_SERVE"


@dataclass(frozen=True)
class ServerSettings:
    """What ``normscale serve`` was asked for."""

    detector: str
    """A detector file, or ``sample``."""
    store: str
    policy: Policy = field(default_factory=Policy)
    threshold: float | None = None
    model: str | None = None
    tokens: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    hosts: tuple[str, ...] = ()
    """Further names that the server may be called by."""
    origins: tuple[str, ...] = ()
    """Further origins whose pages may change the guard."""
    workers: int = 1
    bounds: Bounds = field(default_factory=Bounds)
    demo: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def to_json(self) -> str:
        """Write them for a worker's environment."""
        return write_json({**dataclasses.asdict(self), "bounds": self.bounds._asdict()})

    @classmethod
    def from_environment(cls) -> Self:
        """Read what the parent process left."""
        document = read_json(os.environ[ENVIRONMENT])
        document["policy"] = Policy(**document["policy"])
        document["bounds"] = Bounds(**document["bounds"])
        document["hosts"], document["origins"] = tuple(document["hosts"]), tuple(document["origins"])
        return cls(**document)

    def load_detector(self) -> Detector:
        """Load the detector, and give it the threshold that was asked for."""
        detector = sample_detector() if self.detector == SAMPLE else load_detector(self.detector)
        if self.threshold is not None:
            detector.threshold_ = Threshold(self.threshold)
        return detector

    def open_guard(self, detector: Detector | None = None) -> Guard:
        """Open the store and the guard on it; a detector that is refused leaves no store behind."""
        if self.workers > 1 and self.store == ":memory:":
            raise InvalidInput("a store in memory cannot be shared by several workers; give --store FILE.")
        return open_guard(self.load_detector() if detector is None else detector, self.store, self.policy)


def sample_detector() -> Detector:
    """Fit the default detector on the embedded sample, to try things out."""
    from normscale.sample import load_sample

    sample = load_sample()
    detector = make_detector(DEFAULT).fit(sample.train).set_threshold(sample.validation, keep=0.95)
    detector.class_names = tuple(sample.class_names)
    return detector
