"""The stress grids of the paper's method: norm-scaling with every prior weight and score, beside its rivals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import product

from normscale import _validate
from normscale.bench.experiments.stress import Grid, StressPreset
from normscale.detectors.base import Detector, Setting
from normscale.detectors.norm_scaling import NormScaling
from normscale.detectors.registry import make_detector
from normscale.outputs import FEATURES, ModelOutputs

PRIORS = ("w=1", "w=100", "w=1000", "w=train", "frozen")
"""How many rows the training statistics count as; ``w=train``: as many as they were made from."""
SCORES = ("msp", "max_logit", "energy")


def norm_scaling_name(score: str = "msp", prior: str = "w=1") -> str:
    """What norm-scaling with a score and a prior weight is called in the grid's rows.

    Examples
    --------
    >>> norm_scaling_name("max_logit", "frozen")
    'norm_scaling max_logit frozen'
    """
    return f"norm_scaling {score} {prior}"


OWN_GRID = Grid(shares=(0.01, 0.05, 0.10, 0.25, 0.50))
"""Fewer shares than the records have: advice within a minute."""
RUNNING = norm_scaling_name()
"""The paper's method."""
FROZEN = norm_scaling_name(prior="frozen")
RIVALS = ("msp", "max_logit", "energy")
"""One formula on raw logits; nothing is fitted and nothing runs."""
STATICS = (*RIVALS, FROZEN, norm_scaling_name("max_logit", "frozen"))
"""What a method with running statistics must not lose against."""


def stress_methods(train: ModelOutputs, preset: str = "paper") -> dict[str, Detector]:
    """The detectors of a preset, fitted, by name.

    ``paper``: norm-scaling with every prior weight and every score, and the rivals. ``robust``: the paper's setting,
    robust norm-scaling, frozen norm-scaling and the rivals. ``own``: the same with norm-scaling that starts calmly and
    with stream-aware detectors, an ensemble among them where there are features and a head.
    """
    if _validate.one_of(preset, "preset", ("own", "paper", "robust")) == "paper":
        wanted = list(product(SCORES, PRIORS))
    else:
        wanted = [("msp", "w=1"), ("msp", "frozen"), ("max_logit", "frozen")]
    if preset == "own":
        wanted.insert(1, ("msp", "w=1000"))
    weights = dict(zip(PRIORS, (1.0, 100.0, 1000.0, float(len(train)), math.inf), strict=True))
    methods: dict[str, Detector] = {
        norm_scaling_name(score, prior): NormScaling(score, weights[prior]).fit(train) for score, prior in wanted
    }
    aware = {"paper": (), "robust": ("robust_norm_scaling",), "own": ("robust_norm_scaling", "stream_aware+energy")}
    others = (*aware[preset], *RIVALS)
    if preset == "own" and FEATURES in train.names and train.head is not None:
        others = (*others, "ensemble", "stream_aware+ensemble")
    return methods | {name: make_detector(name).fit(train) for name in others}


def stress_titles(methods: Mapping[str, Detector]) -> dict[str, str]:
    """What the methods are called in sentences.

    Examples
    --------
    >>> stress_titles({"norm_scaling msp w=1": NormScaling(), "energy": make_detector("energy")})
    {'norm_scaling msp w=1': 'running norm-scaling (msp, prior weight 1)', 'energy': 'Energy'}
    """
    titles = {}
    for name, detector in methods.items():
        titles[name] = detector.title
        if isinstance(detector, NormScaling):
            score, running = detector.scorer.name, Setting.STREAM in detector.settings
            weight = f"running norm-scaling ({score}, prior weight {detector.prior_weight:g})"
            titles[name] = weight if running else f"frozen norm-scaling ({score})"
    return titles


STRESS_PRESETS = {
    "own": StressPreset(OWN_GRID, partial(stress_methods, preset="own"), stress_titles, "energy"),
    "paper": StressPreset(Grid(), partial(stress_methods, preset="paper"), stress_titles, "energy"),
    "robust": StressPreset(
        Grid(balances=("balanced", "one class 80 %", "two classes missing")),
        partial(stress_methods, preset="robust"),
        stress_titles,
        "energy",
    ),
}
"""``own``: which detector to use for a stream of one's own. ``paper``: what the paper leaves open.
``robust``: the harder grid that detectors are compared on."""
