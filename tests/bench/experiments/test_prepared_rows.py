"""Rows that were prepared once give every stream the scores that the rows themselves would."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import normscale as ns
from normscale.bench.experiments import measuring


@pytest.mark.parametrize("name", ["norm_scaling", "robust_norm_scaling", "stream_aware+ensemble", "rtl", "oodd"])
def test_in_any_order(name: str) -> None:
    sample = ns.load_sample()
    detector = ns.make_detector(name).fit(sample.train)
    prepared = measuring._prepared(detector, sample.test)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(sample.test))[:200]
        rows = ns.ModelOutputs._trusted({key: prepared.array(key)[order] for key in prepared.names})
        expected = copy.copy(detector).stream(sample.test[order])
        np.testing.assert_allclose(detector._step(detector.start(), rows, 1)[0], expected, rtol=1e-9, atol=1e-9)


def test_what_is_passed_on_is_not_copied() -> None:
    sample = ns.load_sample()
    prepared = measuring._prepared(ns.RobustNormScaling().fit(sample.train), sample.test)
    assert prepared.logits is sample.test.logits
    assert prepared.array("confidence").shape == (len(sample.test), 1)


def test_the_wrapped_detector_scores_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = ns.load_sample()
    aware = ns.StreamAware("knn").fit(sample.train)
    scored: list[int] = []

    def count(self: ns.Detector, rows: ns.ModelOutputs, threads: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        scored.append(len(rows))
        return np.zeros(len(rows))

    monkeypatch.setattr(type(aware.scorer), "_score", count)
    from normscale.bench.experiments.streams import all_kinds
    from normscale.bench.experiments.stress import stress

    sets = {"near": sample.ood["unseen_digits"], "noise": sample.ood["uniform_noise"]}
    stress(sample.test, sets, {"aware": aware}, kinds=all_kinds((0.1, 0.5)))
    assert sum(scored) == len(sample.test) + sum(map(len, sets.values()))
