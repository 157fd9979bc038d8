"""Confidence intervals of the ranking metrics: DeLong for the AUROC, the bootstrap for all."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import FloatArray, as_both_sides, at_least, exact_share, fraction, require_rows
from normscale.errors import NumericalWarning
from normscale.metrics.metric import Counts, count_scores, values_of_counts
from normscale.metrics.record import MetricRecord, Record

_BATCH = 1 << 18
"""Drawn scores per batch of resamples."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Interval(Record):
    """An interval from ``low`` to ``high``, ends included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        """Whether the interval covers ``value``."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        """Print as [low, high]."""
        return f"[{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Intervals(MetricRecord[Interval]):
    """One interval per metric that the method can give one for, all at the confidence ``level``."""

    method: str
    level: float
    resamples: int | None = None
    seed: int | None = None

    def __str__(self) -> str:
        """One line per metric."""
        lines = [f"{name:<10} {interval}" for name, interval in self.metrics.items()]
        return "\n".join([f"{100 * self.level:g} % intervals ({self.method})", *lines])


def quantile_interval(values: FloatArray, level: float) -> Interval:
    """From the (1 - level) / 2 to the (1 + level) / 2 quantile of values."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(low=low, high=high)


def delong_interval(id_scores: ArrayLike, ood_scores: ArrayLike, level: float = 0.95) -> Interval:
    """Confidence interval of the AUROC from DeLong's variance, on the logit scale.

    With ``v_i`` the share of in-distribution scores below the OoD score i (ties half), and ``w_j`` the share of OoD
    scores above the in-distribution score j, the variance of the AUROC A is ``var(v) / n_ood + var(w) / n_id``, and the
    interval is ``logit(A) +- z * se / (A * (1 - A))`` mapped back. Where the two sides are perfectly apart the variance
    is 0 and says nothing: then it is the exact one-sided bound for k = min(n_id, n_ood) pairs all won (Clopper and
    Pearson). A variance of 0 for another reason, such as constant scores, gives a point and a warning.

    References
    ----------
    DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988) 837-845.

    Examples
    --------
    >>> print(delong_interval([0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7]))
    [0.1783, 0.9645]
    >>> print(delong_interval([1, 2, 3], [4, 5]))  # perfectly apart, but only two pairs to show for it
    [0.1581, 1.0000]
    """
    from statistics import NormalDist  # loads fractions and decimal: too slow for the import of the package

    inside, outside = as_both_sides(id_scores, ood_scores)
    require_rows(inside, "id_scores", 2)
    require_rows(outside, "ood_scores", 2)
    level = fraction(level, "level")
    n_id, n_ood = inside.size, outside.size
    _, id_edges, ood_edges = count_scores(inside, outside)
    id_here, ood_here = np.diff(id_edges), np.diff(ood_edges)
    below = (id_edges[:-1] + 0.5 * id_here) / n_id
    above = (n_ood - ood_edges[:-1] - 0.5 * ood_here) / n_ood
    auroc = float(np.sum(ood_here * below)) / n_ood
    all_pairs_alike = ((1 - level) / 2) ** (1 / min(n_id, n_ood))
    if outside.min() > inside.max():
        return Interval(low=all_pairs_alike, high=1.0)
    if outside.max() < inside.min():
        return Interval(low=0.0, high=1 - all_pairs_alike)
    variance = _weighted_variance(below, ood_here) / n_ood + _weighted_variance(above, id_here) / n_id
    if variance == 0:
        warnings.warn(
            "DeLong's variance of the AUROC is 0 (are the scores constant?); its interval is a single point.",
            NumericalWarning,
            stacklevel=2,
        )
        return Interval(low=auroc, high=auroc)
    half = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(variance) / (auroc * (1 - auroc))
    centre = math.log(auroc / (1 - auroc))
    return Interval(low=_expit(centre - half), high=_expit(centre + half))


def bootstrap_intervals(
    id_scores: ArrayLike,
    ood_scores: ArrayLike,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    *,
    tpr: float = 0.95,
) -> Intervals:
    """Percentile bootstrap intervals of the metrics of :func:`evaluate`.

    Each resample draws n_id in-distribution and n_ood OoD scores with replacement; the interval runs between the
    (1 - level) / 2 and (1 + level) / 2 quantiles over the resamples. Where the sides are perfectly apart every resample
    is too, and the intervals are points; for the AUROC prefer :func:`delong_interval` then.

    Parameters
    ----------
    id_scores, ood_scores : arrays of shape (n_id,) and (n_ood,)
    level : float in (0, 1)
    resamples : int
        Number of resamples; a thousand settles the ends to about a tenth of the width.
    seed : int
    tpr : float in (0, 1]
        True positive rate of ``fpr95_*``.

    Examples
    --------
    >>> scores = [0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7]
    >>> found = bootstrap_intervals(*scores, resamples=200)
    >>> 17 / 24 in found.auroc, found == bootstrap_intervals(*scores, resamples=200)
    (True, True)
    """
    inside, outside = as_both_sides(id_scores, ood_scores)
    level = fraction(level, "level")
    resamples, seed = at_least(resamples, "resamples", 1), at_least(seed, "seed", 0)
    share = exact_share(tpr, "tpr", allow_one=True)
    _, *edges = count_scores(inside, outside)
    rng = np.random.default_rng(seed)
    batch = max(1, _BATCH // (inside.size + outside.size))
    values: dict[str, list[FloatArray]] = {}
    for start in range(0, resamples, batch):
        id_drawn, ood_drawn = (_resampled_edges(side, min(batch, resamples - start), rng) for side in edges)
        for name, drawn in values_of_counts(Counts(id_drawn, ood_drawn, share)).items():
            values.setdefault(name, []).append(drawn)
    found = {name: quantile_interval(np.concatenate(drawn), level) for name, drawn in values.items()}
    return Intervals(metrics=found, method="bootstrap", level=level, resamples=resamples, seed=seed)


def _resampled_edges(edges: FloatArray, rows: int, rng: np.random.Generator) -> FloatArray:
    """Cumulative counts (rows, g + 1) of resamples of the side with cumulative counts (g + 1,)."""
    n, n_groups = int(edges[-1]), edges.size - 1
    group_of = np.repeat(np.arange(n_groups), np.diff(edges).astype(np.int64))
    cells = group_of[rng.integers(0, n, size=(rows, n))] + n_groups * np.arange(rows)[:, None]
    counts = np.bincount(cells.ravel(), minlength=rows * n_groups).reshape(rows, n_groups)
    return np.cumsum(np.pad(counts, ((0, 0), (1, 0))), axis=1, dtype=np.float64)


def _weighted_variance(values: FloatArray, counts: FloatArray) -> float:
    """Sample variance of ``values`` repeated ``counts`` times."""
    n = float(counts.sum())
    mean = float(np.sum(counts * values)) / n
    return float(np.sum(counts * (values - mean) ** 2)) / (n - 1)


def _expit(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
