"""VRA, OptFS, LTS and AdaSCALE against the formulas, one number at a time."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.bench.experiments.methods import fit_on
from normscale.detectors.partial_fit import PartialFit, merged
from normscale.detectors.row_blocks import quantiles

RNG = np.random.default_rng(0)
WEIGHT, BIAS = RNG.normal(size=(3, 40)), RNG.normal(size=3)


def outputs(n: int, seed: int, moved: float = 0.1) -> ns.ModelOutputs:
    rng = np.random.default_rng(seed)
    features = np.maximum(rng.normal(size=(n, 40)), 0.0)
    perturbed = features + rng.normal(0.0, moved, features.shape)
    logits = features @ WEIGHT.T + BIAS
    return ns.ModelOutputs(logits, features=features, perturbed_features=perturbed, head=(WEIGHT, BIAS))


TRAIN, TEST = outputs(200, 1), outputs(20, 2)


def test_vra_cuts_on_both_sides() -> None:
    every = np.sort(TRAIN.features.ravel())
    lower, upper = np.percentile(every, 55.0), np.percentile(every, 90.0)
    expected = []
    for f in TEST.features:
        cut = [0.0 if v < lower else min(v, upper) for v in f]
        expected.append(-max(WEIGHT @ cut + BIAS))
    detector = ns.VRA("max_logit", lower=55.0, upper=90.0).fit(TRAIN)
    np.testing.assert_allclose(detector.score(TEST), expected, rtol=1e-12)
    assert detector._formula() is None
    with pytest.raises(ns.InvalidInput, match="lower must be below upper"):
        ns.VRA(lower=90.0, upper=90.0)


def test_optfs_weighs_by_contribution() -> None:
    bins = 12
    low, high = np.quantile(TRAIN.features, [1e-3, 1.0 - 1e-3])
    edges = [low + i * (high - low) / bins for i in range(bins + 1)]

    def bin_of(v: float) -> int | None:
        return next((b for b in range(bins) if edges[b] <= v < edges[b + 1]), None)

    weights = np.zeros(bins)
    for f in TRAIN.features:
        w = WEIGHT[(WEIGHT @ f + BIAS).argmax()]
        for i, v in enumerate(f):
            if (b := bin_of(v)) is not None:
                weights[b] += w[i] * v / len(TRAIN)
    weights /= math.sqrt(np.mean(weights**2))
    shaped = [[0.0 if (b := bin_of(v)) is None else weights[b] * v for v in f] for f in TEST.features]
    expected = [-max(WEIGHT @ f + BIAS) for f in np.array(shaped)]
    detector = ns.OptFS(bins=bins).fit(TRAIN)
    np.testing.assert_allclose(detector.fitted_.weights, weights, rtol=1e-9)
    np.testing.assert_allclose(detector.score(TEST), expected, rtol=1e-9)


def test_optfs_of_equal_or_absent_features() -> None:
    for value in (0.0, 2.0):
        same = ns.ModelOutputs(features=np.full((30, 40), value), head=(WEIGHT, BIAS))
        detector = ns.OptFS("energy").fit(same)
        assert np.isfinite(detector.score(TEST)).all()


def test_lts_scales_logits_by_the_square() -> None:
    expected = []
    for z, f in zip(TEST.logits, TEST.features, strict=True):
        largest = sorted(f)[-2:]  # the largest 5 % of 40
        expected.append(-math.log(sum(math.exp((sum(f) / sum(largest)) ** 2 * v) for v in z - 0.0)))
    detector = ns.LTS()
    assert not detector._needs_fit
    small = ns.ModelOutputs(TEST.logits, features=TEST.features)
    np.testing.assert_allclose(detector.score(small), expected, rtol=1e-12)
    mixed = ns.ModelOutputs([[1.0, 0.0]] * 2, features=[[-5.0, 1.0], [-3.0, -1.0]])
    assert ns.LTS("max_logit", 50.0).score(mixed).tolist() == [0.0, -4.0]  # a sum below 0 counts as 0


def slow_adascale(detector: ns.AdaSCALE, fit: ns.ModelOutputs, rows: ns.ModelOutputs) -> list[float]:
    def q(f: np.ndarray, moved: np.ndarray) -> float:
        order = np.argsort(-f, kind="stable")  # 5 % of 40 are 2 features, 1 % are 1 at least
        size, shift = order[:2], order[:1]
        return float(np.maximum(moved[size], 0.0).sum() + detector.shift_weight * np.abs(f - moved)[shift].sum())

    known = [q(f, m) for f, m in zip(fit.features, fit.array("perturbed_features"), strict=True)]
    scores = []
    for f, m in zip(rows.features, rows.array("perturbed_features"), strict=True):
        larger = sum(value > q(f, m) for value in known) / len(known)
        percentile = detector.low + larger * (detector.high - detector.low)
        k = 40 - round(40 * percentile / 100.0)
        positive = np.maximum(f, 0.0)
        scale = math.exp(positive.sum() / np.sort(positive)[-k:].sum())
        z = WEIGHT @ (f * scale) + BIAS
        scores.append(-(z.max() + math.log(np.exp(z - z.max()).sum())))
    return scores


def test_adascale_has_a_percentile_for_each_row() -> None:
    detector = ns.AdaSCALE(low=50.0, high=95.0, shift_weight=2.0).fit(TRAIN)
    np.testing.assert_allclose(detector.score(TEST), slow_adascale(detector, TRAIN, TEST), rtol=1e-9)
    sure = outputs(50, 3)[outputs(50, 3).logits.max(axis=1) > 1.0]
    calm, restless = (sure.replace(perturbed_features=sure.features + step) for step in (0.001, 3.0))
    assert (detector.score(restless) >= detector.score(calm)).all()  # same features, larger shifts
    assert detector.score(restless).mean() > detector.score(calm).mean()
    with pytest.raises(ns.InvalidInput, match="adascale reads perturbed_features"):
        ns.AdaSCALE().fit(ns.ModelOutputs(features=TRAIN.features, head=(WEIGHT, BIAS)))


def test_adascale_is_fitted_in_parts() -> None:
    fit = PartialFit(ns.AdaSCALE())
    halves = [fit.partial([part]) for part in (TRAIN[120:], TRAIN[:120])]
    assert fit.finish(merged(*halves))
    assert np.array_equal(fit.detector.score(TEST), ns.AdaSCALE().fit(TRAIN).score(TEST))


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
def test_quantiles_are_numpys_of_float64(dtype: type) -> None:
    values: Any = np.random.default_rng(0).normal(size=(37, 11)).astype(dtype)
    shares = [1e-3, 0.25, 0.5, 0.9, 1.0]
    np.testing.assert_array_equal(quantiles(values, shares), np.quantile(values.astype(np.float64), shares))


@pytest.mark.parametrize("name", ("react", "vra"))
def test_a_comparison_fits_percentiles_beside_one_copy_of_the_features(name: str) -> None:
    logits = RNG.normal(size=(60_000, 3)).astype(np.float32)
    head = (RNG.normal(size=(3, 200)).astype(np.float32), np.zeros(3, np.float32))
    train = ns.ModelOutputs(logits, features=RNG.random((60_000, 200), dtype=np.float32), head=head)
    tracemalloc.start()
    try:
        fit_on(ns.make_detector(name), train, None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2.0 * train.features.nbytes
