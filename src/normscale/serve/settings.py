"""All that a server is told at its start; travels to its workers as JSON. Tokens are not in it, only their file."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from dataclasses import dataclass, field
from typing import Self

from normscale.detectors.base import Detector
from normscale.detectors.decision import Threshold
from normscale.detectors.registry import load_detector
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput
from normscale.guard import Guard, Policy, open_store

SAMPLE = "sample"
ENVIRONMENT = "NORMSCALE_SERVE"


@dataclass(frozen=True)
class Settings:
    """What ``normscale serve`` was asked for."""

    guard: str
    """A detector file, or ``sample``."""
    store: str
    policy: Policy = field(default_factory=Policy)
    threshold: float | None = None
    model: str | None = None
    tokens: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    hosts: tuple[str, ...] = ()
    workers: int = 1
    max_body: int = 16 << 20
    max_rows: int = 100_000
    max_requests: int = 256
    max_seconds: float = 30.0
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
        """For a worker's environment."""
        return write_json({**dataclasses.asdict(self), "policy": self.policy._asdict()})

    @classmethod
    def from_environment(cls) -> Self:
        """What the parent process left."""
        document = read_json(os.environ[ENVIRONMENT])
        document["policy"] = Policy(**document["policy"])
        document["hosts"] = tuple(document["hosts"])
        return cls(**document)

    def load_detector(self) -> Detector:
        """The guard's detector, with the threshold that was asked for."""
        detector = sample_detector() if self.guard == SAMPLE else load_detector(self.guard)
        if self.threshold is not None:
            detector.threshold_ = Threshold(self.threshold)
        return detector

    def open_guard(self) -> Guard:
        """The guard, read up to the last entry of its store."""
        if self.workers > 1 and self.store == ":memory:":
            raise InvalidInput("a store in memory cannot be shared by several workers; give --store FILE.")
        return Guard(self.load_detector(), open_store(self.store), self.policy)


def sample_detector() -> Detector:
    """Norm-scaling on the embedded sample, to try things out."""
    from normscale.detectors.norm_scaling import NormScaling
    from normscale.sample import load_sample

    sample = load_sample()
    detector = NormScaling().fit(sample.train).calibrate(sample.validation, keep=0.95)
    detector.class_names = tuple(sample.class_names)
    return detector
