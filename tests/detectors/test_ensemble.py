"""Ensembles: their scales against slow forms, and a planted problem that no member solves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.common_scale import CommonScale


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
        expected += weight * (score(test) - np.median(known)) / spread
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-10)


@pytest.mark.parametrize("how", ("ranks", "p_values"))
def test_ranks_and_p_values_against_counting(how: str) -> None:
    known = np.array([1.0, 2.0, 2.0, 5.0])
    scale = CommonScale.of(known, np.zeros(4, int), how)
    for score in (0.0, 1.0, 2.0, 3.0, 5.0, 9.0):
        below, equal = int((known < score).sum()), int((known == score).sum())
        rank, p_value = (below + 0.5 * equal) / 4, (1 + int((known >= score).sum())) / 5
        got = float(scale(np.array([score]), how)[0])
        assert got == pytest.approx(rank if how == "ranks" else -np.log(p_value))


@pytest.mark.parametrize("combine", ("sum", "ranks", "p_values"))
def test_two_members_see_what_neither_sees_alone(combine: str, tmp_path: Path) -> None:
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

    ensemble = ns.Ensemble("energy,mahalanobis", combine=combine)
    alone = max(auroc(ns.make_detector(name)) for name in ("energy", "mahalanobis"))
    assert auroc(ensemble) > alone + 0.06
    ensemble.save(tmp_path / "e.safetensors")
    loaded = ns.load_detector(tmp_path / "e.safetensors")
    np.testing.assert_array_equal(loaded.score(strange), ensemble.score(strange))
    assert loaded.get_params() == ensemble.get_params()


def test_robust_norm_scaling_is_one_formula() -> None:
    detector = ns.RobustNormScaling().fit(rows(400, 5))
    formula = detector.formula()
    assert formula is not None
    assert formula.centred
    assert formula.kind == "log_odds"
    assert formula.largest_weight > 0.0
    assert ns.Ensemble("msp,energy").fit(rows(400, 5)).formula() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        ({"detectors": ()}, "detectors must be names"),
        ({"detectors": "msp,energy", "weights": (1.0,)}, "weights must be 2 numbers, one a member"),
        ({"detectors": "msp,energy", "weights": "0,0"}, "not all 0"),
        ({"detectors": "msp", "combine": "mean"}, "combine must be one of"),
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
