"""The two-groups stream for numba: :mod:`normscale._kernels.mixture_reference` says what it computes.

Its loops are compiled as they stand there, with the forms below of what one row needs. The sum of the logarithms of the
variances is the logarithm of their product. A loop that writes is :data:`EXACT`, and a loop that adds up only reads:
LLVM runs a loop one by one where two arrays lie close together in memory, and its sums would differ in the last bit.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np

from normscale._kernels import mixture as mix
from normscale._kernels import mixture_reference as reference
from normscale._kernels.compiled import first_largest, row_mean
from normscale._kernels.mixture import ClassProfiles, Mixture, MixtureRows, MixtureSettings
from normscale._kernels.vector_math import EXACT, INLINE, REDUCE, compiled, exp_nonpositive

Array = Any

_SMALL, _LARGE = 1e-200, 1e200  # where a product of variances gives way to its logarithm


@compiled({**EXACT, **INLINE})
def _deviations(logits: Array, i: int, c: int, profiles: ClassProfiles, x: Array) -> float:
    """As :func:`mixture_reference.standardise`, without Q; returns the mean of the row."""
    shift: float = row_mean(logits, i)
    for j in range(logits.shape[1]):
        far = (np.float64(logits[i, j]) - shift - profiles.mean[c, j]) * profiles.inverse_deviation[c, j]
        far = far if far < mix.REACH else mix.REACH
        x[j] = far if far > -mix.REACH else -mix.REACH
    return shift


@compiled({**REDUCE, **INLINE})
def _sum_of_squares(x: Array) -> float:
    total = 0.0
    for j in range(x.shape[0]):
        total += x[j] * x[j]
    return total


@compiled({**EXACT, **INLINE})
def _standardise(logits: Array, i: int, c: int, profiles: ClassProfiles, x: Array) -> float:
    """NaN where the row is not finite."""
    shift = _deviations(logits, i, c, profiles, x)
    mean_square: float = _sum_of_squares(x) / logits.shape[1] + 0.0 * shift
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
def _position_of_row(x: Array, weight: float, prior: float, c: int, mean: Array, variance: Array) -> float:
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
def _join(x: Array, step: float, c: int, mean: Array, variance: Array) -> None:
    """Four at once."""
    rest = 1.0 - step
    for j in range(x.shape[0]):
        move = x[j] - mean[c, j]
        mean[c, j] += step * move
        variance[c, j] = rest * (variance[c, j] + step * move * move)


@compiled({**EXACT, **INLINE})
def _logistic(u: float) -> float:
    grown = exp_nonpositive(-abs(u))
    return (grown if u < 0.0 else 1.0) / (1.0 + grown)


_names = {
    **vars(reference),
    "first_largest": first_largest,
    "standardise": _standardise,
    "position_of_row": _position_of_row,
    "join": _join,
    "logistic": _logistic,
    "mixture_of": compiled(EXACT)(mix.mixture_of),
}
"""What the functions of the reference find when they are compiled."""


def _compiled(function: Any, options: dict[str, Any] = EXACT) -> Any:
    """A function of the reference, compiled; those that are compiled after it find it so.

    numba's cache on disk notices changes of the reference's file, not of this one.
    """
    _names[function.__name__] = own = compiled(options)(FunctionType(function.__code__, _names, function.__name__))
    return own


for _function in (
    reference.teaching_rate,
    reference.shared_weight,
    reference.covariate_shift,
    reference.trust_in_stream,
    reference.id_share,
    reference.shared_position_of_row,
    reference.take_in,
):
    _compiled(_function, {**EXACT, **INLINE})
stream, stream_groups = _compiled(reference.stream), _compiled(reference.stream_groups)
_id_share, _trust_in_stream, _covariate_shift, _shared_position_of_row = (
    _names[function.__name__]
    for function in (
        reference.id_share,
        reference.trust_in_stream,
        reference.covariate_shift,
        reference.shared_position_of_row,
    )
)


@compiled(EXACT)
def score(rows: MixtureRows, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture, out: Array) -> None:
    """Score rows with the state as it is into ``out`` (b,)."""
    trust = _trust_in_stream(_covariate_shift(state.totals))
    x, y = np.empty(profiles.mean.shape[1]), np.empty(rows.places.shape[1])
    log_shares = np.empty(profiles.share.size)
    for c in range(log_shares.size):
        log_shares[c] = np.log(_id_share(c, profiles, settings, state))
    for i in range(out.size):
        c = first_largest(rows.logits, i)
        distance = _standardise(rows.logits, i, c, profiles, x)
        learned = _position_of_row(x, state.ood_weight[c], settings.prior, c, state.ood_mean, state.ood_variance)
        learned += _shared_position_of_row(rows.places, i, profiles, settings, state, y)
        out[i] = trust * (learned - log_shares[c]) - rows.confidence[i] + 0.0 * distance
