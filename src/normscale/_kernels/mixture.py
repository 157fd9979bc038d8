"""The two-groups stream: what both of its kernels read and write, and the choice between them.

A row that the classifier calls class c comes from one of two groups: in-distribution (ID) rows, described by
:class:`ClassProfiles`, which training fixes, and OoD rows, described by :class:`Mixture`, which the stream teaches and
which forgets. :mod:`normscale._kernels.mixture_reference` says what one row does to it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from normscale import _kernels
from normscale._kernels.kinds import LOG_ODDS

FloatArray = NDArray[np.float64]

ROWS, RECENT, RECENT_ID, LONG_ID, LONG_TOP = range(5)
"""Places in :attr:`Mixture.totals`."""

SOFTNESS = 0.3
"""Width of the step at the median that counts rows as profiles, in deviations of the confidence."""
LEAST_OOD = 0.001
"""Prior share of OoD rows where a class shows none, so that the first one can be noticed."""


class ClassProfiles(NamedTuple):
    """The in-distribution group of every predicted class c, fixed at training."""

    shift: FloatArray
    """(C,) mean of each logit over all training rows."""
    factor: FloatArray
    """(C,) 1 / deviation of each logit."""
    weights: FloatArray
    """(2,) of the log-odds and of the largest logit in the confidence."""
    centre: FloatArray
    """(1,) median of the confidence of all rows."""
    median: FloatArray
    """(C,) how far above it the median of the rows predicted c lies."""
    count_scale: FloatArray
    """(C,) what a row far above the median counts as, so that ID rows count 1 on average: about 2."""
    top_odds: FloatArray
    """(C,) exp((upper quartile - median) / softness)."""
    top_scale: FloatArray
    """(C,) what a row far above the upper quartile counts as, so that ID rows count 1 on average: about 4."""
    share: FloatArray
    """(C,) of training rows predicted c."""
    mean: FloatArray
    """(C, C) row c: mean of the logits of rows predicted c."""
    inverse_deviation: FloatArray
    """(C, C) row c: 1 / their deviations."""


class MixtureSettings(NamedTuple):
    """What the person chose, in the form the loops want."""

    class_decay: float
    recent_decay: float
    long_decay: float
    prior: float
    tolerance: float


class Mixture(NamedTuple):
    """What the stream has taught; sums of the past count less with every row."""

    totals: FloatArray
    """(5,) rows ever; recent rows and their ID counts; long-term counts above the median and the quartile."""
    recent: FloatArray
    """(C,) recent rows predicted c, forgotten with every row of the stream; as it was at the last of them."""
    last: FloatArray
    """(C,) when that was: rows ever, then."""
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

    @classmethod
    def empty(cls, n_classes: int) -> Mixture:
        """Before any row."""

        def zeros() -> FloatArray:
            return np.zeros(n_classes)

        square = np.zeros((n_classes, n_classes))
        return cls(np.zeros(5), zeros(), zeros(), zeros(), zeros(), zeros(), square, square.copy())

    def copy(self) -> Mixture:
        """A state that may go on by itself."""
        return Mixture(*(part.copy() for part in self))

    def is_finite(self) -> bool:
        """Whether no number overflowed."""
        return all(bool(np.isfinite(part).all()) for part in self)


class Loops(Protocol):
    """What a back end offers."""

    def stream(
        self,
        rows: NDArray[Any],
        log_odds: FloatArray,
        profiles: ClassProfiles,
        settings: MixtureSettings,
        state: Mixture,
        out: FloatArray,
    ) -> None:
        """Take rows in and score them; ``state`` moves on."""

    def score(
        self,
        rows: NDArray[Any],
        log_odds: FloatArray,
        profiles: ClassProfiles,
        settings: MixtureSettings,
        state: Mixture,
        out: FloatArray,
    ) -> None:
        """Score rows; nothing moves."""


def _loops() -> Loops:
    if _kernels.backend() == "numba":
        from normscale._kernels import mixture_compiled

        return mixture_compiled
    from normscale._kernels import mixture_reference

    return mixture_reference


def frozen_log_odds(rows: NDArray[Any], profiles: ClassProfiles, threads: int = 1) -> FloatArray | None:
    """Log-odds of the prediction being wrong after frozen norm-scaling (n,); None when a row is not finite."""
    out = np.empty(rows.shape[0])
    return out if _kernels.frozen_scores(rows, profiles.shift, profiles.factor, LOG_ODDS, out, threads) else None


def stream_mixture(
    rows: NDArray[Any],
    profiles: ClassProfiles,
    settings: MixtureSettings,
    state: Mixture,
    out: FloatArray,
    threads: int = 1,
) -> Mixture | None:
    """Take rows (n, C) in one by one, score each into ``out`` (n,), and return the state after the last.

    None when a row cannot be taken in; nothing given is changed. Threads share the frozen_log_odds; what follows is one
    row after the other by nature.
    """
    log_odds = frozen_log_odds(rows, profiles, threads)
    if log_odds is None:
        return None
    state = state.copy()
    loops = _loops()
    for block in _kernels._blocks(rows, 1):
        loops.stream(_kernels._native(rows[block]), log_odds[block], profiles, settings, state, out[block])
    return state if state.is_finite() and np.isfinite(out).all() else None


def score_mixture(
    rows: NDArray[Any],
    profiles: ClassProfiles,
    settings: MixtureSettings,
    state: Mixture,
    out: FloatArray,
    threads: int = 1,
) -> bool:
    """Score rows (n, C) with the state as it is into ``out`` (n,); False when a row is not finite or too large."""
    log_odds = frozen_log_odds(rows, profiles, threads)
    if log_odds is None:
        return False
    loops = _loops()

    def score(block: slice) -> None:
        loops.score(_kernels._native(rows[block]), log_odds[block], profiles, settings, state, out[block])

    _kernels._in_threads(score, _kernels._blocks(rows, threads), threads)
    return bool(np.isfinite(out).all())
