"""Whether a detector was fitted on enough rows to tell anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normscale.detectors.base import Detector

_FEWEST_PER_CLASS = 5.0
"""Rows a class on average below which a fit says little: on the sample, detectors lose .05 to .5 AUROC there."""


def why_nothing_is_learned(detector: Detector) -> str | None:
    """Why the training rows of a fitted detector tell nothing: there is one, or all are the same; else None."""
    baseline = detector.baseline_
    if baseline is None or not detector.needs_fit:
        return None
    n = int(baseline.moments.weight)
    if n == 1:
        return f"{detector.name} was given 1 training row, which shows nothing of how rows vary. Pass more."
    if not any(moments.m2.any() for moments in (baseline.moments, *baseline.others.values())):
        return f"all {n} training rows are the same, so {detector.name} learns nothing from them. Pass others."
    return None


def why_little_is_learned(detector: Detector) -> str | None:
    """Why the rows of a detector that describes every class by its labels tell little: they are few; else None.

    Examples
    --------
    >>> import numpy as np
    >>> from normscale import Mahalanobis, ModelOutputs
    >>> logits = np.random.default_rng(0).normal(size=(8, 4))
    >>> rows = ModelOutputs(logits, features=logits[:, :2], labels=logits.argmax(axis=1))
    >>> print(why_little_is_learned(Mahalanobis().fit(rows)))
    mahalanobis was fitted on 8 rows of 4 classes, 2 a class: its scores will say little. Pass 5 a class or more.
    """
    baseline = detector.baseline_
    if baseline is None or not detector.needs_labels:
        return None
    n, present = int(baseline.moments.weight), int((baseline.predicted > 0).sum())
    if n >= _FEWEST_PER_CLASS * present:
        return None
    return (
        f"{detector.name} was fitted on {n} rows of {present} classes, {n / present:.2g} a class: its scores will say "
        f"little. Pass {_FEWEST_PER_CLASS:.0f} a class or more."
    )
