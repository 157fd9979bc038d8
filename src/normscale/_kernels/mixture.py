"""The two-groups stream: what both of its kernels read and write, and the choice between them.

A row that the classifier calls class c comes from one of two groups: in-distribution (ID) rows, described by
:class:`ClassProfiles`, which training fixes, and OoD rows, described by :class:`Mixture`, which the stream teaches and
which forgets. :mod:`normscale._kernels.mixture_reference` says what one row does to it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale._kernels import backend, in_blocks, native, outside

FloatArray = NDArray[np.float64]

ROWS, RECENT, RECENT_ID, LONG, LONG_ID, LONG_TOP, GROWN, SHARED, SHARED_OOD = range(9)
"""Places in :attr:`Mixture.totals`."""
_TOTALS = 9

SOFTNESS = 0.3
"""Width of the steps at which rows begin to count, in deviations."""
LEAST_OOD = 0.001
"""Prior share of OoD rows where a class shows none, so that the first one can be noticed."""
FEW = 20.0
"""How many rows that look like training the covariate shift is drawn to "none" by."""
HARDLY_ANY = 0.1
"""Below this share of rows that look like training, their lack counts as a covariate shift."""
REACH = 2.5
"""Coordinates beyond this many training deviations count as this many: an input between two classes is no OoD yet, and
no row can drag the OoD group where it likes."""
SHARED_REACH = 4.0
"""The same for coordinates of the features."""
SHARED_COUNT = 8.0
"""How many independent coordinates those of the features count as."""
SHARED_MOST = 8.0
"""The shared position never says more."""
SHARED_PRIOR = 4.0
"""Rows of evidence that the shared group needs, in those that the group of a class needs."""
SUSPECT, SUSPECT_WIDTH, UNSUSPECTED = 2.0, 0.5, 100.0
"""Scores around the first, within some times the second, begin to teach the shared group; those below it by the third,
in the second, count as this far below."""
TRUSTED, DISTRUSTED = 0.35, 0.5
"""Covariate shifts below the first leave what the stream taught alone; beyond the second it says nothing any more."""
_LARGEST = 1e300
OVERGROWN = 1e100
"""Where the unit of :attr:`Mixture.recent` is made 1 again."""


class ClassProfiles(NamedTuple):
    """The in-distribution group of every predicted class c, fixed at training.

    The coordinates of a row are its logits less their mean.
    """

    similarity_weights: FloatArray
    """(2,) of the confidence and of the distance (taken off) in the similarity, which then has a deviation of 1."""
    similarity_median: FloatArray
    """(C,) of the similarity of the rows predicted c."""
    similarity_scale: FloatArray
    """(C,) what a row far above it counts as, so that ID rows count 1 on average: about 2."""
    median: FloatArray
    """(C,) of the confidence of the rows predicted c."""
    count_scale: FloatArray
    """(C,) what a row far above that median counts as: about 2."""
    quartile: FloatArray
    """(C,) the upper one of that confidence."""
    top_scale: FloatArray
    """(C,) what a row far above it counts as: about 4."""
    share: FloatArray
    """(C,) of training rows predicted c."""
    mean: FloatArray
    """(C, C) row c: mean of the coordinates of rows predicted c."""
    inverse_deviation: FloatArray
    """(C, C) row c: 1 / their deviations."""
    shared_share: FloatArray
    """(1,) the mean responsibility that the shared group has for rows of training."""


class MixtureSettings(NamedTuple):
    """What the person chose, in the form the loops want."""

    class_decay: float
    recent_decay: float
    long_decay: float
    prior: float
    tolerance: float
    balanced: bool


class Mixture(NamedTuple):
    """What the stream has taught; sums of the past count less with every row."""

    totals: FloatArray
    """(9,) rows ever; recent rows and their ID counts; rows remembered long, their counts above the median and above
    the quartile of the confidence; the unit of ``recent``, which grows; rows that taught the shared group, and its
    responsibilities."""
    recent: FloatArray
    """(C,) recent rows predicted c, forgotten with every row of the stream, in a unit that grows instead."""
    seen: FloatArray
    """(C,) rows predicted c, forgotten with every row predicted c."""
    id_count: FloatArray
    """(C,) the ID counts of those."""
    ood_weight: FloatArray
    """(C,) the OoD responsibilities of those."""
    ood_mean: FloatArray
    """(C, C) mean of the OoD rows predicted c, in training deviations from the training mean of class c."""
    ood_variance: FloatArray
    """(C, C) their variance, in the same unit squared."""
    shared_mean: FloatArray
    """(1, k) mean of the OoD rows of all classes, in coordinates of their features."""
    shared_variance: FloatArray
    """(1, k) their variance."""

    @classmethod
    def empty(cls, n_classes: int, n_coordinates: int = 0) -> Mixture:
        """Before any row."""
        numbers = np.zeros(_TOTALS + 4 * n_classes + 2 * n_classes * n_classes + 2 * n_coordinates)
        numbers[GROWN] = 1.0
        return mixture_of(numbers, n_classes)


def mixture_of(numbers: FloatArray, n_classes: int) -> Mixture:
    """The state whose numbers lie behind each other in an array; a view. numba compiles it, too."""
    a = _TOTALS + 4 * n_classes
    b = a + 2 * n_classes * n_classes
    vectors = numbers[_TOTALS:a].reshape(4, n_classes)
    moments = numbers[a:b].reshape(2, n_classes, n_classes)
    shared = numbers[b:].reshape(2, 1, (numbers.size - b) // 2)
    return Mixture(
        numbers[:_TOTALS],
        vectors[0],
        vectors[1],
        vectors[2],
        vectors[3],
        moments[0],
        moments[1],
        shared[0],
        shared[1],
    )


class MixtureRows(NamedTuple):
    """Rows of a stream as the loops read them."""

    logits: NDArray[Any]
    """(b, C)"""
    confidence: FloatArray
    """(b,) in deviations, higher = more like training."""
    places: FloatArray
    """(b, k) coordinates of the features, each of mean 0 and deviation 1 in training; k = 0 where none are read."""

    def block(self, block: slice) -> MixtureRows:
        """Some of the rows, as the loops can read them."""
        return MixtureRows(native(self.logits[block]), self.confidence[block], self.places[block])


class RowGroups(NamedTuple):
    """States of several streams, and which rows go to which."""

    table: FloatArray
    """(s, k) a row holds the numbers of a :class:`Mixture`."""
    places: NDArray[np.int64]
    """(g,) rows of the table."""
    edges: NDArray[np.int64]
    """(g + 1,) the rows from edges[i] to edges[i + 1] go to the state at places[i]."""


def _loops() -> Any:
    """The functions ``stream`` and ``score`` for the kernels that run in this process."""
    return import_module(f"normscale._kernels.mixture_{'compiled' if backend() == 'numba' else 'reference'}")


def stream_mixture(
    rows: MixtureRows,
    profiles: ClassProfiles,
    settings: MixtureSettings,
    state: Mixture | RowGroups,
    out: FloatArray,
) -> bool:
    """Take rows one by one into ``state``, which is changed in place, and score each into ``out`` (n,).

    False, and nothing is changed, where a row cannot be taken in. All rows are checked before the first is taken in, so
    that a row costs what it touches: the numbers of its own class. All that is learned of a row is bounded, so that
    rows that pass the check leave a finite state. One row follows the other by nature: no threads.
    """
    # Finite, and so far from the largest float64 that a sum over a row is finite, too.
    if any(outside(numbers, -_LARGEST, _LARGEST) for numbers in (rows.logits, rows.confidence[:, None])):
        return False
    loops = _loops()
    with np.errstate(all="ignore"):
        if isinstance(state, RowGroups):
            loops.stream_groups(rows.block(slice(None)), profiles, settings, state, out)
        else:
            in_blocks(lambda block: loops.stream(rows.block(block), profiles, settings, state, out[block]), rows.logits)
    return True


def score_mixture(
    rows: MixtureRows,
    profiles: ClassProfiles,
    settings: MixtureSettings,
    state: Mixture,
    out: FloatArray,
    threads: int = 1,
) -> bool:
    """Score rows with the state as it is into ``out`` (n,); False when a row is not finite or too large."""

    def score(block: slice) -> None:
        with np.errstate(all="ignore"):
            loops.score(rows.block(block), profiles, settings, state, out[block])

    loops = _loops()
    in_blocks(score, rows.logits, threads)
    return bool(np.isfinite(out).all())
