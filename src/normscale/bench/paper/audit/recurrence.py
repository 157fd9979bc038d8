"""Point 1: the running update as the paper prints it, beside the running mean that is meant."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from normscale._validate import FloatArray, Rows
from normscale.bench.paper.audit.findings import Finding, verdict_of
from normscale.bench.paper.audit.given import Given, shuffled
from normscale.bench.paper.published import paper_value
from normscale.detectors.norm_scaling import NormScaling
from normscale.scores import msp_score

SAME = 0.01
"""A mean off by less than this share of a deviation, a deviation off by less than this share, an AUROC off by less."""

VARIANTS = {
    "as_printed": "as printed",
    "running_mean": "a running mean",
    "training_size": "a prior as large as the training set",
    "frozen": "frozen",
    "msp": "plain MSP",
}


def printed_update(rows: Rows, mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Scale a stream by the update exactly as it is printed.

    ``mu_t = (mu_{t-1} + z_t) / (t + 1)`` and ``var_t = (var_{t-1} + (z_t - mu_t)^2) / (t + 1)`` for t = 1, 2, ...,
    from the training statistics at t = 0.

    Parameters
    ----------
    rows : array of shape (n, C)
        Logits in the order in which they come.
    mean, variance : arrays of shape (C,)
        Of the training set.

    Returns
    -------
    scaled : (n, C), mean : (C,), variance : (C,)
        The scaled logits, 0 where the deviation is 0, and the statistics after the last row.

    Examples
    --------
    A stream that is always 6 should have the mean 6; the printed update ends near 0.

    >>> _, mean, _ = printed_update(np.full((99, 1), 6.0), np.array([6.0]), np.array([1.0]))
    >>> round(float(mean[0]), 3)
    0.061
    """
    scaled = np.zeros(rows.shape)
    for t, row in enumerate(rows.astype(np.float64), start=1):
        mean = (mean + row) / (t + 1)
        away = row - mean
        variance = (variance + away * away) / (t + 1)
        np.divide(away, np.sqrt(variance), out=scaled[t - 1], where=variance > 0.0)
    return scaled, mean, variance


def check_recurrence(given: Given) -> list[Finding]:
    """The statistics it leaves, and what it does to the AUROC."""
    return [_statistics(given), _ranking(given)]


def _statistics(given: Given) -> Finding:
    """Where the printed statistics end after the test set, beside the running ones."""
    training = NormScaling().fit(given.train)
    rows = given.test.logits[np.random.default_rng(given.seed).permutation(len(given.test))]
    _, mean, variance = printed_update(rows, training.training_.mean, training.training_.variance)
    training.stream(rows)
    running = training.running_
    spread = np.where(running.std > 0.0, running.std, 1.0)
    details = [
        {
            "class": j,
            "running_mean": round(float(running.mean[j]), 4),
            "printed_mean": round(float(mean[j]), 6),
            "running_deviation": round(float(running.std[j]), 4),
            "printed_deviation": round(math.sqrt(variance[j]), 6),
        }
        for j in range(mean.size)
    ]
    off = float(np.max(np.abs(mean - running.mean) / spread))
    ratio = float(np.median(np.sqrt(variance) / spread))
    same = off < SAME and abs(ratio - 1.0) < SAME
    return Finding(
        1,
        "mu_t = (mu_{t-1} + z)/(t + 1), and sigma alike, are a running mean and deviation.",
        f"After {len(rows)} test rows the printed mean is up to {off:.2f} deviations off, and the printed deviation is "
        f"{ratio:.3f} of the true one.",
        verdict_of(same),
        "The update keeps the mean."
        if same
        else "It divides the past by t + 1 at every step and so forgets it; meant is (t mu_{t-1} + z)/(t + 1).",
        details,
    )


def _ranking(given: Given) -> Finding:
    """AUROC on every OoD set with each reading of the update."""
    weights = {"running_mean": 1.0, "training_size": float(len(given.train)), "frozen": math.inf}
    fitted = {name: NormScaling(prior_weight=weight).fit(given.train) for name, weight in weights.items()}
    training = fitted["frozen"].training_

    def as_printed(rows: Rows) -> FloatArray:
        return msp_score(printed_update(rows, training.mean, training.variance)[0])

    ways: dict[str, Callable[[Rows], FloatArray]] = {
        "as_printed": as_printed,
        "running_mean": lambda rows: copy.copy(fitted["running_mean"]).stream(rows),
        "training_size": lambda rows: copy.copy(fitted["training_size"]).stream(rows),
        "frozen": fitted["frozen"].score,
        "msp": msp_score,
    }
    details: list[dict[str, Any]] = []
    for name in given.ood:
        row: dict[str, Any] = {"ood_set": name}
        row |= {way: round(shuffled(given, name, score).auroc, 4) for way, score in ways.items()}
        if given.in_set is not None:
            printed = paper_value(given.in_set, name, "norm_scaling", "auroc")
            row["paper"] = None if printed is None else printed.mean
        details.append(row)
    means = {way: statistics.fmean(row[way] for row in details) for way in VARIANTS}
    known = [row for row in details if row.get("paper") is not None]
    reason = (
        f"As printed it loses {means['running_mean'] - means['as_printed']:.3f} against the running mean."
        if means["as_printed"] < means["running_mean"]
        else f"As printed it gains {means['as_printed'] - means['running_mean']:.3f} over the running mean."
    )
    if known:
        nearest = min(VARIANTS, key=lambda way: statistics.fmean(abs(row[way] - row["paper"]) for row in known))
        reason += f" The paper's figures on {len(known)} of the sets lie nearest to {VARIANTS[nearest]}."
    return Finding(
        1,
        "Norm-scaling with that update detects OoD inputs as the tables say.",
        f"Mean AUROC over {len(details)} OoD sets: "
        + ", ".join(f"{words} {means[way]:.3f}" for way, words in VARIANTS.items())
        + ".",
        verdict_of(means["as_printed"] > means["running_mean"] - SAME),
        reason,
        details,
    )
