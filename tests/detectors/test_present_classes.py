"""Centred logits and present classes: what each takes away, and a network that knows more classes than are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns

N_CLASSES, SHOWN = 20, 6


def rows(n: int, seed: int, shown: int = SHOWN) -> Any:
    """Logits of a network of many classes, of inputs of the first few; unseen classes hardly stir."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 0.3, (n, N_CLASSES)) - 2.0
    logits[:, :shown] += rng.normal(0.0, 1.5, (n, shown))
    logits[np.arange(n), rng.integers(0, shown, n)] += rng.gamma(9.0, 0.7, n)
    return logits


def ood(n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1.0, 0.6, (n, N_CLASSES))
    logits[np.arange(n), rng.integers(0, N_CLASSES, n)] += rng.gamma(3.0, 0.7, n)
    return logits


def auroc(detector: ns.Detector) -> float:
    return ns.evaluate(detector.score(rows(1000, 1)), detector.score(ood(1000, 2))).auroc


@pytest.mark.parametrize("labelled", (True, False))
def test_classes_without_rows_no_longer_spoil_the_others(labelled: bool) -> None:
    train = rows(3000, 0)
    labels = train[:, :SHOWN].argmax(axis=1) if labelled else None
    known = ns.ModelOutputs(train, labels=labels)
    plain, present = ns.NormScaling().fit(known), ns.PresentClasses().fit(known)
    assert present.fitted_.classes.tolist() == list(range(SHOWN))
    by_hand = ns.NormScaling().fit(train[:, :SHOWN])
    np.testing.assert_allclose(present.score(rows(50, 3)), by_hand.score(rows(50, 3)[:, :SHOWN]), rtol=1e-9, atol=1e-12)
    assert auroc(present) > auroc(plain) + 0.1


def test_a_class_that_is_predicted_by_mistake_is_not_shown() -> None:
    train = rows(3000, 0)
    train[:10, 15] = 12.0
    assert 15 not in ns.PresentClasses().fit(train).fitted_.classes
    train[:600, 15] = 12.0
    assert 15 in ns.PresentClasses().fit(train).fitted_.classes


def test_classes_that_are_missing_by_chance_are_kept() -> None:
    """One row of each of 600 of 1000 classes: the other logits vary as much, and their classes will come."""
    rng = np.random.default_rng(4)
    directions = rng.normal(size=(64, 1000)) / 8.0

    def of(classes: Any) -> Any:
        return (3.0 * rng.normal(size=(len(classes), 64)) + 9.0 * directions[:, classes].T) @ directions

    seen = np.sort(rng.permutation(1000)[:600])
    few = ns.ModelOutputs(of(seen), labels=seen)
    assert ns.PresentClasses().fit(few).fitted_.classes.size == 1000
    labels = rng.choice(seen, 8000)
    many = ns.ModelOutputs(of(labels), labels=labels)
    assert ns.PresentClasses().fit(many).fitted_.classes.size == 1000, "enough rows, but the other logits vary as much"


def test_few_rows_do_not_say_that_a_class_is_missing() -> None:
    train = rows(3000, 0)
    labels = train[:, :SHOWN].argmax(axis=1)
    few = np.concatenate([np.flatnonzero(labels == c)[:3] for c in range(SHOWN)])
    assert ns.PresentClasses().fit(ns.ModelOutputs(train[few], labels=labels[few])).fitted_.classes.size == N_CLASSES


@pytest.mark.filterwarnings("ignore:.*rows are the same:normscale.NumericalWarning")
def test_where_all_classes_are_shown_nothing_changes() -> None:
    train, test = rows(3000, 0, N_CLASSES), rows(50, 3, N_CLASSES)
    np.testing.assert_array_equal(ns.PresentClasses().fit(train).score(test), ns.NormScaling().fit(train).score(test))
    one = np.tile([3.0, 0.0, 0.0], (20, 1))
    assert ns.PresentClasses("energy").fit(one).fitted_.classes.tolist() == [0, 1, 2], (
        "one class leaves nothing to compare"
    )


def test_present_classes_are_saved_streamed_and_offers_its_formula(tmp_path: Path) -> None:
    detector = ns.PresentClasses().fit(rows(3000, 0))
    formula = detector._formula()
    assert formula is not None
    scaled = (rows(200, 4) - formula.shift) * formula.factor
    np.testing.assert_allclose(detector.score(rows(200, 4)), ns.msp_score(scaled), rtol=1e-9, atol=1e-9)
    detector.stream(rows(100, 5))
    detector.save(tmp_path / "d.safetensors")
    loaded = ns.load_detector(tmp_path / "d.safetensors")
    np.testing.assert_array_equal(loaded.stream(rows(30, 6)), detector.stream(rows(30, 6)))


@pytest.mark.parametrize("score", ("energy", "max_logit", "msp", "norm_scaling"))
def test_centred_scores_are_those_of_rows_less_their_mean(score: str) -> None:
    train, test = rows(300, 0), rows(40, 1) + np.linspace(-50.0, 50.0, 40)[:, None]
    detector = ns.make_detector(f"centred+{score}")
    detector._marks_far_rows = False
    by_hand = ns.make_detector(score)
    if detector._needs_fit:
        detector.fit(train)
        by_hand.fit(train - train.mean(axis=1, keepdims=True))
    expected = by_hand.score(test - test.mean(axis=1, keepdims=True))
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-9, atol=1e-9)
    shifted = detector.score(test + np.linspace(0.0, 900.0, 40)[:, None])
    np.testing.assert_allclose(shifted, expected, rtol=1e-9, atol=1e-9)


def test_centring_saves_energy_where_a_common_number_is_larger_for_ood() -> None:
    known, strange = rows(1000, 0, N_CLASSES), ood(1000, 1) + 6.0
    plain, centred = ns.make_detector("energy"), ns.make_detector("centred")
    assert ns.evaluate(plain.score(known), plain.score(strange)).auroc < 0.3
    assert ns.evaluate(centred.score(known), centred.score(strange)).auroc > 0.8
