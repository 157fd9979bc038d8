"""Ensembles: their scales against slow forms, and a planted problem that no member solves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.partial_fit import CommonScale, PartialFit, RowSample, merged


def rows(n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 4)) + 5.0 * np.eye(4)[rng.integers(0, 4, n)]


def test_the_sum_is_in_deviations_within_predicted_classes() -> None:
    train, test = rows(400, 0), rows(50, 1)
    detector = ns.Ensemble("energy,max_logit", weights=(1.0, 3.0)).fit(train)
    expected = np.zeros(50)
    predicted = train.argmax(axis=1)
    for score, weight in ((ns.energy_score, 1.0), (ns.max_logit_score, 3.0)):
        known = score(train)
        within = [known[predicted == c] - known[predicted == c].mean() for c in range(4)]
        spread = np.sqrt(np.mean(np.concatenate(within) ** 2))
        expected += weight * (score(test) - known.mean()) / spread
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-10)


def test_a_sample_of_a_class_tells_what_all_of_its_rows_tell() -> None:
    """3 000 rows of one class and 50 of another: the first is known by a thousand, and weighs what it weighs."""
    rng = np.random.default_rng(0)
    first = np.arange(3050) < 3000
    logits = np.where(first[:, None], [6.0, 0.0], [0.0, 6.0]) + rng.normal(size=(3050, 2))
    values = np.where(first, 1.0, 20.0) * rng.normal(size=3050)
    rows = ns.ModelOutputs(logits)
    whole = RowSample.of(rows, values[:, None])
    assert np.bincount(whole.classes).tolist() == [1000, 50]
    assert whole.counts.tolist() == [3000.0, 50.0]
    scale = CommonScale.of(whole.values[:, 0], whole)
    assert scale.spread == pytest.approx(np.sqrt((3000 * 1.0 + 50 * 400.0) / 3050), rel=0.2)
    parts = [RowSample.of(rows[a:b], values[a:b, None]) for a, b in ((1000, 3050), (0, 20), (20, 1000))]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    for one, other in zip(merged, whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_members_see_what_neither_sees_alone(tmp_path: Path) -> None:
    """Half of the OoD rows are strange in their logits, half in their features."""
    rng = np.random.default_rng(2)
    logits = rows(2000, 3)
    labels = logits.argmax(axis=1)
    features = rng.normal(size=(2000, 3)) + 3.0 * np.eye(4)[labels][:, :3]
    known = ns.ModelOutputs(logits, features, labels=labels)
    flat = np.where(np.arange(400)[:, None] < 200, 0.3 * rng.normal(size=(400, 4)), rows(400, 4))
    far = rng.normal(size=(400, 3)) + 3.0 * np.eye(4)[flat.argmax(axis=1)][:, :3]
    far[200:] += 5.0
    strange = ns.ModelOutputs(flat, far)

    def auroc(detector: ns.Detector) -> float:
        detector.fit(known[:1000])
        names = detector.reads
        return ns.evaluate(detector.score(known[1000:].only(*names)), detector.score(strange.only(*names))).auroc

    ensemble = ns.Ensemble("energy,mahalanobis")
    alone = max(auroc(ns.make_detector(name)) for name in ("energy", "mahalanobis"))
    assert auroc(ensemble) > alone + 0.06
    ensemble.save(tmp_path / "e.safetensors")
    loaded = ns.load_detector(tmp_path / "e.safetensors")
    np.testing.assert_array_equal(loaded.score(strange), ensemble.score(strange))
    assert loaded.get_params() == ensemble.get_params()


@pytest.mark.parametrize(
    "name", ("ensemble", "stream_aware+ensemble", "robust_norm_scaling", "ensemble:detectors=knn,msp")
)
def test_members_are_scaled_by_rows_that_they_have_not_seen(name: str) -> None:
    """Fitted at once, in parts, or in another order: the same detector."""
    sample = ns.load_sample()
    whole = ns.make_detector(name).fit(sample.train)
    order = np.random.default_rng(0).permutation(len(sample.train))
    turned = ns.make_detector(name).fit(sample.train[order])
    np.testing.assert_allclose(turned.score(sample.test), whole.score(sample.test), rtol=1e-8, atol=1e-8)
    if whole._why_all_rows():
        return
    fit = PartialFit(ns.make_detector(name))
    done = False
    while not done:
        parts = [fit.partial([part]) for part in (sample.train[:1], sample.train[1:300], sample.train[300:])]
        done = fit.finish(merged(merged(parts[0], parts[1]), parts[2]))
    np.testing.assert_allclose(fit.detector.score(sample.test), whole.score(sample.test), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        ({"detectors": ()}, "detectors must be names"),
        ({"detectors": "msp,energy", "weights": (1.0,)}, "weights must be 2 numbers, one a member"),
        ({"detectors": "msp,energy", "weights": "0,0"}, "not all 0"),
        ({"detectors": "msp,temperature_scaling"}, "temperature_scaling is fitted on validation outputs"),
    ),
)
def test_parameters_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ns.InvalidInput, match=message):
        ns.Ensemble(**arguments)


@pytest.mark.filterwarnings("ignore:.*rows are the same:normscale.NumericalWarning")
def test_equal_scores_are_not_divided_by_their_rounding() -> None:
    rows = np.tile([0.1, 0.3, 12.7], (70, 1))
    detector = ns.make_detector("ensemble", detectors="msp,energy").fit(rows)
    assert np.abs(detector.score([[0.1, 0.3, 12.6], [5.0, 0.3, 0.1]])).max() < 1000.0
