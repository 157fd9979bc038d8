"""The two-groups stream for numba; :mod:`normscale._kernels.mixture_reference` says what it computes.

What a row is without the rows before it (its class, its counts) is computed ahead, many rows at once, unless it needs
the row's place, which would have to be kept; what goes row by row costs two exponentials and two logarithms, because
the sum of the logarithms of the variances is the logarithm of their product and the responsibility comes from odds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from normscale._kernels import mixture as mix
from normscale._kernels.compiled import first_largest, row_mean
from normscale._kernels.mixture import ClassProfiles, Mixture, MixtureRows, MixtureSettings, RowGroups
from normscale._kernels.mixture_reference import (
    covariate_shift,
    id_share,
    shared_weight,
    teaching_rate,
    trust_in_stream,
)
from normscale._kernels.vector_math import EXACT, INLINE, REDUCE, compiled, exp_nonpositive

Array = Any

_SMALL, _LARGE = 1e-200, 1e200  # where a product of variances gives way to its logarithm


@compiled(EXACT)
def _counts(rows: MixtureRows, profiles: ClassProfiles, predicted: Array, count: Array, top: Array) -> None:
    """Class, and counts above the median and the quartile of the confidence, of every row."""
    for i in range(predicted.shape[0]):
        predicted[i] = first_largest(rows.logits, i)
    for i in range(predicted.shape[0]):
        c = predicted[i]
        u = rows.confidence[i] - profiles.median[c]
        grown = exp_nonpositive(-abs(u) / mix.SOFTNESS)
        above = grown if u < 0.0 else 1.0
        below = 1.0 if u < 0.0 else grown
        count[i] = above / (above + below) * profiles.count_scale[c]
        top[i] = above / (above + below * profiles.top_odds[c]) * profiles.top_scale[c]


_id_share = compiled({**EXACT, **INLINE})(id_share)
_teaching_rate = compiled({**EXACT, **INLINE})(teaching_rate)
_shared_weight = compiled({**EXACT, **INLINE})(shared_weight)
_mixture_of = compiled(EXACT)(mix.mixture_of)
_covariate_shift = compiled({**EXACT, **INLINE})(covariate_shift)
_trust_in_stream = compiled({**EXACT, **INLINE})(trust_in_stream)


@compiled({**REDUCE, **INLINE})
def _standardise(rows: Array, i: int, shift: float, c: int, mean: Array, inverse_deviation: Array, x: Array) -> float:
    """Row i less ``shift``, in training deviations from the mean of class c, into x; four at once.

    Returns the mean square of that.
    """
    squares = 0.0
    for j in range(rows.shape[1]):
        far = (np.float64(rows[i, j]) - shift - mean[c, j]) * inverse_deviation[c, j]
        far = far if far < mix.REACH else mix.REACH
        far = far if far > -mix.REACH else -mix.REACH
        x[j] = far
        squares += far * far
    mean_square: float = squares / rows.shape[1]
    return mean_square


@compiled({**REDUCE, **INLINE})
def _fit_of(x: Array, trust: float, c: int, mean: Array, variance: Array) -> tuple[float, float]:
    """Sum of the quadratic terms of L, and the product of the blended variances; four at once."""
    rest = 1.0 - trust
    ratio = 0.0
    product = 1.0
    for j in range(x.shape[0]):
        blended = rest + trust * variance[c, j]
        misfit = x[j] - trust * mean[c, j]
        ratio += x[j] * x[j] - misfit * misfit / blended
        product *= blended
    return ratio, product


@compiled({**EXACT, **INLINE})
def _position(x: Array, weight: float, prior: float, c: int, mean: Array, variance: Array) -> float:
    """L: how much better the OoD group explains x than the ID group."""
    if weight == 0.0 or x.shape[0] == 0:
        return 0.0
    trust = weight / (weight + prior)
    ratio, product = _fit_of(x, trust, c, mean, variance)
    if _SMALL < product < _LARGE:
        ratio -= np.log(product)
    else:
        for j in range(x.shape[0]):
            ratio -= np.log(1.0 - trust + trust * variance[c, j])
    ratio *= trust / x.shape[0]
    return ratio if ratio > 0.0 else 0.0


@compiled({**EXACT, **INLINE})
def _shared_position(
    places: Array, i: int, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture, y: Array
) -> float:
    """S of row i, whose coordinates, cut off, go into y."""
    for j in range(y.shape[0]):
        y[j] = min(mix.SHARED_REACH, max(-mix.SHARED_REACH, places[i, j]))
    weight = _shared_weight(profiles, state.totals)
    prior = mix.SHARED_PRIOR * settings.prior
    evidence = _position(y, weight, prior, 0, state.shared_mean, state.shared_variance)
    return min(mix.SHARED_MOST, 0.5 * mix.SHARED_COUNT * evidence)


@compiled({**REDUCE, **INLINE})
def _join(x: Array, step: float, c: int, mean: Array, variance: Array) -> None:
    """Take x into moments with the weight ``step`` of the whole; four at once."""
    rest = 1.0 - step
    for j in range(x.shape[0]):
        move = x[j] - mean[c, j]
        mean[c, j] += step * move
        variance[c, j] = rest * (variance[c, j] + step * move * move)


@compiled(EXACT)
def stream(rows: MixtureRows, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture, out: Array) -> None:
    """Take rows in one by one and score each into ``out`` (b,); ``state`` moves on."""
    totals = state.totals
    n = rows.logits.shape[0]
    grows = 1.0 / settings.recent_decay
    predicted, above, top = np.empty(n, np.int64), np.empty(n), np.empty(n)
    _counts(rows, profiles, predicted, above, top)
    logits, confidence = rows.logits, rows.confidence
    own_mean, inverse_deviation = profiles.mean, profiles.inverse_deviation
    sure, far = profiles.similarity_weights[0], profiles.similarity_weights[1]
    mean, variance = state.ood_mean, state.ood_variance
    x, y = np.empty(own_mean.shape[1]), np.empty(rows.places.shape[1])
    for i in range(n):
        c = predicted[i]
        shift = row_mean(logits, i)
        distance = _standardise(logits, i, shift, c, own_mean, inverse_deviation, x)
        alike = sure * confidence[i] - far * distance - profiles.similarity_median[c]
        grown = exp_nonpositive(-abs(alike) / mix.SOFTNESS)
        count = (grown if alike < 0.0 else 1.0) / (1.0 + grown) * profiles.similarity_scale[c]

        totals[mix.ROWS] += 1.0
        totals[mix.RECENT] = totals[mix.RECENT] * settings.recent_decay + 1.0
        totals[mix.RECENT_ID] = totals[mix.RECENT_ID] * settings.recent_decay + count
        totals[mix.LONG] = totals[mix.LONG] * settings.long_decay + 1.0
        totals[mix.LONG_ID] = totals[mix.LONG_ID] * settings.long_decay + above[i]
        totals[mix.LONG_TOP] = totals[mix.LONG_TOP] * settings.long_decay + top[i]
        totals[mix.GROWN] *= grows
        state.recent[c] += totals[mix.GROWN]
        if totals[mix.GROWN] > mix.OVERGROWN:
            state.recent[:] /= totals[mix.GROWN]
            totals[mix.GROWN] = 1.0
        state.seen[c] = state.seen[c] * settings.class_decay + 1.0
        state.id_count[c] = state.id_count[c] * settings.class_decay + count
        weight = state.ood_weight[c] * settings.class_decay

        share = _id_share(c, profiles, settings, state)
        evidence = _position(x, weight, settings.prior, c, mean, variance)
        learned = evidence + _shared_position(rows.places, i, profiles, settings, state, y)
        if share < 1.0:
            learned -= np.log(share)
        out[i] = (
            _trust_in_stream(_covariate_shift(totals)) * learned - confidence[i] + 0.0 * shift
        )  # NaN where the row is not finite

        lead = alike - evidence
        grown = exp_nonpositive(-abs(lead))
        own = share if lead > 0.0 else share * grown
        other = (grown if lead > 0.0 else 1.0) * (1.0 - share + mix.LEAST_OOD)
        responsibility = other / (own + other)
        weight += responsibility
        state.ood_weight[c] = weight
        _join(x, responsibility / weight, c, mean, variance)

        if y.shape[0]:
            rate = _teaching_rate(c, profiles, settings, state)
            lead = min((mix.SUSPECT - out[i]) / mix.SUSPECT_WIDTH, mix.UNSUSPECTED)
            grown = exp_nonpositive(-abs(lead))
            taught = rate * (grown if lead > 0.0 else 1.0) / (1.0 + grown)
            totals[mix.SHARED] = totals[mix.SHARED] * settings.recent_decay + rate
            totals[mix.SHARED_OOD] = totals[mix.SHARED_OOD] * settings.recent_decay + taught
            _join(y, taught / totals[mix.SHARED_OOD], 0, state.shared_mean, state.shared_variance)


@compiled(EXACT)
def stream_groups(
    rows: MixtureRows, profiles: ClassProfiles, settings: MixtureSettings, groups: RowGroups, out: Array
) -> None:
    """As :func:`stream`, each group of rows by its own state."""
    n_classes = profiles.share.size
    for i in range(groups.places.size):
        a, b = groups.edges[i], groups.edges[i + 1]
        some = MixtureRows(rows.logits[a:b], rows.confidence[a:b], rows.places[a:b])
        stream(some, profiles, settings, _mixture_of(groups.table[groups.places[i]], n_classes), out[a:b])


@compiled(EXACT)
def score(rows: MixtureRows, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture, out: Array) -> None:
    """Score rows with the state as it is into ``out`` (b,)."""
    n, n_logits = rows.logits.shape
    trust = _trust_in_stream(_covariate_shift(state.totals))
    x, y = np.empty(profiles.mean.shape[1]), np.empty(rows.places.shape[1])
    log_shares = np.empty(n_logits)
    for c in range(n_logits):
        log_shares[c] = np.log(_id_share(c, profiles, settings, state))
    for i in range(n):
        c = first_largest(rows.logits, i)
        shift = row_mean(rows.logits, i)
        _standardise(rows.logits, i, shift, c, profiles.mean, profiles.inverse_deviation, x)
        weight = state.ood_weight[c]
        evidence = _position(x, weight, settings.prior, c, state.ood_mean, state.ood_variance)
        shared = _shared_position(rows.places, i, profiles, settings, state, y)
        out[i] = trust * (evidence + shared - log_shares[c]) - rows.confidence[i] + 0.0 * shift
