"""Point 8: where the calibration error of norm-scaled logits is lowest."""

from __future__ import annotations

from typing import Any

import numpy as np

from normscale.bench.paper.audit.findings import UNCHECKED, Finding, verdict_of
from normscale.bench.paper.audit.given import Given
from normscale.detectors.norm_scaling import NormScaling
from normscale.metrics.temperature import ece_curve
from normscale.scores import confidence, msp_score

TEMPERATURES = 10.0 ** (np.arange(-80, 81) / 40)
"""From 0.01 to 100, forty to a decade; 1 is among them."""
NEAR = 1.25
"""A best temperature within this factor of 1 is near 1."""
BINS = 15


def check_calibration(given: Given) -> list[Finding]:
    """ECE against tau for norm-scaled and for raw logits of the test set."""
    claim = "The ECE of norm-scaled logits is lowest near tau = 1."
    other = "For temperature scaling the best tau differs by orders of magnitude between data sets."
    labels = given.test.labels
    known = None if labels is None else labels >= 0
    if labels is None or known is None or not known.any():
        reason = "It takes the labels of the test set."
        return [Finding(8, text, "No labels.", UNCHECKED, reason) for text in (claim, other)]
    test = given.test[known]
    scaled = NormScaling().fit(given.train).scale(test.logits)
    curves = {
        name: ece_curve(logits, labels[known], TEMPERATURES, bins=BINS)
        for name, logits in (("norm-scaled", scaled), ("raw", test.logits))
    }
    at_one = int(np.flatnonzero(TEMPERATURES == 1.0)[0])
    details: list[dict[str, Any]] = [
        {
            "logits": name,
            "best_tau": round(curve.best_temperature, 4),
            "ece_at_best": round(curve.best_ece, 5),
            "ece_at_1": round(float(curve.ece[at_one]), 5),
        }
        for name, curve in curves.items()
    ]
    mine, raw = details
    claimed = float(confidence(msp_score(scaled)).mean())
    near = 1 / NEAR <= curves["norm-scaled"].best_temperature <= NEAR
    return [
        Finding(
            8,
            claim,
            f"{_lowest(mine)}. Raw logits: {_lowest(raw)}.",
            verdict_of(near),
            "tau = 1 is near the best."
            if near
            else f"At tau = 1 the mean confidence is {claimed:.2f} where {test.accuracy:.2f} are right; for "
            "probabilities, fit tau.",
            details,
        ),
        Finding(
            8,
            other,
            f"Here it is {raw['best_tau']:.2f} for raw logits.",
            UNCHECKED,
            "One network cannot show how it differs between data sets.",
        ),
    ]


def _lowest(row: dict[str, Any]) -> str:
    return f"ECE {row['ece_at_1']:.3f} at tau = 1, lowest {row['ece_at_best']:.3f} at tau = {row['best_tau']:.2f}"
