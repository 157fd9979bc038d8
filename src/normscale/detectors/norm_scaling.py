"""Norm-scaling: z-score each class's logit with that class's running mean and deviation, then score."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscale import _validate
from normscale._kernels import BlockState
from normscale._validate import FloatArray
from normscale.detectors.base import Setting
from normscale.detectors.formula import LogitFormula, MomentFormula, offered_formula
from normscale.detectors.registry import register
from normscale.detectors.step import Step, require_logit_score
from normscale.detectors.wrapper import Score
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments
from normscale.outputs import LOGITS, ModelOutputs
from normscale.scaling import norm_scale, norm_scale_stream, norm_scaled_scores, scale_factor, stream_into

_FEWEST_STEADY_ROWS = 30.0
_STEADY_ROWS_PER_CLASS = 10.0
"""A row's own class lies up to sqrt(C - 1) deviations out, so a first row among as many rows of training adds at most a
tenth to that class's variance; measured, :meth:`NormScaling.set_threshold` then holds from the first row."""


@register
class NormScaling(Step):
    """How unsure the logits are, each in its own class's mean and deviation, which run along the stream.

    ``fit`` takes the mean and deviation of every logit over all training rows. ``stream`` takes each row into the
    running statistics, scales it by them, and scores it: what the paper does at test time. ``score`` scales by the
    statistics as they are.

    Parameters
    ----------
    score : str or Detector
        What scores the scaled logits: any detector that reads logits. ``"msp"`` is the paper.
    prior_weight : float
        How many streamed rows the training statistics count as. 1.0 is the paper: the stream soon speaks for
        itself. The size of the training set gives a cautious form; ``inf`` never moves. Once a threshold is set, they
        count as 30 rows or more, and 10 a class or more: against one row of training, the first rows of any stream look
        strange.
    temperature : float
        tau: divides the scaled logits. It does not change a ranking by ``"max_logit"``; for probabilities fit it with
        :func:`normscale.fit_temperature` on ``scale(validation_logits)``.

    Attributes
    ----------
    training_ : RunningMoments
        Of the training rows.
    running_ : RunningMoments
        Of the prior and every streamed row.
    training_weight_ : float
        How many streamed rows the training statistics count as now.

    References
    ----------
    Ravikumar & Roy, "Norm-Scaling for Out-of-Distribution Detection". The update printed there forgets the
    training statistics at once; implemented is the running mean that is meant.

    Examples
    --------
    >>> train = [[4.0, 0.0], [0.0, 8.0], [2.0, 4.0]]
    >>> detector = NormScaling().fit(train)
    >>> detector.score([[4.0, 0.0], [2.0, 4.0]]).round(4).tolist()
    [-2.4495, 0.0]
    >>> scores = detector.stream([[1.0, 2.0], [3.0, 1.0]])
    >>> detector.n_streamed_, detector.running_.weight
    (2, 3.0)
    """

    name = "norm_scaling"
    title = "Norm-Scaling"
    paper = "Ravikumar & Roy"
    cost = "one pass over the logits with a logit score; else the scaling, and the score"
    default_score = "msp"
    own_reads = (LOGITS,)
    parameters = {
        "score": "the detector that scores the scaled logits",
        "prior_weight": "how many streamed rows the training statistics count as; inf: they never move",
        "temperature": "divides the scaled logits",
    }

    running_: RunningMoments

    def __init__(self, score: Score = "msp", prior_weight: float = 1.0, temperature: float = 1.0) -> None:
        self._score_by(score)
        require_logit_score(self, self.scorer)
        self.prior_weight = _validate.positive(prior_weight, "prior_weight", allow_inf=True)
        self.temperature = _validate.positive(temperature, "temperature")
        if self._learns:
            self.settings = tuple(dict.fromkeys((Setting.FROZEN, Setting.STREAM, *self.scorer.settings)))
        # A score that is one formula on logits is computed without ever holding the scaled logits.
        plain = None if self.scorer.needs_fit else offered_formula(self.scorer)
        self._fused: tuple[str, float, float] | None = None
        if isinstance(plain, LogitFormula) and plain.is_plain:
            self._fused = plain.kind, self.temperature / float(plain.factor[0]), plain.weight

    @property
    def _learns(self) -> bool:
        return not math.isinf(self.prior_weight)

    @property
    def training_(self) -> RunningMoments:
        """Moments of the training rows."""
        self._require_fitted()
        assert self.baseline_ is not None  # fit reads logits
        return self.baseline_.moments

    @property
    def training_weight_(self) -> float:
        """How many streamed rows the training statistics count as: ``prior_weight``, or more with a threshold."""
        if not self._is_steady:
            return self.prior_weight
        return max(self.prior_weight, _FEWEST_STEADY_ROWS, _STEADY_ROWS_PER_CLASS * self.running_.mean.size)

    def _add_prior(self) -> None:
        more = self.training_weight_ - self.prior_weight if self._learns else 0.0
        if more > 0.0:
            self.running_ = self.training_.reweighted(more).merge(self.running_)

    def _start_own(self) -> None:
        self.running_ = self._prior()

    def _prior(self) -> RunningMoments:
        """The training statistics as what the stream starts from."""
        return self.training_.reweighted(self.training_weight_) if self._learns else self.training_

    def _separate(self) -> None:
        super()._separate()
        if "running_" in self.__dict__:
            self.running_ = self.running_.copy()

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        scaled = norm_scale(outputs.logits, self.running_, self.temperature)
        return ModelOutputs._trusted({LOGITS: scaled}, outputs.labels)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        if self._fused is None:
            return super()._score(outputs, threads)
        kind, temperature, weight = self._fused
        scores = norm_scaled_scores(outputs.logits, self.running_, kind, temperature, threads)
        return scores if weight == 1.0 else weight * scores

    def _stream(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        if not self._learns:
            return super()._stream(outputs, threads)
        if self._fused is not None:
            kind, temperature, weight = self._fused
            scores = stream_into(self.running_, outputs.logits, kind, temperature, threads)
            return scores if weight == 1.0 else weight * scores
        scaled = norm_scale_stream(outputs.logits, self.running_, self.temperature)
        scores = self.scorer._stream(ModelOutputs._trusted({LOGITS: scaled}), threads)
        self.running_.update(outputs.logits)
        return scores

    def formula(self) -> LogitFormula | None:
        if self._fused is None:
            return None
        kind, temperature, weight = self._fused
        moments = RunningMoments.wrap(self.running_.state)
        return LogitFormula(kind, moments.mean, scale_factor(moments, temperature), weight)

    def moment_formula(self) -> MomentFormula | None:
        return None if self._fused is None else MomentFormula(*self._fused, self.running_.state)

    def move_moments(self, state: BlockState) -> None:
        if not self._learns or self._fused is None:
            super().move_moments(state)
        with self._lock:
            self.running_ = RunningMoments.from_state(*state)

    @property
    def n_streamed_(self) -> int:
        """Rows taken in by ``stream`` since ``fit`` or ``reset``; with frozen statistics none ever are."""
        self._require_fitted()
        return round(self.running_.weight - self.training_weight_) if self._learns else 0

    def scale(self, logits: ArrayLike) -> FloatArray:
        """The scaled logits (n, C) under the current statistics; for calibration and for looking at them."""
        self._require_fitted()
        return norm_scale(logits, self.running_, self.temperature)

    def merge(self, other: NormScaling) -> NormScaling:
        """A detector that has seen both streams, for detectors that started from the same training statistics.

        Each stream's own rows are what its running statistics hold beyond the prior; the prior counts once.
        """
        self._require_fitted()
        other._require_fitted()
        same = self.get_params() == other.get_params() and self.training_weight_ == other.training_weight_
        if not same or self.training_ != other.training_:
            raise InvalidInput(
                "only norm-scaling detectors with equal parameters and equal training statistics can be merged; "
                "fit once, save, and load that file in every worker. (To join training sets, use fit_chunks.)"
            )
        if self.scorer.has_running_statistics:
            raise InvalidInput(f"{self.name} cannot be merged: what {self.scorer.name} learned depends on the order.")
        merged = copy.copy(self)
        if self._learns:
            merged.running_ = self.running_.merge(other.running_.without(self._prior()))
        return merged

    def _own_tensors(self) -> dict[str, NDArray[Any]]:
        if not self._learns:
            return {}
        weight, mean, m2 = self.running_.state
        prior = {"running.prior": np.array([self.training_weight_])} if self._is_steady else {}
        return {**prior, "running.weight": np.array([weight]), "running.mean": mean, "running.m2": m2}

    def _restore_own(self, tensors: dict[str, NDArray[Any]]) -> None:
        if self.baseline_ is None:
            raise InvalidInput("the training statistics are missing.")
        self._is_steady = False
        self._start_own()
        if self._learns:
            self._is_steady = "running.prior" in tensors
            if self._is_steady and float(tensors["running.prior"][0]) != self.training_weight_:
                raise InvalidInput(f"running.prior must be {self.training_weight_:g} rows.")
            moments = RunningMoments.from_state(
                float(tensors["running.weight"][0]), tensors["running.mean"], tensors["running.m2"]
            )
            if moments.mean.shape != self.running_.mean.shape or moments.weight < self.training_weight_ * (1.0 - 1e-12):
                raise InvalidInput(
                    f"the running statistics must have shape {self.running_.mean.shape} and the prior's weight or more."
                )
            self.running_ = moments
