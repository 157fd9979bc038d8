"""The two-groups stream in plain numpy, always there; :mod:`normscale._kernels.mixture_compiled` compiles its loops.

For a row z, predicted c, of confidence B (in deviations), and distance Q, the mean square of its coordinates in
training deviations from the mean of class c (a coordinate more than 2.5 deviations away counts as 2.5):

1. Its similarity is B - Q, each in deviations: rows of training are sure, and near. t is the similarity, made of
   deviation 1 again, less its median in training over the rows predicted c. The row's ID count, sigmoid(t / 0.3) over
   the mean of that in training, is 1 on average for ID rows and near 0 for rows below the median: Storey's estimate of
   a null share, with a soft step.
2. The ID share pi_c: ID counts over rows, of the recent rows predicted c, drawn towards the share of all
   recent rows by a prior; a class predicted more rarely than in training gets the missing rows as prior, too.
   Divided by the tolerance and cut at 1.
3. The position L: how much better the OoD group of c explains the row's coordinates than the ID group does, both as
   Gaussians with independent coordinates; averaged over them, because they are far from independent; never below 0.
4. The shared position S: the same for one OoD group of all classes, in coordinates of the features, against all rows of
   training together.
5. The trust w: 1, unless the most confident rows are less confident than in training; then the in-distribution inputs
   themselves have changed, the stream cannot teach what OoD is, and w falls to 0.
6. Score: w (S + L - log pi_c) - B. The responsibility of the OoD group of c is
   r = 1 / (1 + pi_c / (1 - pi_c + 0.001) exp(t - L)); with weight r the row joins that group's moments. That of the
   shared group is a soft step of the score at 2; rows of a class that is more frequent than in training count less, or
   one dominating class would become the group.

Where the stream is said to be balanced, a class that is more frequent than in training has that as evidence, too: pi_c
is at most the share that explains the frequency.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._kernels import members_of_each
from normscale._kernels import mixture as mix
from normscale._kernels.mixture import (
    ClassProfiles,
    FloatArray,
    Mixture,
    MixtureRows,
    MixtureSettings,
    RowGroups,
    mixture_of,
)


def soft_step(u: FloatArray, width: float = mix.SOFTNESS) -> FloatArray:
    """(b,) from 0 to 1 around u = 0."""
    grown = np.exp(np.maximum(-np.abs(u) / width, -700.0))
    step: FloatArray = np.where(u < 0.0, grown, 1.0) / (1.0 + grown)
    return step


def distances(logits: NDArray[Any], c: NDArray[np.int64], profiles: ClassProfiles) -> FloatArray:
    """Q (b,) of rows of logits (b, C) predicted c (b,)."""
    found = np.empty(c.size)
    for k, members in members_of_each(c):
        x = in_deviations(coordinates(logits[members]), k, profiles)
        found[members] = np.square(x, out=x).mean(axis=1)
    return found


def id_share(c: int, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture) -> float:
    """pi_c as the stream has it now."""
    totals, prior = state.totals, settings.prior
    recent = totals[mix.RECENT] + prior  # of which the rows that look in-distribution are the overall share
    expected, present = profiles.share[c] * totals[mix.RECENT], state.recent[c] / totals[mix.GROWN]
    weight = prior + max(0.0, expected - present)
    id_count = state.id_count[c] * recent + weight * (totals[mix.RECENT_ID] + prior)
    share = min(1.0, id_count / ((state.seen[c] + weight) * settings.tolerance * recent))
    if settings.balanced:
        overall = min(1.0, (totals[mix.RECENT_ID] + prior) / recent)
        share = min(share, (expected * overall + prior) / (present + prior))
    return float(share)


def teaching_rate(c: int, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture) -> float:
    """How much a row predicted c teaches the shared group: less where the class is more frequent than in training."""
    expected, present = profiles.share[c] * state.totals[mix.RECENT], state.recent[c] / state.totals[mix.GROWN]
    return 1.0 if settings.balanced or expected >= present else float(expected / present)


def shared_weight(profiles: ClassProfiles, totals: FloatArray) -> float:
    """How many OoD rows the shared group holds, less what in-distribution rows alone contribute."""
    return max(0.0, float(totals[mix.SHARED_OOD] - profiles.shared_share[0] * totals[mix.SHARED]))


def covariate_shift(totals: FloatArray) -> float:
    """1 less the ratio of the counts above the quartile and above the median, each 1 in training.

    Where hardly any row lies above the median, there is no telling by that ratio, and the lack itself says it.
    """
    id_count = float(totals[mix.LONG_ID]) + mix.FEW
    intact = min(1.0, (float(totals[mix.LONG_TOP]) + mix.FEW) / id_count)
    present = min(1.0, id_count / (mix.HARDLY_ANY * float(totals[mix.LONG]) + mix.FEW))
    return 1.0 - intact * present


def trust_in_stream(shift: float) -> float:
    """w: 1 below the first bound of the covariate shift, 0 above the second, and a line between."""
    return min(1.0, max(0.0, (mix.DISTRUSTED - shift) / (mix.DISTRUSTED - mix.TRUSTED)))


def coordinates(logits: NDArray[Any]) -> FloatArray:
    """(b, C) the centred logits."""
    places: FloatArray = logits - logits.mean(axis=1, keepdims=True, dtype=np.float64)
    return places


def in_deviations(places: FloatArray, c: int, profiles: ClassProfiles) -> FloatArray:
    """x: coordinates (b, C) in training deviations from the mean of class c, cut off at the reach."""
    x: FloatArray = np.clip((places - profiles.mean[c]) * profiles.inverse_deviation[c], -mix.REACH, mix.REACH)
    return x


def position(x: FloatArray, weight: float, prior: float, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """How much better an OoD group of this weight explains rows x (b, k), in training deviations, than training."""
    if weight == 0.0 or x.shape[1] == 0:
        return np.zeros(len(x))
    trust = weight / (weight + prior)
    blended = 1.0 + trust * (variance - 1.0)
    misfit = x - trust * mean
    terms = x * x - misfit * misfit / blended - np.log(blended)
    evidence: FloatArray = np.maximum(0.0, trust * terms.mean(axis=1))
    return evidence


def shared_position(
    places: FloatArray, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture
) -> FloatArray:
    """S of rows with these coordinates of their features (b, k)."""
    y = np.clip(places, -mix.SHARED_REACH, mix.SHARED_REACH)
    weight, prior = shared_weight(profiles, state.totals), mix.SHARED_PRIOR * settings.prior
    evidence = position(y, weight, prior, state.shared_mean[0], state.shared_variance[0])
    return np.minimum(mix.SHARED_MOST, 0.5 * mix.SHARED_COUNT * evidence)


def score(
    rows: MixtureRows, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture, out: FloatArray
) -> None:
    """Score rows with the state as it is into ``out`` (b,)."""
    predicted = rows.logits.argmax(axis=1)
    trust = trust_in_stream(covariate_shift(state.totals))
    shared = shared_position(rows.places, profiles, settings, state)
    for c, members in members_of_each(predicted):
        x = in_deviations(coordinates(rows.logits[members]), c, profiles)
        group = float(state.ood_weight[c]), settings.prior, state.ood_mean[c], state.ood_variance[c]
        learned = position(x, *group) + shared[members] - math.log(id_share(c, profiles, settings, state))
        out[members] = trust * learned - rows.confidence[members]
    out[~np.isfinite(rows.logits).all(axis=1)] = np.nan


def first_largest(rows: NDArray[Any], i: int) -> int:
    """The first of the largest numbers of row i."""
    return int(rows[i].argmax())


def standardise(logits: NDArray[Any], i: int, c: int, profiles: ClassProfiles, x: FloatArray) -> float:
    """Row i in training deviations from the mean of class c, cut off at the reach, into x; returns its Q."""
    x[:] = in_deviations(coordinates(logits[i : i + 1]), c, profiles)[0]
    return float(np.square(x).mean())


def position_of_row(x: FloatArray, weight: float, prior: float, c: int, mean: FloatArray, var: FloatArray) -> float:
    """As :func:`position`, of one row, by the OoD group c."""
    return float(position(x[None], weight, prior, mean[c], var[c])[0])


def join(x: FloatArray, step: float, c: int, mean: FloatArray, variance: FloatArray) -> None:
    """Take x into the moments of group c with the weight ``step`` of the whole."""
    move = x - mean[c]
    mean[c] += step * move
    variance[c] = (1.0 - step) * (variance[c] + step * move * move)


# numba compiles what follows as it stands, with other forms of the four functions above.


def logistic(u: float) -> float:
    """From 0 to 1 around u = 0."""
    grown = math.exp(max(-abs(u), -700.0))
    return (grown if u < 0.0 else 1.0) / (1.0 + grown)


def shared_position_of_row(
    places: FloatArray, i: int, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture, y: FloatArray
) -> float:
    """S of row i, whose coordinates, cut off, go into y."""
    for j in range(y.size):
        y[j] = min(mix.SHARED_REACH, max(-mix.SHARED_REACH, places[i, j]))
    weight, prior = shared_weight(profiles, state.totals), mix.SHARED_PRIOR * settings.prior
    evidence = position_of_row(y, weight, prior, 0, state.shared_mean, state.shared_variance)
    return min(mix.SHARED_MOST, 0.5 * mix.SHARED_COUNT * evidence)


def take_in(
    rows: MixtureRows,
    some: tuple[int, int],
    profiles: ClassProfiles,
    settings: MixtureSettings,
    state: Mixture,
    room: tuple[FloatArray, FloatArray],
    out: FloatArray,
) -> None:
    """Take the rows from the first of ``some`` to the last in one by one and score each; ``state`` moves on."""
    totals, prior, (x, y) = state.totals, settings.prior, room
    sure, far = profiles.similarity_weights[0], profiles.similarity_weights[1]
    for i in range(some[0], some[1]):
        confidence = float(rows.confidence[i])
        c = first_largest(rows.logits, i)
        distance = standardise(rows.logits, i, c, profiles, x)
        t = sure * confidence - far * distance - profiles.similarity_median[c]
        count = logistic(t / mix.SOFTNESS) * profiles.similarity_scale[c]
        above = logistic((confidence - profiles.median[c]) / mix.SOFTNESS) * profiles.count_scale[c]
        top = logistic((confidence - profiles.quartile[c]) / mix.SOFTNESS) * profiles.top_scale[c]
        totals[mix.ROWS] += 1.0
        totals[mix.RECENT] = totals[mix.RECENT] * settings.recent_decay + 1.0
        totals[mix.RECENT_ID] = totals[mix.RECENT_ID] * settings.recent_decay + count
        totals[mix.LONG] = totals[mix.LONG] * settings.long_decay + 1.0
        totals[mix.LONG_ID] = totals[mix.LONG_ID] * settings.long_decay + above
        totals[mix.LONG_TOP] = totals[mix.LONG_TOP] * settings.long_decay + top
        totals[mix.GROWN] /= settings.recent_decay
        state.recent[c] += totals[mix.GROWN]
        if totals[mix.GROWN] > mix.OVERGROWN:
            state.recent[:] /= totals[mix.GROWN]
            totals[mix.GROWN] = 1.0
        state.seen[c] = state.seen[c] * settings.class_decay + 1.0
        state.id_count[c] = state.id_count[c] * settings.class_decay + count
        weight = state.ood_weight[c] * settings.class_decay

        share = id_share(c, profiles, settings, state)
        evidence = position_of_row(x, weight, prior, c, state.ood_mean, state.ood_variance)
        learned = evidence + shared_position_of_row(rows.places, i, profiles, settings, state, y) - math.log(share)
        score = trust_in_stream(covariate_shift(totals)) * learned - confidence

        responsibility = logistic(math.log((1.0 - share + mix.LEAST_OOD) / share) + evidence - t)
        state.ood_weight[c] = weight + responsibility
        join(x, responsibility / state.ood_weight[c], c, state.ood_mean, state.ood_variance)
        if y.size:
            rate = teaching_rate(c, profiles, settings, state)
            lead = max((score - mix.SUSPECT) / mix.SUSPECT_WIDTH, -mix.UNSUSPECTED)
            totals[mix.SHARED] = totals[mix.SHARED] * settings.recent_decay + rate
            totals[mix.SHARED_OOD] = totals[mix.SHARED_OOD] * settings.recent_decay + rate * logistic(lead)
            join(y, rate * logistic(lead) / totals[mix.SHARED_OOD], 0, state.shared_mean, state.shared_variance)
        out[i] = score


def stream(
    rows: MixtureRows, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture, out: FloatArray
) -> None:
    """Take rows in one by one and score each into ``out`` (b,); ``state`` moves on."""
    room = np.empty(profiles.mean.shape[1]), np.empty(rows.places.shape[1])
    take_in(rows, (0, out.size), profiles, settings, state, room, out)


def stream_groups(
    rows: MixtureRows, profiles: ClassProfiles, settings: MixtureSettings, groups: RowGroups, out: FloatArray
) -> None:
    """As :func:`stream`, each group of rows by its own state."""
    room = np.empty(profiles.mean.shape[1]), np.empty(rows.places.shape[1])
    for g in range(groups.places.size):
        state = mixture_of(groups.table[groups.places[g]], profiles.share.size)
        take_in(rows, (groups.edges[g], groups.edges[g + 1]), profiles, settings, state, room, out)
