"""Does the stream still look like training? Readings of its recent rows, and of the running statistics themselves.

Of the rows that were taken in lately:

* *class balance*: the total variation between the shares of predicted classes, recent and training, beyond what a
  sample of that size shows anyway. Plain norm-scaling breaks on a stream that one class dominates.
* *shift*: the farthest that the recent mean logit of any class lies from its training mean, in training deviations.
* *spread*: how much wider or narrower than in training the recent logits of any class spread, as a factor minus 1. Rows
  drawn together around the training mean would otherwise shrink the running deviations unseen.

Of all rows that were answered lately, taken in or not:

* *flagged*: the share that was flagged.
* *stream-only flags*: the share that the running statistics flagged and the detector file would not, less a few rows.
  It is what a stream, or an attacker, has taught. The share is one of a fixed number of rows, so a few rows after a
  start say no more than the same few rows later on.

Of training rows that the detector file keeps, *reference flags*: the share that the running statistics alone would
flag, of the predicted class where it is largest. No stream can dilute it, and it shows harm to one class before rows of
that class come.

Of the running moments, where they are known: *running shift* and *running spread*, which slow poison moves before
anything else shows.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from normscale._kernels import BlockState, combine
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.baseline import TrainingBaseline
from normscale.guard.policy import Expect, Policy
from normscale.moments import RunningMoments
from normscale.outputs import LOGITS, ModelOutputs
from normscale.scaling import scale_factor

_WIDEST = 1e6
_FEW = 5.0
"""Rows that the running statistics alone may flag before their share counts."""
_SOON = 250.0
"""Rows that the share of stream-only flags rests on: fewer than the other readings, to be noticed soon."""
_CLEARS_BELOW = 0.75
"""Part of its limit that a reading must stay below for an alarm to end."""
_FAR_BEYOND = 2.5
"""Times its limit at which a reading of the running statistics freezes the guard; at the limit it is an alarm."""


class Drift(StrEnum):
    """What is read of a stream."""

    BALANCE = "class_balance"
    SHIFT = "shift"
    SPREAD = "spread"
    FLAGGED = "flagged"
    STREAM_ONLY = "stream_only_flags"
    REFERENCE = "reference_flags"
    RUNNING_SHIFT = "running_shift"
    RUNNING_SPREAD = "running_spread"


LABELS = {
    Drift.BALANCE: "class balance",
    Drift.SHIFT: "mean shift",
    Drift.SPREAD: "spread",
    Drift.FLAGGED: "flagged share",
    Drift.STREAM_ONLY: "flagged by the stream alone",
    Drift.REFERENCE: "the same of training rows",
    Drift.RUNNING_SHIFT: "running mean shift",
    Drift.RUNNING_SPREAD: "running spread",
}

NORMAL = {
    Drift.BALANCE: "0.02 at most; a sorted stream, or one of mostly one class, needs --expect unbalanced",
    Drift.SHIFT: "0.13 at most; one class at half of the stream gives 0.9 and more",
    Drift.SPREAD: "0.16 at most; other logits, as of a changed network or input, give more",
    Drift.FLAGGED: "about the share that the threshold was set for",
    Drift.STREAM_ONLY: "0.006 at most; every tenth row OoD gives up to 0.13",
    Drift.REFERENCE: "0.057 at most; every tenth row OoD, or all logits times 0.9, may give more",
    Drift.RUNNING_SHIFT: "0.1 at most; a stream of another class balance than training's gives more",
    Drift.RUNNING_SPREAD: "0.1 at most; logits times 0.9 or 1.1 give more",
}
"""What streams like training reach (24 000 rows each of the sample and of a ResNet-20), and what else gives more."""


class Reading(NamedTuple):
    """One number against its limit."""

    name: Drift
    value: float
    limit: float
    worst: int = -1
    """The class that stands out, where there is one."""
    freezes_above: float = 0.0
    """Beyond its limit and this it freezes the guard."""

    @property
    def alarming(self) -> bool:
        """Whether the limit is passed."""
        return self.value > self.limit

    @property
    def freezing(self) -> bool:
        """Whether the guard must stop learning."""
        return self.alarming and self.value > self.freezes_above

    @property
    def calm(self) -> bool:
        """Whether it is so far below the limit that an alarm may end."""
        return self.value <= _CLEARS_BELOW * self.limit


class RecentRows(NamedTuple):
    """What the recent rows look like; older ones fade. Never changed: each block makes a new one."""

    weight: float
    """How many rows that were taken in it rests on; at most the window."""
    predicted: FloatArray
    """(C,) of these."""
    mean: FloatArray
    """(C,) of their logits."""
    m2: FloatArray
    """(C,) sum of their squared deviations from it."""
    stream_only: float = 0.0
    """How many rows the running statistics alone flagged, over a shorter window."""
    answered: float = 0.0
    """How many rows were answered, taken in or not."""
    flagged: float = 0.0
    """How many of these were flagged."""
    reference: float = -1.0
    """Share of one class's training rows that the running statistics alone would flag; -1: not known yet ..."""
    reference_class: int = -1
    """... and which class that is; -1: of all classes together."""

    @classmethod
    def empty(cls, n_classes: int) -> RecentRows:
        """Start without any row."""
        return cls(0.0, *np.zeros((3, n_classes)))

    def after(self, block: BlockState, predicted: IntArray, window: float) -> RecentRows:
        """Count rows in that were taken in, each as heavy as the next; ``predicted`` counts them by class."""
        keep, new = _fading(block.weight, window)
        share = new / block.weight
        before = BlockState(self.weight * keep, self.mean, self.m2 * keep)
        weight, mean, m2 = combine(before, BlockState(new, block.mean, block.m2 * share))
        return self._replace(weight=weight, predicted=self.predicted * keep + predicted * share, mean=mean, m2=m2)

    def after_answers(self, rows: int, flagged: int, window: float) -> RecentRows:
        """Count answered rows."""
        keep, new = _fading(rows, window)
        return self._replace(answered=self.answered * keep + new, flagged=self.flagged * keep + flagged * (new / rows))

    def after_stream_only(self, rows: int, flagged: int) -> RecentRows:
        """Count rows that the running statistics answered, and those that they alone flagged."""
        keep, new = _fading(rows, _SOON)
        return self._replace(stream_only=self.stream_only * keep + flagged * (new / rows))

    def without_stream_only(self) -> RecentRows:
        """Forget what the running statistics flagged: they begin anew."""
        return self._replace(stream_only=0.0, reference=-1.0, reference_class=-1)

    @property
    def std(self) -> FloatArray:
        """(C,) of the logits."""
        return _std(self)


def _std(moments: BlockState | RecentRows) -> FloatArray:
    std: FloatArray = np.sqrt(moments.m2 / moments.weight)
    return std


def _fading(rows: float, window: float) -> tuple[float, float]:
    """What is left of older rows after some more, and what these weigh when each fades from its arrival on."""
    keep = math.exp(-rows / window)
    return keep, window * (1.0 - keep)


class _TrainingRange:
    """How far from the training mean the numbers of one array lie, in training deviations."""

    def __init__(self, moments: RunningMoments, far: float) -> None:
        self._mean, self._per_deviation = moments.mean, scale_factor(moments)
        std, reach = moments.std, np.full(self._mean.size, math.inf)
        reach[std > 0.0] = far * std[std > 0.0]
        self._low, self._high = float((self._mean - reach).max()), float((self._mean + reach).min())

    def distances(self, rows: Rows) -> FloatArray | None:
        """(n,) the distance of each row's farthest number; None: none is far."""
        if rows.min() >= self._low and rows.max() <= self._high:
            return None
        distances: FloatArray = (np.abs(rows - self._mean) * self._per_deviation).max(axis=1)
        return distances


class DriftMonitor:
    """Compares recent rows and running statistics with training, and finds rows far from it."""

    def __init__(self, baseline: TrainingBaseline | None, policy: Policy, *, survives_unbalanced: bool = False) -> None:
        """Without a baseline only shares of flagged rows can be watched.

        Where the running statistics survive a stream with another class balance than training's, what the class balance
        moves does not freeze the guard.
        """
        self.policy = policy
        self.baseline = baseline
        self.far = policy.outlier if policy.trusting else min(policy.far, policy.outlier)
        self.limits = {name: getattr(policy, "balance" if name == Drift.BALANCE else name.value) for name in Drift}
        self._freezes_above = {
            Drift.STREAM_ONLY: policy.most_stream_only_flags,
            Drift.REFERENCE: math.inf,
            Drift.RUNNING_SHIFT: _FAR_BEYOND * policy.running_shift,
            Drift.RUNNING_SPREAD: _FAR_BEYOND * policy.running_spread,
        }
        follow_the_classes = (Drift.BALANCE, Drift.SHIFT, Drift.SPREAD)
        if policy.expect == Expect.UNBALANCED:
            self.limits |= dict.fromkeys(follow_the_classes, math.inf)
        if survives_unbalanced:
            self._freezes_above |= dict.fromkeys(follow_the_classes, math.inf)
        self._enough = _fading(policy.evidence, policy.window)[1] * (1.0 - 1e-9)
        if baseline is not None:
            self.share = baseline.share
            self._noise = np.sqrt(self.share * (1.0 - self.share) * (2.0 / math.pi))
            self.mean, self.per_deviation = baseline.moments.mean, scale_factor(baseline.moments)
            arrays = {LOGITS: baseline.moments, **baseline.others}
            self._ranges = {name: _TrainingRange(moments, self.far) for name, moments in arrays.items()}

    def readings(self, recent: RecentRows, running: BlockState | None = None) -> tuple[Reading, ...]:
        """Read the recent rows and the running moments. What rests on too few rows is left out."""
        readings = []
        if self.baseline is not None and recent.weight >= self._enough:
            readings = [self._balance(recent), *self._moved(recent.mean, recent.std, Drift.SHIFT, Drift.SPREAD)]
        if recent.answered >= self._enough:
            readings.append(self._reading(Drift.FLAGGED, recent.flagged / recent.answered))
        if recent.answered > 0.0:
            readings.append(self._reading(Drift.STREAM_ONLY, max(0.0, recent.stream_only - _FEW) / _SOON))
        if recent.reference >= 0.0:
            readings.append(self._reading(Drift.REFERENCE, recent.reference, recent.reference_class))
        if self.baseline is not None and running is not None:
            readings += self._moved(running.mean, _std(running), Drift.RUNNING_SHIFT, Drift.RUNNING_SPREAD)
        return tuple(readings)

    def _balance(self, recent: RecentRows) -> Reading:
        excess = recent.predicted / recent.weight - self.share
        chance = np.minimum(self._noise / math.sqrt(recent.weight), 2.0 * self.share)
        balance = max(0.0, 0.5 * float(np.abs(excess).sum() - chance.sum()))
        return self._reading(Drift.BALANCE, balance, int(excess.argmax()))

    def _moved(self, mean: FloatArray, std: FloatArray, shift: Drift, spread: Drift) -> list[Reading]:
        """How far the mean and deviation of every class lie from training."""
        distance = np.abs(mean - self.mean) * self.per_deviation
        wider = np.where(self.per_deviation > 0.0, std * self.per_deviation, 1.0)
        factor = np.maximum(wider, 1.0 / np.maximum(wider, 1.0 / _WIDEST))
        farthest, strangest = int(distance.argmax()), int(factor.argmax())
        return [
            self._reading(shift, float(distance[farthest]), farthest),
            self._reading(spread, min(float(factor[strangest]), _WIDEST) - 1.0, strangest),
        ]

    def _reading(self, name: Drift, value: float, worst: int = -1) -> Reading:
        return Reading(name, value, self.limits[name], worst, self._freezes_above.get(name, 0.0))

    def distances(self, outputs: ModelOutputs) -> FloatArray | None:
        """(n,) how far from training each row's farthest number lies, in training deviations; None: none is far."""
        if self.baseline is None:
            return None
        ranges = self._ranges.items()
        found = [far for name, limits in ranges if (far := limits.distances(outputs.array(name))) is not None]
        return np.maximum.reduce(found) if found else None

    def explain(
        self, reading: Reading, recent: RecentRows, running: BlockState | None, names: tuple[str, ...] | None
    ) -> str:
        """Say a reading in plain words, and what is normal."""
        said = self._words(reading, recent, running, names)
        return f"{said} ({reading.value:.2g}; normal: {NORMAL[reading.name]}.)"

    def _words(
        self, reading: Reading, recent: RecentRows, running: BlockState | None, names: tuple[str, ...] | None
    ) -> str:
        worst, share = reading.worst, f"{100 * reading.value:.0f} % of the recent rows are flagged"
        name = repr(names[worst]) if names is not None and worst >= 0 else f"class {worst}"
        if reading.name == Drift.FLAGGED:
            return f"{share} as out-of-distribution."
        if reading.name == Drift.STREAM_ONLY:
            return f"{share} by what the stream has taught alone."
        if reading.name == Drift.REFERENCE:
            of_rows = f"{100 * reading.value:.0f} % of the training rows{f' predicted {name}' if worst >= 0 else ''}"
            return f"{of_rows} would be flagged by what the stream has taught alone."
        if reading.name == Drift.BALANCE:
            now, then = recent.predicted[worst] / recent.weight, self.share[worst]
            return f"{100 * now:.0f} % of the recent rows are predicted {name}; in training {100 * then:.0f} % were."
        recent_rows = reading.name in (Drift.SHIFT, Drift.SPREAD) or running is None
        mean, std = (recent.mean, recent.std) if recent_rows else (running.mean, _std(running))  # type: ignore
        if reading.name in (Drift.SHIFT, Drift.RUNNING_SHIFT):
            direction = "above" if mean[worst] > self.mean[worst] else "below"
            distance = f"{reading.value:.1f} training deviations {direction}"
            if recent_rows:
                return f"The recent logits of {name} lie {distance} their training mean."
            return f"The running mean of {name} lies {distance} its training mean."
        how = "wider" if std[worst] * self.per_deviation[worst] > 1.0 else "more closely"
        what = "recent logits" if recent_rows else "running statistics"
        return f"The {what} of {name} spread {1.0 + reading.value:.1f} times {how} than in training."
