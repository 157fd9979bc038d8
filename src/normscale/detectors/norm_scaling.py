"""Norm-scaling: z-score each class's logit with that class's running mean and deviation, then score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy import empty, ndarray
from numpy.typing import ArrayLike, NDArray

from normscale import _validate
from normscale._kernels import KINDS, BlockState, active, backend, combine, native, stream_scores
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.base import About, Detector
from normscale.detectors.formula import LogitFormula, MomentFormula, offered_formula
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import block_rows
from normscale.detectors.step import Score, Step
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments, declared_moments, scale_factor
from normscale.outputs import LOGITS, ModelOutputs
from normscale.scaling import norm_scale, norm_scale_as_printed, norm_scale_stream
from normscale.scores import scaled_scores
from normscale.state import Numbers

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_made = tuple.__new__
"""Makes a NamedTuple in half the time of a call of its class."""
_LEAST_TRAINING_WEIGHT = 30.0
_TRAINING_WEIGHT_PER_CLASS = 10.0
"""A row's own class lies up to sqrt(C - 1) deviations out, so a first row among as many rows of training adds at most a
tenth to that class's variance; measured, :meth:`NormScaling.set_threshold` then holds from the first row."""


@register
class NormScaling(Step):
    """How unsure the logits are, each in its own class's mean and deviation, which run along the stream.

    ``fit`` takes the mean and deviation of every logit over all training rows. ``stream`` takes each row into the
    running statistics, scales it by them, and scores it: what the paper does at test time. ``score`` scales by the
    statistics as they are. Once a threshold is set, training counts as 30 rows or more, and 10 a class or more: against
    one row of training, the first rows of any stream look strange. For probabilities, fit the temperature with
    :func:`normscale.fit_temperature` on ``scale(validation_logits)``.

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
    about = About(
        "Norm-Scaling",
        'Ravikumar & Roy: "Norm-Scaling for Out-of-Distribution Detection"',
        cost="one pass over the logits with a logit score; else the scaling, and the score",
        parameters={
            "score": "the detector that scores the scaled logits",
            "prior_weight": "how many streamed rows training counts as, 1 in the paper; inf: the statistics never move",
            "temperature": "divides the scaled logits",
            "update": "running_mean, or as_printed: equations 4 to 7 of the paper to the letter, which forget training",
        },
    )
    default_score = "msp"
    own_reads = (LOGITS,)
    logits_alone = True

    class State(NamedTuple):
        """Moments of the logits of training and of every row of the stream."""

        training: Annotated[float, Numbers(least=0.0)]
        """How many rows the training statistics count as in them."""
        moments: Annotated[BlockState, declared_moments(LOGITS)]
        scorer: Any = None
        """The running statistics of the detector that scores, where it has any."""

        def check(self) -> None:
            if self.moments.weight < self.training * (1.0 - 1e-12):
                raise InvalidInput("state.moments must have the weight of the training statistics or more.")

    state_: State

    def __init__(
        self, score: Score = "msp", prior_weight: float = 1.0, temperature: float = 1.0, update: str = "running_mean"
    ) -> None:
        self._score_by(score)
        self.update = _validate.one_of(update, "update", ("running_mean", "as_printed"))
        self.prior_weight = _validate.positive(prior_weight, "prior_weight", allow_inf=True)
        self._learns = not math.isinf(self.prior_weight)
        self._runs = self._learns or self.scorer._runs
        self.temperature = _validate.positive(temperature, "temperature")
        # A score that is one formula on logits is computed without ever holding the scaled logits.
        plain = None if self.scorer._needs_fit else offered_formula(self.scorer)
        self._fused: tuple[str, float, float] | None = None
        if isinstance(plain, LogitFormula) and plain.is_plain:
            self._fused = plain.kind, self.temperature / float(plain.factor[0]), plain.weight
        self._fused_stream: tuple[int, float, float] | None = None
        if self._fused is not None and self._learns and update == "running_mean":
            self._fused_stream = KINDS[self._fused[0]], 1.0 / self._fused[1], self._fused[2]
        own = type(self)._step is NormScaling._step and type(self)._prepare is NormScaling._prepare
        self._fused_row = self._fused_stream if own else None  # a subclass may stream in a way of its own

    @property
    def training_(self) -> RunningMoments:
        """Moments of the training rows."""
        self._require_fitted()
        assert self._baseline is not None  # fit reads logits
        return self._baseline.moments

    @property
    def running_(self) -> RunningMoments:
        """Moments of the training rows, as so many, and every streamed row."""
        self._require_fitted()
        return RunningMoments.wrap(self._current().moments)

    @property
    def training_weight_(self) -> float:
        """How many streamed rows the training statistics count as: ``prior_weight``, or more with a threshold."""
        self._require_fitted()
        return float(self._current().training) if self._learns else self.prior_weight

    def _start(self) -> State:
        moments = self.training_.reweighted(self.prior_weight).state if self._learns else self.training_.state
        return self.State(moments.weight, moments, self.scorer._start() if self.scorer._runs else None)

    def _weighted_for_threshold(self, state: State) -> State:
        rows = max(_LEAST_TRAINING_WEIGHT, _TRAINING_WEIGHT_PER_CLASS * state.moments.mean.size)
        if state.training < rows and self._learns:
            more = self.training_.reweighted(rows - state.training).state
            state = state._replace(training=rows, moments=combine(more, state.moments))
        return (
            state if state.scorer is None else state._replace(scorer=self.scorer._weighted_for_threshold(state.scorer))
        )

    def _empty_state(self) -> State:
        return self.State(0.0, RunningMoments(self.training_.mean.size).state)

    def merge(self, first: State, second: State) -> State:
        if self.update == "as_printed":
            return Detector.merge(self, first, second)  # refuses
        if self.scorer._runs:
            self.scorer.merge(first.scorer, second.scorer)  # refuses
        rows = second.moments
        if second.training > 0.0:
            rows = RunningMoments.wrap(rows).without(self.training_.reweighted(second.training)).state
        return first._replace(moments=combine(first.moments, rows))

    def _moments(self, state: State) -> BlockState | None:
        return state.moments if self._fused_stream else None

    def _of_moments(self, moments: BlockState) -> State:
        return self.State(0.0, moments)

    def _read_state(self, arrays: Mapping[str, NDArray[Any]], name: str = "state") -> State:
        return Detector._read_state(self, arrays, name)

    def _checked_state(self, state: State) -> State:
        return state if state.scorer is None else state._replace(scorer=self.scorer._checked_state(state.scorer))

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        """The training rows, scaled, for the scorer's fit."""
        scaled = norm_scale(outputs.logits, self.training_, self.temperature)
        return ModelOutputs._trusted({LOGITS: scaled}, outputs.labels)

    def _score_at(self, state: State, outputs: ModelOutputs, threads: int) -> FloatArray:
        moments = RunningMoments.wrap(state.moments)
        if self._fused is None:
            scores = np.empty(len(outputs))
            for where in self._blocks(outputs.logits):
                scaled = norm_scale(outputs.logits[where], moments, self.temperature)
                scores[where] = self.scorer._score_at(state.scorer, ModelOutputs._trusted({LOGITS: scaled}), threads)
            return scores
        kind, temperature, weight = self._fused
        scores = scaled_scores(outputs.logits, moments.mean, scale_factor(moments, temperature), kind, threads)
        return scores if weight == 1.0 else weight * scores

    def _prepare(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        return outputs

    def _step(self, state: State, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, State]:
        rows = prepared.logits
        if self._fused_stream is not None:
            kind, inverse_temperature, weight = self._fused_stream
            scores = np.empty(len(rows))
            after = stream_scores(rows, *state.moments, kind, inverse_temperature, scores, threads)
            if after is None:
                raise _validate.invalid_row_error(rows, LOGITS, can_skip=True)
            return scores if weight == 1.0 else weight * scores, self.State(state.training, after)
        moments, scorer, scores = RunningMoments.wrap(state.moments), state.scorer, np.empty(len(rows))
        for where in self._blocks(rows):
            if self._learns and self.update == "as_printed":
                scaled, moments = norm_scale_as_printed(rows[where], moments, self.temperature)
            else:
                scaled = (norm_scale_stream if self._learns else norm_scale)(rows[where], moments, self.temperature)
                if self._learns:
                    moments.update(rows[where])
            inner = self.scorer._prepare(ModelOutputs._trusted({LOGITS: scaled}), threads)
            scores[where], scorer = self.scorer._step(scorer, inner, threads)
        return scores, self.State(state.training, moments.state, scorer)

    def _blocks(self, rows: Rows) -> list[slice]:
        """Where blocks of rows are, so that scaled logits take little memory; one where the scorer's state may move.

        Such a state may be changed in place, and must not be where a later row is refused.
        """
        size = max(1, len(rows)) if self.scorer._runs else block_rows(4 * rows.shape[1])
        return [slice(a, a + size) for a in range(0, len(rows), size)]

    def _step_table(
        self, table: FloatArray, places: IntArray, edges: IntArray, prepared: ModelOutputs, threads: int
    ) -> FloatArray | None:
        if self._fused_stream is None or backend() != "numba":
            return None
        kind, inverse_temperature, weight = self._fused_stream
        rows, scores, before = native(prepared.logits), np.empty(len(prepared)), table[places]
        if not active().stream_groups(rows, table, places, edges, kind, inverse_temperature, scores):
            table[places] = before
            raise _validate.invalid_row_error(prepared.logits, LOGITS, can_skip=True)
        return scores if weight == 1.0 else weight * scores

    def _stream_row(self, row: object) -> FloatArray | None:
        """One row as the kernel reads it; written out, because every call on the way costs a tenth of its time."""
        fused = self._fused_row
        if fused is None or type(row) is not ndarray or not row.flags.c_contiguous:
            return None
        dtype = row.dtype
        if dtype is not _SINGLE and dtype is not _DOUBLE:
            return None
        kind, inverse_temperature, weight = fused
        low, high = self._logit_limits
        lock = self._lock
        lock.acquire()  # a "with" takes four times as long
        try:
            state = self.state_
            if state is None:
                return None
            training, (n, mean, m2), _ = state
            size = mean.size
            if row.shape != (1, size):
                return None
            new_mean, new_m2, score = empty(size), empty(size), empty(1)
            if not active().stream_row(row, n, mean, m2, kind, inverse_temperature, low, high, new_mean, new_m2, score):
                return None
            self.state_ = _made(self.State, (training, _made(BlockState, (n + 1.0, new_mean, new_m2)), None))
        finally:
            lock.release()
        return score if weight == 1.0 else weight * score

    def _formula(self) -> LogitFormula | None:
        if self._fused is None:
            return None
        kind, temperature, weight = self._fused
        moments = self.running_
        return LogitFormula(kind, moments.mean, scale_factor(moments, temperature), weight)

    def _moment_formula(self) -> MomentFormula | None:
        printed = self.update == "as_printed"
        return None if self._fused is None or printed else MomentFormula(*self._fused, self.running_.state)

    @property
    def n_streamed_(self) -> int:
        """Rows taken in by ``stream`` since ``fit`` or ``reset``; with frozen statistics none ever are."""
        self._require_fitted()
        return round(self.running_.weight - self.training_weight_) if self._learns else 0

    def scale(self, logits: ArrayLike) -> FloatArray:
        """The scaled logits (n, C) under the current statistics; for calibration and for looking at them."""
        self._require_fitted()
        return norm_scale(logits, self.running_, self.temperature)
