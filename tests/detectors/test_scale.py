"""SCALE against sorting every row, and two planted rows of which plain energy cannot tell the stranger."""

from __future__ import annotations

import numpy as np
import pytest

import normscale as ns

SAMPLE = ns.load_sample()


@pytest.mark.parametrize("percentile", (50.0, 85.0))
def test_it_is_its_formula(percentile: float) -> None:
    assert SAMPLE.train.head is not None
    rows = np.abs(SAMPLE.ood["unseen_digits"].features[:60]).astype(np.float64)
    expected = []
    for row in rows.tolist():
        k = len(row) - round(len(row) * percentile / 100.0)
        factor = np.exp(sum(row) / sum(sorted(row)[-k:]))
        logits = SAMPLE.train.head.weight.astype(np.float64) @ (factor * np.array(row)) + SAMPLE.train.head.bias
        expected.append(-float(np.logaddexp.reduce(logits)))
    detector = ns.make_detector("scale+energy", percentile=percentile).fit(SAMPLE.train)
    np.testing.assert_allclose(detector.score(rows), expected, rtol=1e-9)


def test_rows_of_one_energy_are_told_apart_by_the_shape_of_their_features() -> None:
    """Where the paper's premise holds: in-distribution rows spread their activation, OoD rows have it in few peaks."""
    train = ns.ModelOutputs(features=np.ones((2, 10)), head=(np.ones((2, 10)) * [[1.0], [0.0]], np.zeros(2)))
    known, strange = np.ones(10), np.eye(10)[0] * 10.0
    plain = ns.Energy().score(train.head.logits(np.array([known, strange])))  # type: ignore[union-attr]
    np.testing.assert_allclose(*plain)
    scores = ns.SCALE(percentile=80.0).fit(train).score(np.array([known, strange]))
    np.testing.assert_allclose(scores, [-10.0 * np.exp(5.0), -10.0 * np.exp(1.0)], rtol=1e-9)


def test_names_and_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    detector = ns.make_detector("scale+msp", percentile=70).fit(SAMPLE.train)
    detector.save(tmp_path / "d.safetensors")
    loaded = ns.load_detector(tmp_path / "d.safetensors")
    assert loaded.name == "scale+msp"
    assert np.array_equal(loaded.score(SAMPLE.test), detector.score(SAMPLE.test))
