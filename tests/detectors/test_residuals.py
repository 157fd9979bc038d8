"""Residual and ViM against projections made row by row, and in spaces where the answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.residual import Residual, ViM

D, CLASSES = 12, 3
_fixed = np.random.default_rng(5)
HEAD = (_fixed.normal(size=(CLASSES, D)), _fixed.normal(size=CLASSES))


def outputs(n: int, seed: int = 0, spread: int = 4) -> ns.ModelOutputs:
    """Features that mostly lie in ``spread`` directions."""
    rng = np.random.default_rng(seed)
    directions = np.random.default_rng(6).normal(size=(spread, D))
    features = 5.0 * rng.normal(size=(n, spread)) @ directions + 0.3 * rng.normal(size=(n, D))
    return with_logits(features)


def with_logits(features: np.ndarray) -> ns.ModelOutputs:
    return ns.ModelOutputs(features @ HEAD[0].T + HEAD[1], features, head=HEAD)


def slow_residuals(train: np.ndarray, rows: np.ndarray, kept: int, head: Any = HEAD) -> np.ndarray:
    """What a projection onto the ``kept`` main directions leaves, row by row."""
    origin = np.linalg.lstsq(head[0], -head[1], rcond=None)[0]
    _, _, axes = np.linalg.svd(train - origin)  # of the rows themselves: no second moment
    lengths = []
    for row in rows:
        rest = row - origin
        for axis in axes[:kept]:
            rest = rest - (rest @ axis) * axis
        lengths.append(np.sqrt((rest**2).sum()))
    return np.array(lengths)


@pytest.mark.parametrize("kept", (1, 4, 6, 11))
def test_residuals_are_what_projections_leave(kept: int) -> None:
    train, test = outputs(300), outputs(40, 1)
    expected = slow_residuals(train.features, test.features, kept)
    np.testing.assert_allclose(Residual(kept).fit(train).score(test), expected, rtol=1e-8)


@pytest.mark.parametrize("kept", (None, 4, 11))
def test_vim_is_the_formula_of_the_paper_on_centred_logits_and_head(kept: int | None) -> None:
    train, test = outputs(300), outputs(40, 1)
    head = HEAD[0] - HEAD[0].mean(axis=0), HEAD[1] - HEAD[1].mean()
    largest = np.mean([max(z) - sum(z) / len(z) for z in train.logits])
    alpha = largest / slow_residuals(train.features, train.features, kept or 6, head).mean()
    energies = np.array([np.log(sum(np.exp(value) for value in z)) - sum(z) / len(z) for z in test.logits])
    expected = alpha * slow_residuals(train.features, test.features, kept or 6, head) - energies
    detector = ViM(kept).fit(train)
    assert detector.fitted_.alpha == pytest.approx(alpha, rel=1e-9)
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-7)


def test_what_softmax_cannot_see_changes_nothing_in_vim() -> None:
    train, test = outputs(300), outputs(40, 1)
    expected = ViM().fit(train).score(test)
    added = np.random.default_rng(2).normal(0.0, 30.0, (len(test), 1))
    assert np.allclose(ViM().fit(train).score(test.replace(logits=test.logits + added)), expected)
    np.testing.assert_allclose(ns.make_detector("centred+vim").fit(train).score(test), expected, rtol=1e-7)


def test_a_step_out_of_the_principal_space_is_measured() -> None:
    """Training features in the first two axes and hardly beyond; a test row 7 away in the last axis scores 7."""
    rng = np.random.default_rng(0)
    train = np.zeros((500, 5))
    train[:, :2] = 10.0 * rng.normal(size=(500, 2))
    train[:, 2] = 1e-3 * rng.normal(size=500)
    head = (np.eye(2, 5), np.zeros(2))
    record = ns.ModelOutputs(10.0 + np.abs(train[:, :2]), train, head=head)
    rows = np.array([[30.0, -20.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 7.0]])
    scores = Residual(2).fit(record).score(rows)
    np.testing.assert_allclose(scores, [0.0, 7.0], atol=2e-2)
    vim = ViM(2).fit(record).score(ns.ModelOutputs(np.full((2, 2), 3.0), rows))
    assert vim[1] > vim[0] + 100.0, "outside is more OoD than inside"
    quiet = ViM(2).fit(record).score(ns.ModelOutputs(np.array([[3.0, 3.0], [30.0, 3.0]]), rows[[0, 0]]))
    assert quiet[0] > quiet[1], "a larger logit is less OoD"


def test_copies_of_columns_do_not_make_residuals_random() -> None:
    """With every column twice the rank stays, so the principal space does, and lengths grow by sqrt(2)."""
    train, test = outputs(300), outputs(50, 1)
    head = (np.c_[HEAD[0], HEAD[0]] / 2.0, HEAD[1])
    twice = [ns.ModelOutputs(r.logits, np.c_[r.features, r.features], head=head) for r in (train, test)]
    plain = Residual().fit(train).score(test)
    np.testing.assert_allclose(Residual().fit(twice[0]).score(twice[1]), np.sqrt(2.0) * plain, rtol=1e-6)
    np.testing.assert_allclose(ViM().fit(twice[0]).score(twice[1]), ViM().fit(train).score(test), rtol=1e-6)


def test_columns_of_zeros_count_only_when_they_stop_being_zero() -> None:
    train, test = outputs(300), outputs(50, 1)
    head = (np.c_[HEAD[0], np.zeros((CLASSES, 2))], HEAD[1])
    wide = [ns.ModelOutputs(r.logits, np.c_[r.features, np.zeros((len(r), 2))], head=head) for r in (train, test)]
    detector = Residual().fit(wide[0])
    plain = Residual().fit(train).score(test)
    np.testing.assert_allclose(detector.score(wide[1]), plain, rtol=1e-8)
    awake = wide[1].features.copy()
    awake[:, -1] = 3.0
    np.testing.assert_allclose(detector.score(awake), np.sqrt(plain**2 + 9.0), rtol=1e-8)


def test_a_layer_of_low_rank_in_float32_does_not_throw_the_origin_far_out() -> None:
    """Its smallest singular values are rounding errors; their inverses would be the origin."""
    low = (np.random.default_rng(1).normal(size=(6, 2)) @ np.random.default_rng(2).normal(size=(2, D))).astype("f4")
    train = outputs(300)
    record = ns.ModelOutputs(features=train.features, head=(low, np.ones(6, dtype="f4")))
    origin = Residual().fit(record).fitted_.space.origin
    left, sizes, right = np.linalg.svd(low.astype(np.float64))
    expected = -sum(right[i] * (left[:, i] @ np.ones(6)) / sizes[i] for i in (0, 1))
    np.testing.assert_allclose(origin, expected, rtol=1e-4)


def test_fewer_rows_than_features_and_one_row() -> None:
    few = outputs(5)
    scores = Residual().fit(few).score(outputs(20, 1))
    np.testing.assert_allclose(scores, slow_residuals(few.features, outputs(20, 1).features, 2), rtol=1e-8)
    assert np.isfinite(ViM().fit(outputs(1)).score(outputs(3, 1))).all()
    assert np.isfinite(ViM().fit(outputs(8)[[0, 0, 0, 1]]).score(outputs(3, 1))).all()


def test_a_space_that_leaves_nothing_is_refused() -> None:
    for make in (Residual, ViM):
        with pytest.raises(ns.InvalidInput, match=r"dimensions must be below the rank of the training features, 12 \("):
            make(12).fit(outputs(300))
        with pytest.raises(ns.InvalidInput, match="dimensions must be below the rank of the training features, 3 "):
            make(3).fit(outputs(3))
        with pytest.raises(ns.InvalidInput, match="dimensions must be a whole number >= 1"):
            make(-1)
    nothing = ns.ModelOutputs(np.zeros((4, 2)), np.zeros((4, 3)), head=(np.eye(2, 3), np.zeros(2)))
    with pytest.raises(ns.InvalidInput, match="all features lie in the origin"):
        Residual().fit(nothing)


def test_bad_logits_are_refused_too() -> None:
    train = outputs(100)
    logits = train.logits.copy()
    logits[7, 1] = -np.inf
    with pytest.raises(ns.InvalidInput, match="logits row 7 holds infinity"):
        ViM().fit(train).score(train.replace(logits=logits))
    with pytest.raises(ns.InvalidInput, match="logits row 7 holds infinity"):
        ViM().fit(train.replace(logits=logits))
