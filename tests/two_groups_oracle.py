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


class Training:
    """The in-distribution group of every predicted class."""

    def __init__(self, logits: FloatArray) -> None:
        n_classes = logits.shape[1]
        self.mu, self.sigma = logits.mean(axis=0), logits.std(axis=0)
        odds = np.array([log_odds((row - self.mu) / self.sigma) for row in logits])
        predicted = logits.argmax(axis=1)
        own = {c: np.flatnonzero(predicted == c) for c in range(n_classes)}

        def spread(values: FloatArray) -> float:
            within = np.concatenate([values[rows] - values[rows].mean() for rows in own.values() if rows.size])
            return math.sqrt(float((within**2).mean()))

        self.spreads = spread(odds), spread(logits.max(axis=1))
        both = odds / self.spreads[0] + 2.0 * logits.max(axis=1) / self.spreads[1]
        self.spread = spread(both)
        self.centre = float(np.median(both / self.spread))
        raw = both / self.spread - self.centre
        scores = {c: raw[rows] if rows.size else raw for c, rows in own.items()}
        self.median = {c: float(np.median(s)) for c, s in scores.items()}
        self.upper = {c: float(np.quantile(s, 0.75)) for c, s in scores.items()}
        self.above_median = {c: float(np.mean([step(v - self.median[c]) for v in s])) for c, s in scores.items()}
        self.above_upper = {c: float(np.mean([step(v - self.upper[c]) for v in s])) for c, s in scores.items()}
        self.share = {c: rows.size / len(logits) for c, rows in own.items()}
        average = sum(logits[rows].var(axis=0) * rows.size for rows in own.values() if rows.size) / len(logits)
        self.mean = {c: logits[rows].mean(axis=0) if rows.size else self.mu for c, rows in own.items()}
        self.variance = {
            c: ((logits[rows].var(axis=0) * rows.size if rows.size else 0.0) + 5.0 * average) / (rows.size + 5.0)
            for c, rows in own.items()
        }

    def confidence(self, row: FloatArray) -> float:
        """A third the log-odds, two thirds the largest logit, in deviations from the median row."""
        both = log_odds((row - self.mu) / self.sigma) / self.spreads[0] + 2.0 * float(row.max()) / self.spreads[1]
        return both / self.spread - self.centre


def streamed(
    training: Training, rows: FloatArray, memory: float = 50.0, prior: float = 5.0, tolerance: float = 0.8
) -> tuple[list[float], float]:
    """Scores of a stream, and its covariate shift at the end."""
    scores: list[float] = []
    counts: list[float] = []
    tops: list[float] = []
    classes: list[int] = []
    taught: list[tuple[float, FloatArray]] = []
    for row in rows:
        c = int(row.argmax())
        confidence = training.confidence(row)
        u = confidence - training.median[c]
        classes.append(c)
        counts.append(step(u) / training.above_median[c])
        tops.append(step(u + training.median[c] - training.upper[c]) / training.above_upper[c])
        share = min(1.0, _share(training, classes, counts, c, memory, prior) / tolerance)
        x = (row - training.mean[c]) / np.sqrt(training.variance[c])
        evidence = _position(x, [t for t, k in zip(taught, classes, strict=False) if k == c], memory, prior)
        scores.append(evidence - confidence - math.log(share))
        odds = share / (1.0 - share + 0.001) * math.exp(u - evidence)
        taught.append((1.0 / (1.0 + odds), x))
    keep = 1.0 - 1.0 / (20.0 * memory)
    fade = keep ** np.arange(len(counts))[::-1]
    above = float(fade @ np.array(counts)) + 20.0
    intact = min(1.0, (float(fade @ np.array(tops)) + 20.0) / above)
    return scores, 1.0 - intact * min(1.0, above / (0.1 * float(fade.sum()) + 20.0))


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
