"""The two-groups stream for numba; :mod:`normscale._kernels.mixture_reference` says what it computes.

One row after the other, four classes at once. The sum of the logarithms of the variances is the logarithm of their
product, and the responsibility comes from odds, so that a row costs three exponentials and two logarithms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from normscale._kernels.mixture import (
    LEAST_OOD,
    LONG_ID,
    LONG_TOP,
    RECENT,
    RECENT_ID,
    ROWS,
    SOFTNESS,
    ClassProfiles,
    Mixture,
    MixtureSettings,
)
from normscale._kernels.vector_math import EXACT, REDUCE, compiled, exp_nonpositive

Array = Any

_SMALL, _LARGE = 1e-200, 1e200  # where a product of variances gives way to its logarithm


@compiled(EXACT)
def _predicted(rows: Array, i: int) -> int:
    """The first of the largest logits of row i; without a jump, because nobody can guess it."""
    c = 0
    top = rows[i, 0]
    for j in range(1, rows.shape[1]):
        larger = rows[i, j] > top
        top = rows[i, j] if larger else top
        c = j if larger else c
    return c


@compiled(EXACT)
def _id_share(c: int, recent: float, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture) -> float:
    """pi_c as the stream has it now; ``recent`` rows of c."""
    prior = settings.prior
    totals = state.totals
    overall = (totals[RECENT_ID] + prior) / (totals[RECENT] + prior)
    weight = prior + max(0.0, profiles.share[c] * totals[RECENT] - recent)
    share: float = (state.id_count[c] + weight * overall) / ((state.seen[c] + weight) * settings.tolerance)
    return share if share < 1.0 else 1.0


@compiled(REDUCE)
def _standardise(row: Array, mean: Array, inverse_deviation: Array, x: Array) -> None:
    """The row in training deviations from the mean of its class; four at once."""
    for j in range(x.shape[0]):
        x[j] = (np.float64(row[j]) - mean[j]) * inverse_deviation[j]


@compiled(REDUCE)
def _fit_of(x: Array, trust: float, mean: Array, variance: Array) -> tuple[float, float]:
    """Sum of the quadratic terms of L, and the product of the blended variances; four at once."""
    rest = 1.0 - trust
    ratio = 0.0
    product = 1.0
    for j in range(x.shape[0]):
        blended = rest + trust * variance[j]
        misfit = x[j] - trust * mean[j]
        ratio += x[j] * x[j] - misfit * misfit / blended
        product *= blended
    return ratio, product


@compiled(EXACT)
def _position(x: Array, weight: float, prior: float, mean: Array, variance: Array) -> float:
    """L: how much better the OoD group explains x than the ID group."""
    if weight == 0.0:
        return 0.0
    trust = weight / (weight + prior)
    ratio, product = _fit_of(x, trust, mean, variance)
    if _SMALL < product < _LARGE:
        ratio -= np.log(product)
    else:
        for j in range(x.shape[0]):
            ratio -= np.log(1.0 - trust + trust * variance[j])
    ratio *= trust / x.shape[0]
    return ratio if ratio > 0.0 else 0.0


@compiled(REDUCE)
def _join(x: Array, step: float, mean: Array, variance: Array) -> None:
    """Take x into moments with the weight ``step`` of the whole; four at once."""
    rest = 1.0 - step
    for j in range(x.shape[0]):
        move = x[j] - mean[j]
        mean[j] += step * move
        variance[j] = rest * (variance[j] + step * move * move)


@compiled(EXACT)
def _confidence(rows: Array, log_odds: Array, i: int, c: int, profiles: ClassProfiles) -> float:
    """B of row i, predicted c."""
    size, odds = profiles.weights[1] * np.float64(rows[i, c]), profiles.weights[0] * log_odds[i]
    confidence: float = size - odds - profiles.centre[0]
    return confidence


@compiled(EXACT)
def stream(
    rows: Array, log_odds: Array, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture, out: Array
) -> None:
    """Take rows (b, C) in one by one and score each into ``out`` (b,); ``state`` moves on."""
    totals = state.totals
    log_decay = np.log(settings.recent_decay)
    x = np.empty(rows.shape[1])
    for i in range(rows.shape[0]):
        c = _predicted(rows, i)
        confidence = (
            profiles.weights[1] * np.float64(rows[i, c]) - profiles.weights[0] * log_odds[i] - profiles.centre[0]
        )
        u = confidence - profiles.median[c]
        grown = exp_nonpositive(-abs(u) / SOFTNESS)
        above = grown if u < 0.0 else 1.0
        below = 1.0 if u < 0.0 else grown
        count = above / (above + below) * profiles.count_scale[c]
        top = above / (above + below * profiles.top_odds[c]) * profiles.top_scale[c]
        totals[ROWS] += 1.0
        totals[RECENT] = totals[RECENT] * settings.recent_decay + 1.0
        totals[RECENT_ID] = totals[RECENT_ID] * settings.recent_decay + count
        totals[LONG_ID] = totals[LONG_ID] * settings.long_decay + count
        totals[LONG_TOP] = totals[LONG_TOP] * settings.long_decay + top
        recent = state.recent[c] * exp_nonpositive((totals[ROWS] - state.last[c]) * log_decay) + 1.0
        state.recent[c] = recent
        state.last[c] = totals[ROWS]
        state.seen[c] = state.seen[c] * settings.class_decay + 1.0
        state.id_count[c] = state.id_count[c] * settings.class_decay + count
        weight = state.ood_weight[c] * settings.class_decay

        share = _id_share(c, recent, profiles, settings, state)
        mean, variance = state.ood_mean[c], state.ood_variance[c]
        _standardise(rows[i], profiles.mean[c], profiles.inverse_deviation[c], x)
        evidence = _position(x, weight, settings.prior, mean, variance)
        out[i] = evidence - confidence
        if share < 1.0:
            out[i] -= np.log(share)

        odds = share / (1.0 - share + LEAST_OOD) * np.exp(min(max(u - evidence, -600.0), 600.0))
        responsibility = 1.0 / (1.0 + odds)
        weight += responsibility
        state.ood_weight[c] = weight
        _join(x, responsibility / weight, mean, variance)


@compiled(EXACT)
def score(
    rows: Array, log_odds: Array, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture, out: Array
) -> None:
    """Score rows (b, C) with the state as it is into ``out`` (b,)."""
    n_classes = rows.shape[1]
    x = np.empty(n_classes)
    shares = np.empty(n_classes)
    for c in range(n_classes):
        age = state.totals[ROWS] - state.last[c]
        recent = state.recent[c] * exp_nonpositive(age * np.log(settings.recent_decay))
        shares[c] = np.log(_id_share(c, recent, profiles, settings, state))
    for i in range(rows.shape[0]):
        c = _predicted(rows, i)
        _standardise(rows[i], profiles.mean[c], profiles.inverse_deviation[c], x)
        evidence = _position(x, state.ood_weight[c], settings.prior, state.ood_mean[c], state.ood_variance[c])
        confidence = (
            profiles.weights[1] * np.float64(rows[i, c]) - profiles.weights[0] * log_odds[i] - profiles.centre[0]
        )
        out[i] = evidence - confidence - shares[c]
