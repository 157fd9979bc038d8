"""All that a server is told at its start; travels to its workers as JSON. Tokens are not in it, only their files."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from normscale.detectors.base import Detector
from normscale.detectors.registry import DEFAULT, load_detector, make_detector
from normscale.detectors.threshold import Threshold
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import FileFormatError
from normscale.guard import Guard, Policy, open_guard
from normscale.serve.bounds import Bounds

SAMPLE = "sample"
ENVIRONMENT = "NORMSCALE_SERVE"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TAKEN = ("v1", "page", "healthz", "readyz", "metrics")


@dataclass(frozen=True)
class GuardSettings:
    """One guard of a server."""

    detector: str
    """A detector file, or ``sample``."""
    store: str
    policy: Policy = field(default_factory=Policy)
    threshold: float | None = None
    model: str | None = None
    tokens: str | None = None

    def load_detector(self) -> Detector:
        """Load the detector, and give it the threshold that was asked for."""
        detector = sample_detector() if self.detector == SAMPLE else load_detector(self.detector)
        if self.threshold is not None:
            detector.threshold_ = Threshold(self.threshold)
        return detector

    def open_guard(self, detector: Detector | None = None) -> Guard:
        """Open the store and the guard on it; a detector that is refused leaves no store behind."""
        return open_guard(self.load_detector() if detector is None else detector, self.store, self.policy)


@dataclass(frozen=True)
class ServerSettings:
    """What ``normscale serve`` was asked for."""

    guards: Mapping[str, GuardSettings]
    """By name, which begins their paths; a server of one guard gives it the empty name."""
    host: str = "127.0.0.1"
    port: int = 8000
    hosts: tuple[str, ...] = ()
    """Further names that the server may be called by."""
    origins: tuple[str, ...] = ()
    """Further origins whose pages may change the guard."""
    proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies that are believed when they say where a request comes from."""
    workers: int = 1
    bounds: Bounds = field(default_factory=Bounds)
    demo: bool = False
    log_format: str = "text"
    webhook: str | None = None

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
        document["guards"] = {
            name: GuardSettings(**{**guard, "policy": Policy(**guard["policy"])})
            for name, guard in document["guards"].items()
        }
        document["bounds"] = Bounds(**document["bounds"])
        for name in ("hosts", "origins", "proxies"):
            document[name] = tuple(document[name])
        return cls(**document)


def read_guards(path: str, policy: Policy) -> dict[str, GuardSettings]:
    """Several guards by name, out of a TOML file with a table for each.

    Parameters
    ----------
    path : a file with tables such as ``[cameras]`` with ``detector``, ``store``, ``tokens``, ``model``, ``threshold``,
        and ``[cameras.policy]``; paths are relative to it
    policy : Policy
        What a guard's own table does not say.
    """
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"cannot read the guards in {path}: {getattr(error, 'strerror', None) or error}."
        ) from None
    if not document:
        raise FileFormatError(f'{path} names no guard; write a table for each, [name] with detector = "file".')
    folder = os.path.dirname(os.path.abspath(path))
    guards = {name: _guard_of(name, table, folder, policy, path) for name, table in document.items()}
    stores = [guard.store for guard in guards.values()]
    twins = [name for name, guard in guards.items() if guard.store != ":memory:" and stores.count(guard.store) > 1]
    if twins:
        raise FileFormatError(f"{path}: {' and '.join(twins)} have one store; give each guard its own.")
    return guards


def _guard_of(name: str, table: Any, folder: str, policy: Policy, path: str) -> GuardSettings:
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise FileFormatError(
            f"{path}: a guard's name is 1 to 64 letters, digits, dashes or underscores and none of "
            f"{', '.join(_TAKEN)}; got {name[:80]!r}."
        )
    known = {field.name for field in dataclasses.fields(GuardSettings)}
    if not isinstance(table, dict) or "detector" not in table or set(table) - known:
        raise FileFormatError(
            f"{path}: [{name}] must have a detector, and no other keys than {', '.join(sorted(known))}."
        )
    own = dict(table)
    for key in ("detector", "store", "tokens", "model"):
        value = own.get(key)
        if value is not None and value not in (SAMPLE, ":memory:") and "://" not in str(value):
            own[key] = os.path.join(folder, str(value))
    own.setdefault("store", default_store(own["detector"]))
    wanted = dict(own.get("policy", {}))
    if "window" in wanted:
        wanted.setdefault("evidence", min(policy.evidence, 0.5 * wanted["window"]))
    try:
        own["policy"] = dataclasses.replace(policy, **wanted).checked()
    except TypeError as error:
        raise FileFormatError(f"{path}: [{name}.policy] is not a policy ({error}).") from None
    return GuardSettings(**own)


def default_store(detector: str) -> str:
    """The detector file's name with .sqlite."""
    return f"{os.path.splitext(detector)[0]}.sqlite"


def sample_detector() -> Detector:
    """Fit the default detector on the embedded sample, to try things out."""
    from normscale.sample import load_sample

    sample = load_sample()
    detector = make_detector(DEFAULT).fit(sample.train).set_threshold(sample.validation, keep=0.95)
    detector.class_names = tuple(sample.class_names)
    return detector
