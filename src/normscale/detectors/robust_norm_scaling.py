"""Robust norm-scaling: training says what belongs, the stream says what else is about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._kernels.mixture import (
    LONG_INSIDE,
    LONG_TOP,
    RECENT,
    RECENT_INSIDE,
    ROWS,
    Inside,
    Mixture,
    Settings,
    score_mixture,
    stream_mixture,
)
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import Detector, OutputsLike, join
from normscale.detectors.inside import checked, describe
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs

_RECENT = 5.0
"""The memory of the whole stream, in memories of a class."""
_LONG = 20.0
"""The memory that tells a shift of everything from a burst of OoD, in memories of a class."""
_FEW = 20.0
"""How many rows that look like training :attr:`StreamState.covariate_shift` is drawn to "none" by."""
_HARDLY_ANY = 0.1
"""Below this share of rows that look like training, their lack counts as a shift."""


class StreamState(NamedTuple):
    """What a detector has learned from its stream, for people."""

    rows: int
    """Rows streamed."""
    class_share: FloatArray
    """(C,) of recent rows predicted as each class."""
    training_share: FloatArray
    """(C,) of training rows predicted as each class."""
    id_share: FloatArray
    """(C,) of the recent rows predicted as each class, how many look in-distribution; at most 1."""
    overall_id_share: float
    """Of all recent rows; at most 1."""
    ood_weight: FloatArray
    """(C,) how many OoD rows the next two rest on."""
    ood_mean: FloatArray
    """(C, C) row c: mean logits of the OoD rows predicted c; the training mean where there are none."""
    ood_variance: FloatArray
    """(C, C) row c: their variance; the training variance where there are none."""
    covariate_shift: float
    """0: the most confident rows are as confident as in training, whatever else is in the stream. Towards 1: not even
    they are, so the in-distribution inputs themselves have changed, or next to none are left."""


class RobustNormScaling(Detector):
    """Norm-scaling that learns from a stream what OoD looks like, and keeps what training said about the rest.

    Rows predicted as class c are a mixture of two groups. The in-distribution group is described at training and never
    moves; the OoD group, and its share, are learned online and forgotten again. A row is scored by three things: its
    confidence (one part log-odds after frozen norm-scaling, two parts largest logit), how many of the recent rows of
    its predicted class look like training, and whether it lies where recent OoD rows of that class lay.
    ``docs/robust.md`` derives it.

    Parameters
    ----------
    memory : float
        How many rows of a predicted class are remembered; older ones fade. The whole stream is remembered five times
        as long.
    prior_weight : float
        How many rows' worth of evidence the stream must bring before it counts as much as the training. ``inf`` never
        learns: the confidence alone.
    tolerance : float
        A class is above suspicion while this share of its recent rows looks in-distribution. Lower gives fewer false
        alarms, higher sees less OoD.

    Attributes
    ----------
    inside_ : Inside
        The in-distribution group of every predicted class.
    n_streamed_ : int
    state : StreamState
        What the stream has taught.

    References
    ----------
    Ravikumar & Roy, "Norm-Scaling for Out-of-Distribution Detection". Efron, "Large-Scale Simultaneous Hypothesis
    Testing", 2004 (two groups). Storey, "A Direct Approach to False Discovery Rates", 2002 (the share). Cappe &
    Moulines, "On-line EM Algorithm for Latent Data Models", 2009.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> train = rng.normal(size=(600, 3)) + 6.0 * np.eye(3)[rng.integers(0, 3, 600)]
    >>> detector = RobustNormScaling().fit(train)
    >>> ood = rng.normal(size=(100, 3)) + [2.0, 0.0, 0.0]
    >>> scores = detector.stream(ood)
    >>> detector.n_streamed_, bool(detector.state.id_share[0] < 0.3)
    (100, True)
    >>> bool(detector.score(ood).mean() > detector.reset().score(ood).mean())
    True
    """

    name: ClassVar[str] = "robust_norm_scaling"
    parameters: ClassVar[tuple[str, ...]] = ("memory", "prior_weight", "tolerance")

    inside_: Inside
    mixture_: Mixture

    def __init__(self, memory: float = 50.0, prior_weight: float = 5.0, tolerance: float = 0.8) -> None:
        """Store the parameters."""
        self.memory = _validate.positive(memory, "memory")
        if self.memory < 2.0:
            raise InvalidInput(f"memory must be at least 2 rows; got {memory!r}. The default is 50.")
        self.prior_weight = _validate.positive(prior_weight, "prior_weight", allow_inf=True)
        self.tolerance = _validate.fraction(tolerance, "tolerance", allow_one=True)

    @property
    def _settings(self) -> Settings:
        return Settings(
            class_decay=1.0 - 1.0 / self.memory,
            recent_decay=1.0 - 1.0 / (_RECENT * self.memory),
            long_decay=1.0 - 1.0 / (_LONG * self.memory),
            prior=self.prior_weight if self._learns else 1.0,
            tolerance=self.tolerance,
        )

    @property
    def _learns(self) -> bool:
        return not math.isinf(self.prior_weight)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        parts = list(chunks)
        if parts:
            self._start(describe(join(parts).logits))

    def _start(self, inside: Inside) -> None:
        self.inside_ = inside
        self.mixture_ = Mixture.empty(inside.shift.size)

    def _score(self, rows: Rows, threads: int) -> FloatArray:
        scores = np.empty(rows.shape[0])
        if not score_mixture(rows, self.inside_, self._settings, self.mixture_, scores, threads):
            raise _validate.invalid_row_error(rows, "logits")
        return scores

    def stream(self, outputs: OutputsLike, *, threads: int = 1, on_invalid: str = "raise") -> FloatArray:
        """Count each row in, score it, and let it teach what OoD looks like; goes on where the last call stopped.

        Any split of the rows into calls gives the same scores and state. A block with a bad row is refused whole
        (``on_invalid="raise"``) or scored NaN in that row and taken in without it (``"skip"``).
        """
        if not self._learns:
            return super().stream(outputs, threads=threads, on_invalid=on_invalid)
        rows = self._rows(outputs)
        _validate.one_of(on_invalid, "on_invalid", _validate.ON_INVALID)
        scores = np.empty(rows.shape[0])
        mixture = stream_mixture(rows, self.inside_, self._settings, self.mixture_, scores, threads)
        if mixture is not None:
            self.mixture_ = mixture
            return scores
        return _validate.stream_without_bad_rows(
            rows, scores, on_invalid, lambda good: self.stream(good, threads=threads)
        )

    @property
    def n_streamed_(self) -> int:
        """Rows taken in by ``stream`` since ``fit`` or ``reset``."""
        self._require_fitted()
        return int(self.mixture_.totals[ROWS])

    @property
    def state(self) -> StreamState:
        """What the stream has taught so far, as numbers for people; a copy."""
        self._require_fitted()
        from normscale._kernels.mixture_reference import inside_share

        inside, mixture, settings = self.inside_, self.mixture_, self._settings
        totals, recent = mixture.totals, max(float(mixture.recent.sum()), 1.0)
        has_ood = (mixture.outside > 0.0)[:, None]
        deviation = 1.0 / inside.inverse_deviation
        overall = (totals[RECENT_INSIDE] + settings.prior) / (totals[RECENT] + settings.prior)
        return StreamState(
            rows=self.n_streamed_,
            class_share=mixture.recent / recent,
            training_share=inside.share.copy(),
            id_share=np.array([inside_share(c, inside, settings, mixture) for c in range(inside.shift.size)]),
            overall_id_share=min(1.0, float(overall) / settings.tolerance),
            ood_weight=mixture.outside.copy(),
            ood_mean=inside.mean + np.where(has_ood, mixture.outside_mean, 0.0) * deviation,
            ood_variance=np.where(has_ood, mixture.outside_variance, 1.0) * deviation**2,
            covariate_shift=_covariate_shift(totals, settings.long_decay),
        )

    def reset(self) -> Self:
        """Forget the stream and start again from the training."""
        self._require_fitted()
        self._start(self.inside_)
        return self

    def merge(self, other: RobustNormScaling) -> NoReturn:
        """Two streams have no union here: what is remembered depends on the order of the rows."""
        raise InvalidInput(
            "robust norm-scaling detectors cannot be merged: each forgets old rows, so what they know depends on the "
            "order of the rows. Stream all rows through one detector, or keep one for each source. "
            "(To join training sets, use fit_chunks.)"
        )

    def _tensors(self) -> dict[str, NDArray[Any]]:
        parts = {"inside": self.inside_._asdict(), "stream": self.mixture_._asdict()}
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self._start(checked(Inside(*(tensors[f"inside.{name}"] for name in Inside._fields))))
        mixture = Mixture(*(tensors[f"stream.{name}"] for name in Mixture._fields))
        for name, part, empty in zip(Mixture._fields, mixture, self.mixture_, strict=True):
            if part.shape != empty.shape:
                raise InvalidInput(f"stream.{name} must have shape {empty.shape}; got {part.shape}.")
            if not np.isfinite(part).all() or (name != "outside_mean" and (part < 0.0).any()):
                raise InvalidInput(f"stream.{name} must be finite and not negative.")
        self.mixture_ = mixture


def _covariate_shift(totals: FloatArray, decay: float) -> float:
    """1 less the ratio of the counts above the quartile and above the median, each 1 in training.

    Where hardly any row lies above the median, there is no telling by that ratio, and the lack itself says it.
    """
    remembered = (1.0 - math.pow(decay, float(totals[ROWS]))) / (1.0 - decay)
    inside = float(totals[LONG_INSIDE]) + _FEW
    intact = min(1.0, (float(totals[LONG_TOP]) + _FEW) / inside)
    present = min(1.0, inside / (_HARDLY_ANY * remembered + _FEW))
    return 1.0 - intact * present
