"""Does the stream still look like training? Four readings of its recent rows.

* *class balance*: the total variation between the shares of predicted classes, recent and training, beyond what a
  sample of that size shows anyway. Plain norm-scaling breaks on a stream that one class dominates.
* *shift*: the farthest that the recent mean logit of any class lies from its training mean, in training deviations.
  A running mean is an average of recent means, so a stream within this limit cannot move the statistics beyond it.
* *spread*: how much wider or narrower than in training the recent logits of any class spread, as a factor minus 1. Rows
  drawn together around the training mean would otherwise shrink the running deviations, and fewer be flagged, unseen.
* *flagged*: the share of recent rows that were flagged.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from normscale._kernels import BlockState, combine
from normscale._validate import BoolArray, FloatArray, IntArray, Rows
from normscale.detectors.baseline import TrainingBaseline
from normscale.guard.policy import Policy
from normscale.moments import RunningMoments
from normscale.outputs import LOGITS, ModelOutputs
from normscale.scaling import scale_factor

_WIDEST = 1e6


class Drift(StrEnum):
    """What is read of a stream."""

    BALANCE = "class_balance"
    SHIFT = "shift"
    SPREAD = "spread"
    FLAGGED = "flagged"


LABELS = {
    Drift.BALANCE: "class balance",
    Drift.SHIFT: "mean shift",
    Drift.SPREAD: "spread",
    Drift.FLAGGED: "flagged share",
}


class Reading(NamedTuple):
    """One number against its limit."""

    name: Drift
    value: float
    limit: float
    worst: int = -1
    """The class that stands out, where there is one."""

    @property
    def alarming(self) -> bool:
        """Whether the limit is passed."""
        return self.value > self.limit


class RecentRows(NamedTuple):
    """What the recent rows look like; older ones fade. Never changed: each block makes a new one."""

    weight: float
    """How many rows it rests on; at most the window."""
    flagged: float
    predicted: FloatArray
    """(C,)"""
    mean: FloatArray
    """(C,) of the logits."""
    m2: FloatArray
    """(C,) sum of their squared deviations from it."""

    @classmethod
    def empty(cls, n_classes: int) -> RecentRows:
        """Start without any row."""
        return cls(0.0, 0.0, np.zeros(n_classes), np.zeros(n_classes), np.zeros(n_classes))

    def after(self, flagged: int, predicted: IntArray, block: BlockState, window: float) -> RecentRows:
        """Count a block of rows in, each as heavy as the next."""
        rows = block.weight
        keep = math.exp(-rows / window)
        new = window * (1.0 - keep)  # what n rows weigh together when each fades from its arrival on
        before = BlockState(self.weight * keep, self.mean, self.m2 * keep)
        weight, mean, m2 = combine(before, BlockState(new, block.mean, block.m2 * (new / rows)))
        return RecentRows(
            weight,
            self.flagged * keep + flagged * (new / rows),
            self.predicted * keep + predicted * (new / rows),
            mean,
            m2,
        )

    @property
    def std(self) -> FloatArray:
        """(C,) of the logits."""
        std: FloatArray = np.sqrt(self.m2 / self.weight)
        return std


class _TrainingRange:
    """How far from the training mean the numbers of one array may lie, in training deviations."""

    def __init__(self, moments: RunningMoments, outlier: float) -> None:
        self._mean, self._per_deviation, self._outlier = moments.mean, scale_factor(moments), outlier
        std, reach = moments.std, np.full(self._mean.size, math.inf)
        reach[std > 0.0] = outlier * std[std > 0.0]
        self._low, self._high = float((self._mean - reach).max()), float((self._mean + reach).min())

    def outside(self, rows: Rows) -> BoolArray | None:
        """Which rows hold a number beyond; None: none of them."""
        if rows.min() >= self._low and rows.max() <= self._high:
            return None
        far: BoolArray = (np.abs(rows - self._mean) * self._per_deviation).max(axis=1) > self._outlier
        return far if far.any() else None


class DriftMonitor:
    """Compares recent rows with training, and finds rows too far out to have come from it."""

    def __init__(self, baseline: TrainingBaseline | None, policy: Policy) -> None:
        """Without a baseline only the flagged share can be watched."""
        self.policy = policy
        self.baseline = baseline
        self._latest: tuple[RecentRows | None, tuple[Reading, ...]] = (None, ())
        if baseline is not None:
            self.share = baseline.share
            self._noise = np.sqrt(self.share * (1.0 - self.share) * (2.0 / math.pi))
            self.mean, self.per_deviation = baseline.moments.mean, scale_factor(baseline.moments)
            arrays = {LOGITS: baseline.moments, **baseline.others}
            self._ranges = {name: _TrainingRange(moments, policy.outlier) for name, moments in arrays.items()}

    def readings(self, recent: RecentRows) -> tuple[Reading, ...]:
        """Read the recent rows; nothing before there is enough evidence. The latest readings are remembered."""
        if recent is not self._latest[0]:
            self._latest = recent, self._read(recent)
        return self._latest[1]

    def limits(self) -> dict[Drift, float]:
        """The limit of every reading."""
        policy = self.policy
        return {
            Drift.BALANCE: policy.balance,
            Drift.SHIFT: policy.shift,
            Drift.SPREAD: policy.spread,
            Drift.FLAGGED: policy.flagged,
        }

    def _read(self, recent: RecentRows) -> tuple[Reading, ...]:
        policy, weight = self.policy, recent.weight
        if weight < policy.evidence:
            return ()
        flagged = Reading(Drift.FLAGGED, recent.flagged / weight, policy.flagged)
        if self.baseline is None:
            return (flagged,)
        share = recent.predicted / weight
        excess = share - self.share
        chance = np.minimum(self._noise / math.sqrt(weight), 2.0 * self.share)
        balance = max(0.0, 0.5 * float(np.abs(excess).sum() - chance.sum()))
        distance = np.abs(recent.mean - self.mean) * self.per_deviation
        farthest = int(distance.argmax())
        wider = np.where(self.per_deviation > 0.0, recent.std * self.per_deviation, 1.0)
        factor = np.maximum(wider, 1.0 / np.maximum(wider, 1.0 / _WIDEST))
        strangest = int(factor.argmax())
        return (
            Reading(Drift.BALANCE, balance, policy.balance, int(excess.argmax())),
            Reading(Drift.SHIFT, float(distance[farthest]), policy.shift, farthest),
            Reading(Drift.SPREAD, min(float(factor[strangest]), _WIDEST) - 1.0, policy.spread, strangest),
            flagged,
        )

    def training_like(self, rows: int) -> BlockState:
        """Moments of some rows that are just like those of training."""
        assert self.baseline is not None, "outliers are only found where training is known"
        return self.baseline.moments.reweighted(rows).state

    def outliers(self, outputs: ModelOutputs) -> BoolArray | None:
        """Which rows hold, in any array, a number too far out to have to do with training; None: none of them."""
        if self.baseline is None:
            return None
        found = [
            far for name, limits in self._ranges.items() if (far := limits.outside(outputs.array(name))) is not None
        ]
        return np.logical_or.reduce(found) if found else None

    def explain(self, reading: Reading, recent: RecentRows, names: tuple[str, ...] | None) -> str:
        """Say a reading in plain words."""
        worst = reading.worst
        name = repr(names[worst]) if names is not None and worst >= 0 else f"class {worst}"
        if reading.name == Drift.BALANCE:
            now, then = recent.predicted[worst] / recent.weight, self.share[worst]
            return f"{100 * now:.0f} % of the recent rows are predicted {name}; in training {100 * then:.0f} % were."
        if reading.name == Drift.SHIFT:
            direction = "above" if recent.mean[worst] > self.mean[worst] else "below"
            distance = f"{reading.value:.1f} training deviations {direction}"
            return f"The recent logits of {name} lie {distance} their training mean."
        if reading.name == Drift.SPREAD:
            how = "wider" if recent.std[worst] * self.per_deviation[worst] > 1.0 else "more closely"
            return f"The recent logits of {name} spread {1.0 + reading.value:.1f} times {how} than in training."
        return f"{100 * reading.value:.0f} % of the recent rows are flagged as out-of-distribution."
