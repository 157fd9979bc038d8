"""All that a server is told at its start, and its workers by it. Tokens are not in it, only their files."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from normscale.detectors.base import Detector
from normscale.detectors.registry import DEFAULT, load_detector, make_detector
from normscale.detectors.threshold import Threshold
from normscale.errors import FileFormatError
from normscale.guard import GuardPair, Policy, open_guard
from normscale.guard.server.bounds import Bounds
from normscale.guard.server.classifier import Classifier

SAMPLE = "sample"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TAKEN = ("v1", "v2", "page", "metrics")
NAME = "guard"
"""Of a guard that nobody named."""


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
    adopt: bool = False
    """Whether a store of another detector with the same classes is taken over."""
    shadow: str | None = None
    """A detector file that is sent the same rows, until somebody switches to it ..."""
    shadow_store: str = ""
    """... and where its statistics are kept."""
    logits: str | None = None
    """The output of the model that holds the logits, where several could."""

    def load_detector(self) -> Detector:
        """Load the detector, and give it the threshold that was asked for."""
        detector = sample_detector() if self.detector == SAMPLE else load_detector(self.detector)
        if self.threshold is not None:
            detector.threshold_ = Threshold(self.threshold)
        return detector

    def open(self) -> GuardPair:
        """Open the stores and the guards on them; a detector that is refused leaves no store behind."""
        with ExitStack() as opened:
            guard, shadow = open_guard(self.load_detector(), self.store, self.policy, adopt=self.adopt), None
            opened.callback(guard.store.close)
            if self.shadow is not None:
                shadow = open_guard(load_detector(self.shadow), self.shadow_store, self.policy)
                opened.callback(shadow.store.close)
            pair = GuardPair(guard, shadow)
            opened.pop_all()
        return pair

    def load_classifier(self, widths: Mapping[str, int]) -> Classifier | None:
        """Load the model, if there is one, with an output for every array that the guard reads."""
        return None if self.model is None else Classifier(self.model, widths, self.logits)

    @property
    def stores(self) -> list[str]:
        """Where the guard and its shadow are kept."""
        return [self.store] if self.shadow is None else [self.store, self.shadow_store]


@dataclass(frozen=True)
class ServerSettings:
    """What ``normscale serve`` was asked for."""

    guards: Mapping[str, GuardSettings]
    """By name, which begins their paths unless it is ``guard``."""
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


def read_guards(path: str, policy: Policy) -> dict[str, GuardSettings]:
    """Several guards by name, out of a TOML file with a table for each.

    Parameters
    ----------
    path : a file with tables such as ``[cameras]`` with ``detector``, ``store``, ``tokens``, ``model``, ``logits``,
        ``threshold``, ``adopt``, ``shadow``, ``shadow_store``, and ``[cameras.policy]``; paths are relative to it
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
    stores = [store for guard in guards.values() for store in guard.stores if store != ":memory:"]
    twins = [name for name, guard in guards.items() if any(stores.count(store) > 1 for store in guard.stores)]
    if len(twins) > 1:
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
    _check_kinds(own, f"{path}: [{name}]")
    for key in ("detector", "store", "tokens", "model", "shadow", "shadow_store"):
        value = own.get(key)
        if value is not None and value not in (SAMPLE, ":memory:") and "://" not in str(value):
            own[key] = os.path.join(folder, str(value))
    own.setdefault("store", default_store(own["detector"]))
    if "shadow" in own:
        own.setdefault("shadow_store", default_store(own["shadow"]))
    try:
        own["policy"] = dataclasses.replace(policy, **own.get("policy", {}))
    except TypeError as error:
        raise FileFormatError(f"{path}: [{name}.policy] is not a policy ({error}).") from None
    return GuardSettings(**own)


def _check_kinds(table: dict[str, Any], where: str) -> None:
    """Refuse values of a wrong kind; TOML has texts, numbers and true or false."""
    numbers, flags, tables = ((int, float), "a number"), ((bool,), "true or false"), ((dict,), "a table")
    kinds = {"threshold": numbers, "adopt": flags, "policy": tables}
    for key, value in table.items():
        wanted, what = kinds.get(key, ((str,), "a text"))
        if type(value) not in wanted:
            raise FileFormatError(f"{where} {key} must be {what}; got {value!r}.")


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
