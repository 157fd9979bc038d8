"""Confidence intervals of the ranking metrics: DeLong for the AUROC, the bootstrap for all five."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import (
    FloatArray,
    IntArray,
    as_both_sides,
    at_least,
    exact_share,
    fraction,
    require_rows,
)
from normscale.errors import NumericalWarning
from normscale.metrics._tie_groups import tie_groups
from normscale.metrics.metric import METRICS, Groups, SideSizes, number_of, values_of_rows
from normscale.metrics.record import Record

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
class Intervals(Record):
    """One interval per metric, all at the confidence ``level``; None where the method gives none."""

    method: str
    level: float
    auroc: Interval
    aupr_out: Interval | None = None
    aupr_in: Interval | None = None
    fpr95_out: Interval | None = None
    fpr95_in: Interval | None = None
    resamples: int | None = None
    seed: int | None = None
    further: dict[str, Interval] = field(default_factory=dict)
    """Of metrics that others registered as sums over groups; each is an attribute, too."""

    def __getattr__(self, name: str) -> Interval:
        found: Interval = number_of(self.__dict__.get("further", {}), name, type(self).__name__)
        return found

    def __str__(self) -> str:
        """One line per metric."""
        found = [(name, getattr(self, name, None)) for name in METRICS]
        lines = [f"{name:<10} {interval}" for name, interval in found if interval is not None]
        return "\n".join([f"{100 * self.level:g} % intervals ({self.method})", *lines])


def delong_interval(id_scores: ArrayLike, ood_scores: ArrayLike, level: float = 0.95) -> Interval:
    """Confidence interval of the AUROC from DeLong's variance, on the logit scale.

    With ``v_i`` the share of in-distribution scores below the OoD score i (ties half), and ``w_j`` the share of OoD
    scores above the in-distribution score j, the variance of the AUROC A is ``var(v) / n_ood + var(w) / n_id``, and the
    interval is ``logit(A) +- z * se / (A * (1 - A))`` mapped back. Where the two sides are perfectly apart the variance
    is 0 and says nothing: then it is the exact one-sided bound for k = min(n_id, n_ood) pairs all won (Clopper and
    Pearson). A variance of 0 for another reason, such as constant scores, gives a point and a warning.

    Parameters
    ----------
    id_scores, ood_scores : arrays of shape (n_id,) and (n_ood,), each at least 2
        Scores, higher = more OoD.
    level : float in (0, 1)
        Confidence level.

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

    id_vector, ood_vector = as_both_sides(id_scores, ood_scores)
    require_rows(id_vector, "id_scores", 2)
    require_rows(ood_vector, "ood_scores", 2)
    level = fraction(level, "level")
    n_id, n_ood = id_vector.size, ood_vector.size
    groups = tie_groups(id_vector, ood_vector)
    id_here, ood_here = np.diff(groups.id_edges), np.diff(groups.ood_edges)
    below = (groups.id_edges[:-1] + 0.5 * id_here) / n_id
    above = (n_ood - groups.ood_edges[:-1] - 0.5 * ood_here) / n_ood
    auroc = float(np.sum(ood_here * below)) / n_ood
    all_pairs_alike = ((1 - level) / 2) ** (1 / min(n_id, n_ood))
    if ood_vector.min() > id_vector.max():
        return Interval(low=all_pairs_alike, high=1.0)
    if ood_vector.max() < id_vector.min():
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
        Scores, higher = more OoD.
    level : float in (0, 1)
        Confidence level.
    resamples : int
        Number of resamples; a thousand settles the ends to about a tenth of the width.
    seed : int
        Of the random numbers.
    tpr : float in (0, 1]
        True positive rate of ``fpr95_*``.

    Examples
    --------
    >>> scores = [0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7]
    >>> found = bootstrap_intervals(*scores, resamples=200)
    >>> 17 / 24 in found.auroc, found == bootstrap_intervals(*scores, resamples=200)
    (True, True)
    """
    id_vector, ood_vector = as_both_sides(id_scores, ood_scores)
    level = fraction(level, "level")
    resamples = at_least(resamples, "resamples", 1)
    seed = at_least(seed, "seed", 0)
    share = exact_share(tpr, "tpr", allow_one=True)
    groups = tie_groups(id_vector, ood_vector)
    caught = (math.ceil(share * ood_vector.size), math.ceil(share * id_vector.size))
    rng = np.random.default_rng(seed)
    batch = max(1, _BATCH // (id_vector.size + ood_vector.size))
    values: dict[str, list[FloatArray]] = {}
    sizes = SideSizes(id_vector.size, ood_vector.size, *caught)
    for start in range(0, resamples, batch):
        rows = min(batch, resamples - start)
        id_edges = _resampled_edges(groups.id_edges, rows, rng)
        ood_edges = _resampled_edges(groups.ood_edges, rows, rng)
        for name, drawn in values_of_rows(Groups(id_edges, ood_edges, sizes)).items():
            values.setdefault(name, []).append(drawn)
    ends = {}
    for name, drawn_values in values.items():
        low, high = np.quantile(np.concatenate(drawn_values), [(1 - level) / 2, (1 + level) / 2]).tolist()
        ends[name] = Interval(low=low, high=high)
    own = {one.name for one in fields(Intervals)}
    further = {name: ends.pop(name) for name in [*ends] if name not in own}
    return Intervals(method="bootstrap", level=level, resamples=resamples, seed=seed, further=further, **ends)


def _resampled_edges(edges: IntArray, rows: int, rng: np.random.Generator) -> FloatArray:
    """Cumulative counts (rows, g + 1) of resamples of the side with cumulative counts (g + 1,)."""
    n, n_groups = int(edges[-1]), edges.size - 1
    group_of = np.repeat(np.arange(n_groups), np.diff(edges))
    cells = group_of[rng.integers(0, n, size=(rows, n))] + n_groups * np.arange(rows)[:, None]
    counts = np.bincount(cells.ravel(), minlength=rows * n_groups).reshape(rows, n_groups)
    resampled = np.zeros((rows, n_groups + 1))
    np.cumsum(counts, axis=1, out=resampled[:, 1:])
    return resampled


def _weighted_variance(values: FloatArray, counts: IntArray) -> float:
    """Sample variance of ``values`` repeated ``counts`` times."""
    n = int(counts.sum())
    mean = float(np.sum(counts * values)) / n
    return float(np.sum(counts * (values - mean) ** 2)) / (n - 1)


def _expit(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
