"""A detector that cannot tell log-probabilities apart says so when it is fitted, and when its threshold is set."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import normscale as ns


def log_softmax(logits: Any) -> Any:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_energy_is_constant_on_log_probabilities(dtype: type) -> None:
    rows = log_softmax(np.random.default_rng(0).normal(size=(100, 8)) * 4).astype(dtype)
    for call in (ns.Energy().fit, ns.Energy().set_threshold):
        with pytest.warns(ns.NumericalWarning, match="energy gives every row of log-probabilities the same score"):
            call(rows)


def test_what_can_tell_them_apart_says_nothing() -> None:
    rows = log_softmax(np.random.default_rng(0).normal(size=(100, 8)) * 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ns.MSP().fit(rows).set_threshold(rows)
        ns.Energy().fit(rows + np.arange(100.0)[:, None])  # logits
        ns.Energy().set_threshold(np.zeros((100, 8)))  # the same row again and again, and no log-probabilities
