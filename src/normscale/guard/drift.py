"""Does the stream still look like training? Readings of its recent rows, and of the running statistics themselves.

Class balance, shift and spread are of the rows that were taken in lately. Rows drawn together around the training mean
would shrink the running deviations unseen, so the spread counts both ways. Flagged and stream-only flags are of all
rows that were answered lately. Stream-only flags are what a stream, or an attacker, has taught. They are a share of a
fixed number of rows, so a few rows after a start say no more than the same few rows later on. Reference flags are of
training rows that the detector file keeps: no stream can dilute them, and they show harm to one class before rows of
that class come. Running shift and spread are of running moments, which slow poison moves first.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from normscale._kernels import BlockState, combine
from normscale._validate import FloatArray, IntArray
from normscale.detectors.baseline import TrainingBaseline
from normscale.guard.policy import Expect, Policy
from normscale.moments import RunningMoments, scale_factor
from normscale.outputs import LOGITS, ModelOutputs

_WIDEST = 1e6
_FEW = 5.0  # rows that the running statistics alone may flag before their share counts
_SOON = 250.0  # rows that the share of stream-only flags rests on: fewer than the other readings, to be noticed soon
_CLEARS_BELOW = 0.75  # part of its limit that a reading must stay below for an alarm to end
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


SENTENCES = {
    Drift.BALANCE: "{detail} of the recent rows are predicted {name}.",
    Drift.SHIFT: "The recent logits of {name} lie {value:.1f} standard deviations {detail} their training mean.",
    Drift.SPREAD: "The recent logits of {name} spread {factor:.1f} times {detail} than in training.",
    Drift.FLAGGED: "{share:.0f} % of the recent rows are flagged as out-of-distribution.",
    Drift.STREAM_ONLY: "{share:.0f} % of the recent rows are flagged by what the stream has taught alone.",
    Drift.REFERENCE: "{share:.0f} % of the training rows predicted {name} would be flagged by what the stream has "
    "taught alone.",
    Drift.RUNNING_SHIFT: "The running mean of {name} lies {value:.1f} standard deviations {detail} its training mean.",
    Drift.RUNNING_SPREAD: "The running statistics of {name} spread {factor:.1f} times {detail} than in training.",
}
NORMAL = {
    Drift.BALANCE: "0.02 at most; a sorted stream, or one of mostly one class, gives more",
    Drift.SHIFT: "0.13 at most; one class at half of the stream gives 0.9 and more",
    Drift.SPREAD: "0.16 at most; other logits, as of a changed network or input, give more",
    Drift.FLAGGED: "about the share that the threshold was set for",
    Drift.STREAM_ONLY: "0.006 at most; every tenth row OoD gives up to 0.13",
    Drift.REFERENCE: "0.06, seldom 0.12; every tenth row OoD, or all logits times 0.9, may give more",
    Drift.RUNNING_SHIFT: "0.1 at most; a stream of another class balance than training's gives more",
    Drift.RUNNING_SPREAD: "0.1 at most; logits times 0.9 or 1.1 give more",
}
"""What streams like training reach (24 000 rows each of the sample and of a ResNet-20), and what else gives more."""
_FOLLOW_THE_CLASSES = (Drift.BALANCE, Drift.SHIFT, Drift.SPREAD)
_ADVICE = {
    True: " If the stream is meant to be sorted, or mostly of one class, start the guard with --expect unbalanced.",
    False: " If the stream is meant to be sorted, or mostly of one class, this detector cannot follow it, and the "
    "detector file answers. Fit the default one (normscale fit without -d), and start it with --expect unbalanced.",
}
"""What to do about another class balance, by whether the detector survives an unbalanced stream."""


class Reading(NamedTuple):
    """One number against its limit."""

    name: Drift
    value: float
    limit: float
    worst: int = -1
    detail: str = ""
    freezes_above: float = 0.0
    """Beyond its limit and this it freezes the guard."""
    advice: str = ""

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

    def explained(self, class_names: tuple[str, ...] | None) -> str:
        """The reading in plain words, and what is normal."""
        known = f"class {self.worst}" if class_names is None else repr(class_names[self.worst])
        name = "any class" if self.worst < 0 else known
        more = {"factor": 1.0 + self.value, "detail": self.detail}
        said = SENTENCES[self.name].format(name=name, value=self.value, share=100 * self.value, **more)
        return f"{said} ({self.value:.2g}; normal: {NORMAL[self.name]}.){self.advice}"


class Seen(NamedTuple):
    """What a block of rows adds to the recent ones."""

    answered: int
    flagged: int
    stream_only: int | None
    """How many the running statistics alone flagged; None: they did not answer."""
    predicted: IntArray
    """(C,) how many rows that were taken in, or would be if the guard were not frozen, are of each predicted class."""
    moments: BlockState | None
    """Of the logits of those rows; None: there is none."""


class RecentRows(NamedTuple):
    """What the recent rows look like; older ones fade. Never changed: each block makes a new one."""

    moments: BlockState
    """Of the logits of rows that were taken in; they weigh as much as the window at most."""
    predicted: FloatArray
    """(C,) how many of them are of each predicted class."""
    stream_only: float = 0.0
    """How many rows the running statistics alone flagged, over a shorter window."""
    answered: float = 0.0
    flagged: float = 0.0
    reference: float = -1.0
    """Share of one class's training rows that the running statistics alone would flag; -1: not known yet ..."""
    reference_class: int = -1
    """... and which class that is; -1: of all classes together."""

    @classmethod
    def empty(cls, n_classes: int) -> RecentRows:
        """Start without any row."""
        return cls(BlockState(0.0, *np.zeros((2, n_classes))), np.zeros(n_classes))

    def after(self, seen: Seen, window: float) -> RecentRows:
        """Count a block of rows, each as heavy as the next."""
        rows, soon, (weight, mean, m2) = seen.answered, self.stream_only, self.moments
        keep, new = _fading(rows, window)
        answered, flagged = self.answered * keep + new, self.flagged * keep + seen.flagged * (new / rows)
        if seen.stream_only is not None:
            keep, new = _fading(rows, _SOON)
            soon = self.stream_only * keep + seen.stream_only * (new / rows)
        after = self._replace(answered=answered, flagged=flagged, stream_only=soon)
        if seen.moments is None:
            return after
        keep, new = _fading(seen.moments.weight, window)
        share = new / seen.moments.weight
        added = BlockState(new, seen.moments.mean, seen.moments.m2 * share)
        moments = combine(BlockState(weight * keep, mean, m2 * keep), added)
        return after._replace(moments=moments, predicted=self.predicted * keep + seen.predicted * share)


def _fading(rows: float, window: float) -> tuple[float, float]:
    """What is left of older rows after some more, and what these weigh when each fades from its arrival on."""
    keep = math.exp(-rows / window)
    return keep, window * (1.0 - keep)


def _range(moments: RunningMoments, far: float) -> tuple[FloatArray, FloatArray, float, float]:
    """Mean and one per deviation of an array's columns, and two numbers between which none is far in any column."""
    std, mean = moments.std, moments.mean
    reach = np.full(mean.size, math.inf)
    reach[std > 0.0] = far * std[std > 0.0]
    return mean, scale_factor(moments), float((mean - reach).max()), float((mean + reach).min())


class DriftMonitor:
    """Compares recent rows and running statistics with training, and finds rows far from it."""

    def __init__(self, baseline: TrainingBaseline | None, policy: Policy, *, survives_unbalanced: bool = False) -> None:
        """Without a baseline only shares of flagged rows are watched; what survives unbalance is not frozen by it."""
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
        self._advice = dict.fromkeys((Drift.BALANCE, Drift.RUNNING_SHIFT), _ADVICE[survives_unbalanced])
        if policy.expect == Expect.UNBALANCED:
            self.limits |= dict.fromkeys(_FOLLOW_THE_CLASSES, math.inf)
        if survives_unbalanced:
            self._freezes_above |= dict.fromkeys(_FOLLOW_THE_CLASSES, math.inf)
        self._enough = _fading(policy.evidence, policy.window)[1] * (1.0 - 1e-9)
        if baseline is not None:
            self.share = baseline.share
            self._noise = np.sqrt(self.share * (1.0 - self.share) * (2.0 / math.pi))
            self.mean, self.per_deviation = baseline.moments.mean, scale_factor(baseline.moments)
            arrays = {LOGITS: baseline.moments, **baseline.others}
            self._ranges = {name: _range(moments, self.far) for name, moments in arrays.items()}

    def readings(self, recent: RecentRows, running: BlockState | None = None) -> tuple[Reading, ...]:
        """Read the recent rows and the running moments. What rests on too few rows is left out."""
        readings = []
        if self.baseline is not None and recent.moments.weight >= self._enough:
            readings = [self._balance(recent), *self._moved(recent.moments, Drift.SHIFT, Drift.SPREAD)]
        if recent.answered >= self._enough:
            readings.append(self._reading(Drift.FLAGGED, recent.flagged / recent.answered))
        if recent.answered > 0.0:
            readings.append(self._reading(Drift.STREAM_ONLY, max(0.0, recent.stream_only - _FEW) / _SOON))
        if recent.reference >= 0.0:
            readings.append(self._reading(Drift.REFERENCE, recent.reference, recent.reference_class))
        if self.baseline is not None and running is not None:
            readings += self._moved(running, Drift.RUNNING_SHIFT, Drift.RUNNING_SPREAD)
        return tuple(readings)

    def _balance(self, recent: RecentRows) -> Reading:
        shares = recent.predicted / recent.moments.weight
        excess = shares - self.share
        chance = np.minimum(self._noise / math.sqrt(recent.moments.weight), 2.0 * self.share)
        balance, worst = max(0.0, 0.5 * float(np.abs(excess).sum() - chance.sum())), int(excess.argmax())
        detail = f"{100 * shares[worst]:.0f} % (in training {100 * self.share[worst]:.0f} %)"
        return self._reading(Drift.BALANCE, balance, worst, detail)

    def _moved(self, moments: BlockState, shift: Drift, spread: Drift) -> list[Reading]:
        distance = (moments.mean - self.mean) * self.per_deviation
        wider = np.where(self.per_deviation > 0.0, np.sqrt(moments.m2 / moments.weight) * self.per_deviation, 1.0)
        factor = np.maximum(wider, 1.0 / np.maximum(wider, 1.0 / _WIDEST))
        farthest, strangest = int(np.abs(distance).argmax()), int(factor.argmax())
        side = "above" if distance[farthest] > 0.0 else "below"
        how = "wider" if wider[strangest] > 1.0 else "more closely"
        return [
            self._reading(shift, abs(float(distance[farthest])), farthest, side),
            self._reading(spread, min(float(factor[strangest]), _WIDEST) - 1.0, strangest, how),
        ]

    def _reading(self, name: Drift, value: float, worst: int = -1, detail: str = "") -> Reading:
        above, advice = self._freezes_above.get(name, 0.0), self._advice.get(name, "")
        return Reading(name, value, self.limits[name], worst, detail, above, advice)

    def distances(self, outputs: ModelOutputs) -> FloatArray | None:
        """(n,) how far each row's farthest number lies from its training mean, in deviations; None: none is far."""
        if self.baseline is None:
            return None
        found = []
        for name, (mean, per_deviation, low, high) in self._ranges.items():
            rows = outputs.array(name)
            if rows.min() < low or rows.max() > high:
                found.append((np.abs(rows - mean) * per_deviation).max(axis=1))
        return np.maximum.reduce(found) if found else None
