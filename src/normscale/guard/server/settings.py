"""All that a server is told at its start, and its workers by it. Tokens are not in it, only their files."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from normscale.detectors.base import Detector
from normscale.detectors.registry import DEFAULT, load_detector, make_detector
from normscale.errors import FileFormatError
from normscale.guard import Guard, Policy, open_guard
from normscale.guard.guard import required_widths
from normscale.guard.server.classifier import Classifier
from normscale.guard.server.request import Bounds
from normscale.metrics.thresholds import Threshold

SAMPLE = "sample"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TAKEN = ("v1", "v2", "page", "metrics")
NAME = "guard"  # of a guard that nobody named


class GuardSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One guard of a server, also as a table of ``guards.toml``."""

    detector: str
    """A detector file, or ``sample``."""
    store: str = ""
    policy: Any = Policy()
    threshold: float | None = None
    model: str | None = None
    tokens: str | None = None
    logits: str | None = None
    """The output of the model that holds the logits, where several could."""

    def open(self) -> tuple[Guard, Classifier | None]:
        """Open the store, the guard on it, and the model if there is one; what is refused leaves no store behind."""
        detector = sample_detector() if self.detector == SAMPLE else load_detector(self.detector)
        if self.threshold is not None:
            detector.threshold_ = Threshold(self.threshold)
        widths = required_widths(detector)
        classifier = None if self.model is None else Classifier(self.model, widths, self.logits)
        return open_guard(detector, self.store, self.policy), classifier


def default_store(detector: str) -> str:
    """The detector file's name with .sqlite."""
    return f"{os.path.splitext(detector)[0]}.sqlite"


@dataclass(frozen=True)
class ServerSettings:
    """What ``normscale serve`` was asked for."""

    guards: Mapping[str, GuardSettings]
    """By name, which begins their paths unless it is ``guard``."""
    host: str = "127.0.0.1"
    port: int = 8000
    hosts: tuple[str, ...] = ()
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
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_guards(path: str, policy: Policy) -> dict[str, GuardSettings]:
    """Several guards by name, out of a TOML file with a table for each; paths in it are relative to it.

    ``policy`` is what a guard's own table ``[name.policy]`` does not say.
    """
    try:
        with open(path, "rb") as file:
            tables = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"cannot read the guards in {path}: {getattr(error, 'strerror', None) or error}."
        ) from None
    if not tables:
        raise FileFormatError(f'{path} names no guard; write a table for each, [name] with detector = "file".')
    guards = {name: _settings_of(name, table, path, policy) for name, table in tables.items()}
    stores = [guard.store for guard in guards.values()]
    twins = [name for name, guard in guards.items() if stores.count(guard.store) > 1 and guard.store != ":memory:"]
    if twins:
        raise FileFormatError(f"{path}: {' and '.join(twins)} have one store; give each guard its own.")
    return guards


def _settings_of(name: str, written: Any, path: str, policy: Policy) -> GuardSettings:
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise FileFormatError(
            f"{path}: a guard's name is 1 to 64 letters, digits, dashes or underscores and none of "
            f"{', '.join(_TAKEN)}; got {name[:80]!r}."
        )
    try:
        table = msgspec.convert(written, GuardSettings)
    except msgspec.ValidationError as error:
        known = ", ".join(GuardSettings.__struct_fields__)
        raise FileFormatError(
            f"{path}: [{name}] must have a detector, and no other keys than {known}: {error}."
        ) from None
    files = {key: getattr(table, key) for key in ("detector", "store", "tokens", "model")}
    files["store"] = table.store or default_store(table.detector)
    folder = os.path.dirname(os.path.abspath(path))
    own: dict[str, Any] = {
        key: os.path.join(folder, value)
        for key, value in files.items()
        if value and value not in (SAMPLE, ":memory:") and "://" not in value
    }
    try:
        own["policy"] = dataclasses.replace(policy, **({} if isinstance(table.policy, Policy) else table.policy))
    except TypeError as error:
        raise FileFormatError(f"{path}: [{name}.policy] is not a policy ({error}).") from None
    return msgspec.structs.replace(table, **own)


def sample_detector() -> Detector:
    """Fit the default detector on the embedded sample, to try things out."""
    from normscale.sample import load_sample

    sample = load_sample()
    detector = make_detector(DEFAULT).fit(sample.train).set_threshold(sample.validation, keep=0.95)
    detector.class_names = tuple(sample.class_names)
    return detector
