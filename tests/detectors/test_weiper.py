"""WeiPer+KLD against histograms counted value by value."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.layer_statistics import WeiPer

D, CLASSES, BINS, REPEATS = 14, 3, 12, 5
_fixed = np.random.default_rng(2)
HEAD = (_fixed.normal(size=(CLASSES, D)), _fixed.normal(size=CLASSES))
FEW = {"repeats": REPEATS, "bins": BINS}


def outputs(n: int, seed: int = 0) -> ns.ModelOutputs:
    features = np.abs(np.random.default_rng(seed).normal(size=(n, D)))
    return ns.ModelOutputs(features=features, head=HEAD)


def slow_shares(values: np.ndarray, low: float, high: float) -> list[float]:
    edges = [low + (high - low) * i / BINS for i in range(BINS + 1)]
    counts = [0.0] * BINS
    for v in values:
        for i in range(BINS):
            if edges[i] <= v < edges[i + 1] or (i == BINS - 1 and v == high):
                counts[i] += 1.0
    return [count / len(values) for count in counts]


def slow_smooth(shares: list[float], size: int) -> list[float]:
    """Like torch's convolution with padding="same": an even window has one more on the right."""
    left = (size - 1) // 2
    window = range(-left, size - left)
    return [sum(shares[min(max(i + j, 0), BINS - 1)] for j in window) / size for i in range(BINS)]


def slow_divergence(p: list[float], q: list[float], floor: float) -> float:
    p, q = ([(v + floor) / (sum(x) + floor * BINS) for v in x] for x in (p, q))
    one = sum(a * np.log(a / b) for a, b in zip(p, q, strict=True))
    return float(one + sum(b * np.log(b / a) for a, b in zip(p, q, strict=True)))


def slow(train: np.ndarray, rows: np.ndarray, seed: int = 0, distance: float = 1.8) -> list[float]:
    noise = np.random.RandomState(seed).standard_normal((REPEATS, CLASSES, D))
    layers = []
    for r in range(REPEATS):
        disturbed = [
            w + distance * np.linalg.norm(w) * e / np.linalg.norm(e) for w, e in zip(HEAD[0], noise[r], strict=True)
        ]
        layers.append(np.array(disturbed, np.float32).astype(np.float64))  # as they are kept

    def views(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return f, np.concatenate([w @ f + HEAD[1] for w in layers])

    ranges, means = [], []
    for part in (0, 1):
        values = [views(f)[part] for f in train]
        ranges.append((min(v.min() for v in values), max(v.max() for v in values)))
        means.append(np.mean([slow_shares(v, *ranges[part]) for v in values], axis=0).tolist())
    scores = []
    for f in rows:
        kl = [
            slow_divergence(means[i], slow_smooth(slow_shares(views(f)[i], *ranges[i]), size), floor)
            for i, (size, floor) in enumerate(((4, 0.01), (15, 0.025)))
        ]
        softmaxes = [np.exp(w @ f + HEAD[1]) / np.exp(w @ f + HEAD[1]).sum() for w in layers]
        scores.append(kl[0] + 2.5 * kl[1] - 0.1 * float(np.mean([p.max() for p in softmaxes])))
    return scores


@pytest.mark.parametrize("seed", (0, 3))
def test_scores_are_those_of_counted_histograms(seed: int) -> None:
    train, test = outputs(40), outputs(15, 1)
    detector = WeiPer(**FEW, lambda_2=0.1, seed=seed).fit(train)
    np.testing.assert_allclose(detector.score(test), slow(train.features, test.features, seed), rtol=1e-9)


def test_by_default_confidence_varies_as_much_as_the_divergences() -> None:
    train, test = outputs(40), outputs(15, 1)
    detector = WeiPer(**FEW).fit(train)
    both = np.array(slow(train.features, train.features)), np.array(slow(train.features, test.features))
    known, new = (WeiPer(**FEW, lambda_2=1.1).fit(train).score(rows) for rows in (train, test))
    msp_train, msp_test = both[0] - known, both[1] - new  # lambda_2 of 0.1 less one of 1.1
    weight = (both[0] + 0.1 * msp_train).std() / msp_train.std()
    assert detector.fitted_.msp_weight == pytest.approx(weight, rel=1e-6)
    np.testing.assert_allclose(detector.score(test), both[1] + (0.1 - weight) * msp_test, rtol=1e-6)


def test_more_rows_than_are_looked_at_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscale.detectors.layer_statistics._MOST_COUNTED", 70)
    monkeypatch.setattr("normscale.detectors.layer_statistics._MOST_WEIGHED", 50)
    train = outputs(300)
    order = np.random.default_rng(0).permutation(300)
    first, second = (WeiPer(**FEW).fit(rows).fitted_.msp_weight for rows in (train, train[order]))
    assert first == pytest.approx(second, rel=1e-9)


def test_planted_rows() -> None:
    """Training rows all have half of their features at 0 and half at 1; rows at 1/2, or out of range, do not."""
    train = np.tile([0.0, 1.0], (20, D // 2))
    detector = WeiPer(**FEW, lambda_1=0.0, lambda_2=0.0, smoothing=1).fit(ns.ModelOutputs(features=train, head=HEAD))
    rows = np.r_[train[:1], train[:1, ::-1], np.full((1, D), 0.5), np.full((1, D), 7.0)]
    scores = detector.score(rows)
    np.testing.assert_allclose(scores[:2], 0.0, atol=1e-12)
    assert scores[2] > scores[3] > 1.0, "all in the wrong bin is farther off than in no bin"
    sure = WeiPer(**FEW, lambda_1=0.0, lambda_2=1.0).fit(outputs(30))
    unsure = WeiPer(**FEW, lambda_1=0.0, lambda_2=0.0).fit(outputs(30))
    assert (sure.score(outputs(9, 1)) < unsure.score(outputs(9, 1))).all(), "confidence is in-distribution"


def test_constant_features_one_row_and_copies_are_finite() -> None:
    same = ns.ModelOutputs(features=np.full((5, D), 2.0), head=HEAD)
    detector = WeiPer(**FEW).fit(same)
    assert np.isfinite(detector.score(outputs(4))).all()
    np.testing.assert_allclose(detector.score(same), detector.score(same)[0])
    assert np.isfinite(WeiPer(**FEW).fit(outputs(1)).score(outputs(4, 1))).all()
    silent = ns.ModelOutputs(features=outputs(5).features, head=(np.zeros((CLASSES, D)), np.zeros(CLASSES)))
    assert np.isfinite(WeiPer(**FEW).fit(silent).score(outputs(4, 1))).all()


def test_the_seed_makes_the_same_detector_again() -> None:
    train, test = outputs(40), outputs(9, 1)
    first = WeiPer(**FEW, seed=1).fit(train).score(test)
    assert np.array_equal(first, WeiPer(**FEW, seed=1).fit(train).score(test))
    assert not np.array_equal(first, WeiPer(**FEW, seed=2).fit(train).score(test))


@pytest.mark.parametrize("wrong", ({"bins": 1}, {"repeats": 0}, {"distance": 0.0}, {"smoothing": 0}, {"seed": -1}))
def test_parameters_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ns.InvalidInput, match=f"{next(iter(wrong))} must be"):
        WeiPer(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "classes", "most"), ((20_000, 3, 30e6), (1000, 200, 34e6)))
def test_memory_of_a_fit_is_that_of_the_weights_and_some_blocks(n: int, classes: int, most: float) -> None:
    rng = np.random.default_rng(3)
    head = rng.normal(size=(classes, 64)), np.zeros(classes)
    train = ns.ModelOutputs(features=rng.normal(size=(n, 64)).astype(np.float32), head=head)
    tracemalloc.start()
    WeiPer().fit(train)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most, "two million disturbed logits at once would be 78 MB"
