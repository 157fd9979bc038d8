"""Guards on the embedded sample, for the tests."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import normscale as ns
from normscale.detectors.base import Detector
from normscale.guard import Guard, Policy, Request, Verdict, open_store

IGNORE = Policy(on_drift="ignore", outlier=float("inf"))
"""Takes everything in."""


@lru_cache
def sample() -> Any:
    return ns.load_sample()


def detector(name: str = "norm_scaling", **parameters: Any) -> Detector:
    made = ns.make_detector(name, **parameters).fit(sample().train).set_threshold(sample().validation, keep=0.95)
    made.class_names = tuple(sample().class_names)
    return made


def guard(store: Path | str = ":memory:", policy: Policy | None = None, made: Detector | None = None) -> Guard:
    return Guard(detector() if made is None else made, open_store(str(store)), policy)


def send(on: Guard, rows: Any, **options: Any) -> Verdict:
    """One request in a group of its own."""
    (verdict,) = on.process([request(rows, **options)])
    assert isinstance(verdict, Verdict), verdict
    return verdict


def request(rows: Any, *args: Any, **options: Any) -> Request:
    """A request with logits alone."""
    return Request(ns.ModelOutputs(rows), *args, **options)


def digits(n: int, seed: int = 0) -> NDArray[np.float32]:
    """Rows as in training, in a random order."""
    rows = np.concatenate([sample().test.logits, sample().validation.logits])
    return rows[np.random.default_rng(seed).integers(0, len(rows), n)]


def one_class(n: int, predicted: int = 3) -> NDArray[np.float32]:
    rows = sample().test.logits
    rows = rows[rows.argmax(axis=1) == predicted]
    return np.ascontiguousarray(rows[np.arange(n) % len(rows)])


def moments_of(on: Guard) -> tuple[float, list[float], list[float]]:
    """The running moments, to the bit."""
    moments = on.state.stream.statistics.moments
    assert moments is not None
    return moments.weight, moments.mean.tolist(), moments.m2.tolist()
