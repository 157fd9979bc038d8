"""One row of the two-groups stream in plain numpy: always there, and easier to read than the compiled form.

For a row z, predicted c, whose prediction is wrong with log-odds D after frozen norm-scaling:

1. Confidence B = weights . (-D, z_c) - centre, in deviations; u = B - median_c. Its ID count, sigmoid(u / 0.3) over
   the mean of that in training, is 1 on average for ID rows and near 0 for rows below the median: Storey's
   estimate of a null share, with a soft step.
2. The ID share pi_c: ID counts over rows, of the recent rows predicted c, drawn towards the share of all
   recent rows by a prior; a class predicted more rarely than in training gets the missing rows as prior, too.
   Divided by the tolerance and cut at 1.
3. The position L: how much better the OoD group of c explains z than the ID group does, both as Gaussians
   with independent logits; averaged over the logits, which are far from independent, and never below 0.
4. Score: L - B - log pi_c. The responsibility of the OoD group is
   r = 1 / (1 + pi_c / (1 - pi_c + 0.001) exp(u - L)); with weight r the row joins that group's moments.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._kernels.mixture import (
    LEAST_OOD,
    LONG_ID,
    LONG_TOP,
    RECENT,
    RECENT_ID,
    ROWS,
    SOFTNESS,
    ClassProfiles,
    FloatArray,
    Mixture,
    MixtureSettings,
)


def soft_counts(u: float, c: int, profiles: ClassProfiles) -> tuple[float, float]:
    """Counts of a row above the median and above the upper quartile; each is 1 on average in training."""
    grown = math.exp(max(-abs(u) / SOFTNESS, -700.0))
    above, below = (grown, 1.0) if u < 0.0 else (1.0, grown)
    top = above / (above + below * float(profiles.top_odds[c]))
    return above / (above + below) * float(profiles.count_scale[c]), top * float(profiles.top_scale[c])


def recent_rows(c: int, settings: MixtureSettings, state: Mixture) -> float:
    """How many of the recent rows were predicted c, as of now."""
    age = float(state.totals[ROWS] - state.last[c])
    return float(state.recent[c]) * math.exp(max(age * math.log(settings.recent_decay), -700.0))


def id_share(c: int, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture) -> float:
    """pi_c as the stream has it now."""
    totals, prior = state.totals, settings.prior
    overall = (totals[RECENT_ID] + prior) / (totals[RECENT] + prior)
    missing = profiles.share[c] * totals[RECENT] - recent_rows(c, settings, state)
    weight = prior + max(0.0, missing)
    share = (state.id_count[c] + weight * overall) / (state.seen[c] + weight)
    return min(1.0, float(share) / settings.tolerance)


def position(x: FloatArray, c: int, settings: MixtureSettings, state: Mixture) -> float:
    """L of a row in training deviations x (C,) from the mean of class c."""
    weight = float(state.ood_weight[c])
    if weight == 0.0:
        return 0.0
    trust = weight / (weight + settings.prior)
    variance = 1.0 + trust * (state.ood_variance[c] - 1.0)
    misfit = x - trust * state.ood_mean[c]
    ratio = float(np.sum(x * x - misfit * misfit / variance - np.log(variance)))
    return max(0.0, trust * ratio / x.size)


def stream(
    rows: NDArray[Any],
    log_odds: FloatArray,
    profiles: ClassProfiles,
    settings: MixtureSettings,
    state: Mixture,
    out: FloatArray,
) -> None:
    """Take rows (b, C) in one by one and score each into ``out`` (b,); ``state`` moves on."""
    totals = state.totals
    weight_of_log_odds, weight_of_size, centre = (
        -float(profiles.weights[0]),
        float(profiles.weights[1]),
        float(profiles.centre[0]),
    )
    with np.errstate(all="ignore"):
        for i, c in enumerate(rows.argmax(axis=1).tolist()):
            confidence = weight_of_log_odds * float(log_odds[i]) + weight_of_size * float(rows[i, c]) - centre
            u = confidence - float(profiles.median[c])
            count, top = soft_counts(u, c, profiles)
            totals[ROWS] += 1.0
            totals[RECENT] = totals[RECENT] * settings.recent_decay + 1.0
            totals[RECENT_ID] = totals[RECENT_ID] * settings.recent_decay + count
            totals[LONG_ID] = totals[LONG_ID] * settings.long_decay + count
            totals[LONG_TOP] = totals[LONG_TOP] * settings.long_decay + top
            state.recent[c] = recent_rows(c, settings, state) + 1.0
            state.last[c] = totals[ROWS]
            state.seen[c] = state.seen[c] * settings.class_decay + 1.0
            state.id_count[c] = state.id_count[c] * settings.class_decay + count
            state.ood_weight[c] *= settings.class_decay

            share = id_share(c, profiles, settings, state)
            x = (rows[i].astype(np.float64) - profiles.mean[c]) * profiles.inverse_deviation[c]
            evidence = position(x, c, settings, state)
            out[i] = evidence - confidence - math.log(share)

            odds = share / (1.0 - share + LEAST_OOD) * math.exp(min(max(u - evidence, -600.0), 600.0))
            responsibility = 1.0 / (1.0 + odds)
            state.ood_weight[c] += responsibility
            step = responsibility / state.ood_weight[c]
            move = x - state.ood_mean[c]
            state.ood_mean[c] += step * move
            state.ood_variance[c] = (1.0 - step) * (state.ood_variance[c] + step * move * move)


def score(
    rows: NDArray[Any],
    log_odds: FloatArray,
    profiles: ClassProfiles,
    settings: MixtureSettings,
    state: Mixture,
    out: FloatArray,
) -> None:
    """Score rows (b, C) with the state as it is into ``out`` (b,)."""
    predicted = rows.argmax(axis=1)
    with np.errstate(all="ignore"):
        for c in np.unique(predicted).tolist():
            members = np.flatnonzero(predicted == c)
            size = rows[members, c].astype(np.float64)
            confidence = profiles.weights[1] * size - profiles.weights[0] * log_odds[members] - profiles.centre[0]
            evidence = np.zeros(members.size)
            weight = float(state.ood_weight[c])
            if weight > 0.0:
                x = (rows[members].astype(np.float64) - profiles.mean[c]) * profiles.inverse_deviation[c]
                trust = weight / (weight + settings.prior)
                variance = 1.0 + trust * (state.ood_variance[c] - 1.0)
                misfit = x - trust * state.ood_mean[c]
                ratio = x * x - misfit * misfit / variance - np.log(variance)
                evidence = np.maximum(0.0, trust * ratio.mean(axis=1))
            out[members] = evidence - confidence - math.log(id_share(c, profiles, settings, state))
