"""Robust norm-scaling again, from docs/robust.md: plain Python over whole histories, nothing shared with the library.

Where the library keeps decaying sums, this keeps every row with its weight and adds them up anew for each row.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def log_odds(values: FloatArray) -> float:
    """log p / (1 - p) of the largest softmax probability."""
    order = np.sort(values)
    return float(order[-1] - order[-2] - math.log(sum(math.exp(v - order[-2]) for v in order[:-1])))


def step(distance: float) -> float:
    """A soft step of width 0.3."""
    return 1.0 / (1.0 + math.exp(min(-distance / 0.3, 700.0)))


class NormScaled:
    """Log-odds after frozen norm-scaling of the centred logits of the classes that are shown."""

    def __init__(self, rows: FloatArray) -> None:
        rows = rows - rows.mean(axis=1, keepdims=True)
        counts = np.bincount(rows.argmax(axis=1), minlength=rows.shape[1])
        self.shown = [c for c, count in enumerate(counts) if count >= max(1.0, 0.2 * len(rows) / rows.shape[1])]
        self.mu, self.sigma = rows[:, self.shown].mean(axis=0), rows[:, self.shown].std(axis=0)

    def __call__(self, row: FloatArray) -> float:
        return log_odds((row[self.shown] - row.mean() - self.mu) / self.sigma)


def spread(values: FloatArray, groups: list[NDArray[np.int64]]) -> float:
    """Root mean square deviation from the mean of the group."""
    within = np.concatenate([values[rows] - values[rows].mean() for rows in groups])
    return math.sqrt(float((within**2).mean()))


class Training:
    """The in-distribution group of every predicted class; confidences by detectors that have not seen the row."""

    def __init__(self, logits: FloatArray, second: NDArray[np.bool_]) -> None:
        rows = logits - logits.mean(axis=1, keepdims=True)
        n_classes = logits.shape[1]
        predicted = logits.argmax(axis=1)
        own = {c: np.flatnonzero(predicted == c) for c in range(n_classes)}
        groups = [rows_of for rows_of in own.values() if rows_of.size]
        odds = np.empty(len(rows))
        for half in (second, ~second):
            unseen = NormScaled(logits[~half])
            odds[half] = [unseen(row) for row in logits[half]]
        energy = np.log(np.exp(rows).sum(axis=1))
        self.norm_scaled = NormScaled(logits)
        self.scales = [(float(part.mean()), spread(part, groups)) for part in (odds, energy)]
        both = (odds - self.scales[0][0]) / self.scales[0][1] + (energy - self.scales[1][0]) / self.scales[1][1]
        self.centre, self.spread = float(both.mean()), spread(both, groups)
        raw = (both - self.centre) / self.spread
        scores = {c: raw[rows_of] if rows_of.size else raw for c, rows_of in own.items()}
        self.median = {c: float(np.median(s)) for c, s in scores.items()}
        self.upper = {c: float(np.quantile(s, 0.75)) for c, s in scores.items()}
        self.above_median = {c: float(np.mean([step(v - self.median[c]) for v in s])) for c, s in scores.items()}
        self.above_upper = {c: float(np.mean([step(v - self.upper[c]) for v in s])) for c, s in scores.items()}
        self.share = {c: rows_of.size / len(logits) for c, rows_of in own.items()}
        average = sum(rows[rows_of].var(axis=0) * rows_of.size for rows_of in groups) / len(logits)
        self.mean = {c: rows[i].mean(axis=0) if i.size else rows.mean(axis=0) for c, i in own.items()}
        self.variance = {
            c: ((rows[i].var(axis=0) * i.size if i.size else 0.0) + 5.0 * average) / (i.size + 5.0)
            for c, i in own.items()
        }
        distances = np.array([self.distance(row, int(c)) for row, c in zip(logits, predicted, strict=True)])
        far = 1.0 / spread(distances, groups)
        both = spread(raw - far * distances, groups)
        self.weights = (1.0 / both, far / both)
        alike = raw * self.weights[0] - distances * self.weights[1]
        likes = {c: alike[rows_of] if rows_of.size else alike for c, rows_of in own.items()}
        self.like_median = {c: float(np.median(s)) for c, s in likes.items()}
        self.above_like = {c: float(np.mean([step(v - self.like_median[c]) for v in s])) for c, s in likes.items()}

    def place(self, row: FloatArray, c: int) -> FloatArray:
        """Centred logits in deviations from the mean of the class, cut off."""
        place: FloatArray = np.clip((row - row.mean() - self.mean[c]) / np.sqrt(self.variance[c]), -2.5, 2.5)
        return place

    def distance(self, row: FloatArray, c: int) -> float:
        """From the class, as a mean square."""
        return float((self.place(row, c) ** 2).mean())

    def similarity(self, row: FloatArray, c: int) -> float:
        """How sure and how near, from the median of the class."""
        sure, far = self.weights
        return sure * self.confidence(row) - far * self.distance(row, c) - self.like_median[c]

    def confidence(self, row: FloatArray) -> float:
        """The log-odds and minus the centred Energy, each in deviations from the mean row."""
        parts = (self.norm_scaled(row), math.log(np.exp(row - row.mean()).sum()))
        odds, energy = ((part - centre) / width for part, (centre, width) in zip(parts, self.scales, strict=True))
        return (odds + energy - self.centre) / self.spread


def streamed(
    training: Training, rows: FloatArray, memory: float = 50.0, prior: float = 5.0, tolerance: float = 0.8
) -> tuple[list[float], float]:
    """Scores of a stream, and its covariate shift at the end."""
    scores: list[float] = []
    counts: list[float] = []
    above: list[float] = []
    tops: list[float] = []
    classes: list[int] = []
    taught: list[tuple[float, FloatArray]] = []
    for row in rows:
        c = int(row.argmax())
        confidence = training.confidence(row)
        u = confidence - training.median[c]
        classes.append(c)
        t = training.similarity(row, c)
        counts.append(step(t) / training.above_like[c])
        above.append(step(u) / training.above_median[c])
        tops.append(step(u + training.median[c] - training.upper[c]) / training.above_upper[c])
        share = min(1.0, _share(training, classes, counts, c, memory, prior) / tolerance)
        x = training.place(row, c)
        evidence = _position(x, [t for t, k in zip(taught, classes, strict=False) if k == c], memory, prior)
        trust = min(1.0, max(0.0, (0.5 - _shift(above, tops, memory)) / 0.15))
        scores.append(trust * (evidence - math.log(share)) - confidence)
        odds = share / (1.0 - share + 0.001) * math.exp(t - evidence)
        taught.append((1.0 / (1.0 + odds), x))
    return scores, _shift(above, tops, memory)


def _shift(counts: list[float], tops: list[float], memory: float) -> float:
    keep = 1.0 - 1.0 / (20.0 * memory)
    fade = keep ** np.arange(len(counts))[::-1]
    above = float(fade @ np.array(counts)) + 20.0
    intact = min(1.0, (float(fade @ np.array(tops)) + 20.0) / above)
    return 1.0 - intact * min(1.0, above / (0.1 * float(fade.sum()) + 20.0))


def _share(training: Training, classes: list[int], counts: list[float], c: int, memory: float, prior: float) -> float:
    of_class = np.array([k == c for k in classes])
    values = np.array(counts)
    recent = (1.0 - 1.0 / (5.0 * memory)) ** np.arange(len(classes))[::-1]
    overall = (float(recent @ values) + prior) / (float(recent.sum()) + prior)
    missing = max(0.0, training.share[c] * float(recent.sum()) - float(recent[of_class].sum()))
    own = values[of_class]
    fade = (1.0 - 1.0 / memory) ** np.arange(own.size)[::-1]
    return (float(fade @ own) + (prior + missing) * overall) / (float(fade.sum()) + prior + missing)


def _position(x: FloatArray, taught: list[tuple[float, FloatArray]], memory: float, prior: float) -> float:
    if not taught:
        return 0.0
    ages = np.arange(len(taught), 0, -1)
    weights = (1.0 - 1.0 / memory) ** ages * np.array([r for r, _ in taught])
    places = np.array([place for _, place in taught])
    total = float(weights.sum())
    mean = weights @ places / total
    variance = weights @ (places - mean) ** 2 / total
    trust = total / (total + prior)
    blended = (1.0 - trust) + trust * variance
    gaussians = 0.5 * (x**2 - (x - trust * mean) ** 2 / blended - np.log(blended))
    return max(0.0, trust * 2.0 * float(gaussians.mean()))
