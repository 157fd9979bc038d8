"""Robust norm-scaling: training says what belongs, the stream says what else is about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._kernels.mixture import (
    LONG_ID,
    LONG_TOP,
    RECENT,
    RECENT_ID,
    ROWS,
    ClassProfiles,
    Mixture,
    MixtureSettings,
    score_mixture,
    stream_mixture,
)
from normscale._kernels.mixture_reference import id_share
from normscale._validate import FloatArray
from normscale.detectors.base import Detector, Setting, join
from normscale.detectors.class_profiles import checked, class_profiles
from normscale.detectors.formula import LogitFormula, OodPosition
from normscale.detectors.registry import register
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs

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


@register
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
    profiles_ : ClassProfiles
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

    name = "robust_norm_scaling"
    title = "Robust Norm-Scaling"
    paper = "docs/robust.md, after Ravikumar & Roy"
    settings: tuple[Setting, ...] = (Setting.FROZEN, Setting.STREAM)
    parameters = {
        "memory": "how many rows of a predicted class are remembered",
        "prior_weight": "rows' worth of evidence before the stream counts as much as training; inf: it never learns",
        "tolerance": "a class is above suspicion while this share of its recent rows looks in-distribution",
    }

    profiles_: ClassProfiles
    mixture_: Mixture

    def __init__(self, memory: float = 50.0, prior_weight: float = 5.0, tolerance: float = 0.8) -> None:
        self.memory = _validate.positive(memory, "memory")
        if self.memory < 2.0:
            raise InvalidInput(f"memory must be at least 2 rows; got {memory!r}. The default is 50.")
        self.prior_weight = _validate.positive(prior_weight, "prior_weight", allow_inf=True)
        self.tolerance = _validate.fraction(tolerance, "tolerance", allow_one=True)
        if not self._learns:
            self.settings = (Setting.FROZEN,)

    @property
    def _mixture_settings(self) -> MixtureSettings:
        return MixtureSettings(
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
        if parts and self.baseline_ is not None:
            self.profiles_ = class_profiles(join(parts).logits, self.baseline_.moments)

    def _start(self) -> None:
        self.mixture_ = Mixture.empty(self.profiles_.shift.size)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        rows = outputs.logits
        scores = np.empty(rows.shape[0])
        if not score_mixture(rows, self.profiles_, self._mixture_settings, self.mixture_, scores, threads):
            raise _validate.invalid_row_error(rows, LOGITS, can_skip=True)
        return scores

    def _stream(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        rows = outputs.logits
        scores = np.empty(rows.shape[0])
        mixture = stream_mixture(rows, self.profiles_, self._mixture_settings, self.mixture_, scores, threads)
        if mixture is None:
            raise _validate.invalid_row_error(rows, LOGITS, can_skip=True)
        self.mixture_ = mixture
        return scores

    def formula(self) -> LogitFormula:
        """As the stream has left it; see :mod:`normscale._kernels.mixture_reference`."""
        profiles, mixture, settings = self.profiles_, self.mixture_, self._mixture_settings
        position = None
        if mixture.ood_weight.any():
            trust = mixture.ood_weight / (mixture.ood_weight + settings.prior)
            variance = 1.0 + trust[:, None] * (mixture.ood_variance - 1.0)
            position = OodPosition(
                mean=profiles.mean,
                inverse_deviation=profiles.inverse_deviation,
                ood_mean=trust[:, None] * mixture.ood_mean,
                inverse_variance=1.0 / variance,
                log_variance=np.log(variance).mean(axis=1),
                trust=trust,
            )
        return LogitFormula(
            "log_odds",
            profiles.shift,
            profiles.factor,
            weight=float(profiles.weights[0]),
            largest_weight=float(profiles.weights[1]),
            class_offset=np.log(self._id_shares()) - profiles.centre[0],
            ood_position=position,
        )

    def _id_shares(self) -> FloatArray:
        """(C,) the share of recent rows of each class that look in-distribution."""
        profiles, settings = self.profiles_, self._mixture_settings
        return np.array([id_share(c, profiles, settings, self.mixture_) for c in range(profiles.shift.size)])

    @property
    def n_streamed_(self) -> int:
        """Rows taken in by ``stream`` since ``fit`` or ``reset``."""
        self._require_fitted()
        return int(self.mixture_.totals[ROWS])

    @property
    def state(self) -> StreamState:
        """What the stream has taught so far, as numbers for people; a copy."""
        self._require_fitted()
        profiles, mixture, settings = self.profiles_, self.mixture_, self._mixture_settings
        totals, recent = mixture.totals, max(float(mixture.recent.sum()), 1.0)
        has_ood = (mixture.ood_weight > 0.0)[:, None]
        deviation = 1.0 / profiles.inverse_deviation
        overall = (totals[RECENT_ID] + settings.prior) / (totals[RECENT] + settings.prior)
        return StreamState(
            rows=self.n_streamed_,
            class_share=mixture.recent / recent,
            training_share=profiles.share.copy(),
            id_share=self._id_shares(),
            overall_id_share=min(1.0, float(overall) / settings.tolerance),
            ood_weight=mixture.ood_weight.copy(),
            ood_mean=profiles.mean + np.where(has_ood, mixture.ood_mean, 0.0) * deviation,
            ood_variance=np.where(has_ood, mixture.ood_variance, 1.0) * deviation**2,
            covariate_shift=_covariate_shift(totals, settings.long_decay),
        )

    def merge(self, other: RobustNormScaling) -> NoReturn:
        """Two streams have no union here: what is remembered depends on the order of the rows."""
        raise InvalidInput(
            "robust norm-scaling detectors cannot be merged: each forgets old rows, so what they know depends on the "
            "order of the rows. Stream all rows through one detector, or keep one for each source. "
            "(To join training sets, use fit_chunks.)"
        )

    def _tensors(self) -> dict[str, NDArray[Any]]:
        parts = {"profiles": self.profiles_._asdict(), "stream": self.mixture_._asdict()}
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.profiles_ = checked(ClassProfiles(*(tensors[f"profiles.{name}"] for name in ClassProfiles._fields)))
        self._start()
        mixture = Mixture(*(tensors[f"stream.{name}"] for name in Mixture._fields))
        for name, part, empty in zip(Mixture._fields, mixture, self.mixture_, strict=True):
            if part.shape != empty.shape:
                raise InvalidInput(f"stream.{name} must have shape {empty.shape}; got {part.shape}.")
            if not np.isfinite(part).all() or (name != "ood_mean" and (part < 0.0).any()):
                raise InvalidInput(f"stream.{name} must be finite and not negative.")
        self.mixture_ = mixture


def _covariate_shift(totals: FloatArray, decay: float) -> float:
    """1 less the ratio of the counts above the quartile and above the median, each 1 in training.

    Where hardly any row lies above the median, there is no telling by that ratio, and the lack itself says it.
    """
    remembered = (1.0 - math.pow(decay, float(totals[ROWS]))) / (1.0 - decay)
    id_count = float(totals[LONG_ID]) + _FEW
    intact = min(1.0, (float(totals[LONG_TOP]) + _FEW) / id_count)
    present = min(1.0, id_count / (_HARDLY_ANY * remembered + _FEW))
    return 1.0 - intact * present
