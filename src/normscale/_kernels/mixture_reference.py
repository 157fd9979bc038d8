"""One row of the two-groups stream in plain numpy: always there, and easier to read than the compiled form.

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
from normscale._kernels.mixture import ClassProfiles, FloatArray, Mixture, MixtureRows, MixtureSettings, RowGroups


def soft_step(u: FloatArray, odds: FloatArray | float = 1.0) -> FloatArray:
    """(b,) from 0 to 1 around u = softness log odds."""
    grown = np.exp(np.maximum(-np.abs(u) / mix.SOFTNESS, -700.0))
    above, below = np.where(u < 0.0, grown, 1.0), np.where(u < 0.0, 1.0, grown)
    step: FloatArray = above / (above + below * odds)
    return step


def distances(logits: NDArray[Any], c: NDArray[np.int64], profiles: ClassProfiles) -> FloatArray:
    """Q (b,) of rows of logits (b, C) predicted c (b,)."""
    found = np.empty(c.size)
    for k, members in members_of_each(c):
        x = in_deviations(coordinates(logits[members]), k, profiles)
        found[members] = np.square(x, out=x).mean(axis=1)
    return found


def similarity(rows: MixtureRows, c: NDArray[np.int64], profiles: ClassProfiles) -> FloatArray:
    """t (b,) of rows predicted c (b,)."""
    sure, far = profiles.similarity_weights
    t: FloatArray = sure * rows.confidence - far * distances(rows.logits, c, profiles) - profiles.similarity_median[c]
    return t


def soft_counts(
    rows: MixtureRows, t: FloatArray, c: NDArray[np.int64], profiles: ClassProfiles
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ID counts (b,), counts of rows above the median and the upper quartile of the confidence; 1 on average."""
    u = rows.confidence - profiles.median[c]
    return (
        soft_step(t) * profiles.similarity_scale[c],
        soft_step(u) * profiles.count_scale[c],
        soft_step(u, profiles.top_odds[c]) * profiles.top_scale[c],
    )


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


def stream(
    rows: MixtureRows, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture, out: FloatArray
) -> None:
    """Take rows in one by one and score each into ``out`` (b,); ``state`` moves on."""
    totals = state.totals
    with np.errstate(all="ignore"):
        places, predicted = coordinates(rows.logits), rows.logits.argmax(axis=1)
        alike = similarity(rows, predicted, profiles)
        counts = np.column_stack(soft_counts(rows, alike, predicted, profiles)).tolist()
        for i, c in enumerate(predicted.tolist()):
            confidence, t = float(rows.confidence[i]), float(alike[i])
            count, above, top = counts[i]
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
            state.ood_weight[c] *= settings.class_decay

            share = id_share(c, profiles, settings, state)
            x = in_deviations(places[i], c, profiles)
            group = float(state.ood_weight[c]), settings.prior, state.ood_mean[c], state.ood_variance[c]
            evidence = float(position(x[None], *group)[0])
            shared = float(shared_position(rows.places[i : i + 1], profiles, settings, state)[0])
            learned = evidence + shared - math.log(share)
            out[i] = trust_in_stream(covariate_shift(totals)) * learned - confidence

            odds = share / (1.0 - share + mix.LEAST_OOD) * math.exp(min(max(t - evidence, -600.0), 600.0))
            responsibility = 1.0 / (1.0 + odds)
            state.ood_weight[c] += responsibility
            _join(x, responsibility / state.ood_weight[c], state.ood_mean[c], state.ood_variance[c])
            if rows.places.shape[1]:
                rate = teaching_rate(c, profiles, settings, state)
                lead = min((mix.SUSPECT - out[i]) / mix.SUSPECT_WIDTH, mix.UNSUSPECTED)
                taught = rate / (1.0 + math.exp(max(lead, -600.0)))
                totals[mix.SHARED] = totals[mix.SHARED] * settings.recent_decay + rate
                totals[mix.SHARED_OOD] = totals[mix.SHARED_OOD] * settings.recent_decay + taught
                y = np.clip(rows.places[i], -mix.SHARED_REACH, mix.SHARED_REACH)
                _join(y, taught / totals[mix.SHARED_OOD], state.shared_mean[0], state.shared_variance[0])


def _join(x: FloatArray, step: float, mean: FloatArray, variance: FloatArray) -> None:
    """Take x into moments with the weight ``step`` of the whole."""
    move = x - mean
    mean += step * move
    variance[:] = (1.0 - step) * (variance + step * move * move)


def stream_groups(
    rows: MixtureRows, profiles: ClassProfiles, settings: MixtureSettings, groups: RowGroups, out: FloatArray
) -> None:
    """As :func:`stream`, each group of rows by its own state."""
    n_classes = profiles.share.size
    for i in range(groups.places.size):
        a, b = groups.edges[i], groups.edges[i + 1]
        some = MixtureRows(rows.logits[a:b], rows.confidence[a:b], rows.places[a:b])
        stream(some, profiles, settings, Mixture.of(groups.table[groups.places[i]], n_classes), out[a:b])


def score(
    rows: MixtureRows, profiles: ClassProfiles, settings: MixtureSettings, state: Mixture, out: FloatArray
) -> None:
    """Score rows with the state as it is into ``out`` (b,)."""
    predicted = rows.logits.argmax(axis=1)
    trust = trust_in_stream(covariate_shift(state.totals))
    with np.errstate(all="ignore"):
        shared = shared_position(rows.places, profiles, settings, state)
        for c, members in members_of_each(predicted):
            x = in_deviations(coordinates(rows.logits[members]), c, profiles)
            group = float(state.ood_weight[c]), settings.prior, state.ood_mean[c], state.ood_variance[c]
            learned = position(x, *group) + shared[members] - math.log(id_share(c, profiles, settings, state))
            out[members] = trust * learned - rows.confidence[members]
    out[~np.isfinite(rows.logits).all(axis=1)] = np.nan
