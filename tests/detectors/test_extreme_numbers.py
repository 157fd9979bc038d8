"""Every detector on finite numbers whose squares are not: a finite score, or InvalidInput, and never inf or NaN."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import normscale as ns
from our_detectors import OUR_DETECTORS

TRAIN = ns.load_sample().train[:400]
CAN_FIT = [
    name
    for name in OUR_DETECTORS
    if ns.make_detector(name).reads_in_fit in ((), ("logits",))
    and set(ns.make_detector(name).reads) <= set(TRAIN.names)
]


def with_number(outputs: ns.ModelOutputs, name: str, value: float) -> ns.ModelOutputs:
    rows = np.array(outputs.array(name), dtype=np.float64)
    rows[2, 1] = value
    return outputs.replace(**{name: rows})


def fitted(name: str, outputs: ns.ModelOutputs = TRAIN) -> ns.Detector:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ns.NumericalWarning)  # few rows
        return ns.make_detector(name).fit(outputs)


@pytest.mark.parametrize("name", CAN_FIT)
@pytest.mark.parametrize("value", (1e160, -1e300))
def test_scores_are_finite_or_refused(name: str, value: float) -> None:
    detector = fitted(name)
    for array in detector.reads:
        for verb in (detector.score, detector.stream):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ns.NumericalWarning)
                    scores = verb(with_number(TRAIN[:5], array, value))
            except ns.InvalidInput as error:
                assert f"{array} row 2 holds" in str(error)  # noqa: PT017
            else:
                assert np.isfinite(scores).all()


@pytest.mark.parametrize("name", ("mahalanobis", "relative_mahalanobis", "gram", "residual", "vim"))
def test_a_training_row_whose_squares_overflow_is_refused(name: str) -> None:
    with pytest.raises(ns.InvalidInput, match="features row 2 holds 1e\\+200, too large"):
        fitted(name, with_number(TRAIN, "features", 1e200))


def test_a_residual_of_huge_features_is_still_a_length() -> None:
    detector: Any = fitted("residual")
    row = np.array(TRAIN.features[:1], dtype=np.float64)
    np.testing.assert_allclose(detector.score(row * 1e200), detector.score(row * 1e100) * 1e100, rtol=1e-9)
