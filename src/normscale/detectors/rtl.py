"""RTL: what a linear function of the features says about another detector's scores, learned along the stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import About, join
from normscale.detectors.partial_fit import fit_held_out
from normscale.detectors.registry import register
from normscale.detectors.step import Score, Wrapper
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, ModelOutputs
from normscale.state import Numbers

_BLOCK = 4096
_TRAINING_ROWS_PER_WEIGHT = 3.0
_TARGETS = "targets"
"""The array of prepared rows that the scorer's scores are in."""


@register
class RTL(Wrapper):
    """Test-time linear regression of another detector's scores s on the features f; the prediction is the score.

    The stream's rows fit w in s = (f, 1) . w by least squares, one by one (recursive least squares); each row is taken
    in and then scored by what w says of it: what features do not explain is taken for noise. The ridge draws w to the
    fit of the training rows, from which the stream starts; the paper's starts from nothing. The paper's batch form is
    not here: it must see all rows before it scores the first.

    With the ridge alone the first rows of a stream move w far: of the first ten known rows a fifth was flagged at a
    threshold for 5 %. So once a threshold is set, the training rows count as three rows for every number in w.

    References
    ----------
    Fan et al., "A Simple Test-Time Method for Out-of-Distribution Detection" (ETLT), 2022; "Test-Time Linear
    Out-of-Distribution Detection" (RTL), CVPR 2024.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> features = rng.normal(size=(300, 4))
    >>> outputs = ModelOutputs(logits=features[:, :3] + rng.normal(size=(300, 3)), features=features)
    >>> detector = RTL("max_logit").fit(outputs)
    >>> detector.stream(outputs[:5]).shape, detector.weights_.shape
    ((5,), (5,))
    """

    name = "rtl"
    about = About(
        "RTL",
        "Fan et al. 2022, 2024",
        cost="the wrapped score; in a stream a product with a (d, d) matrix for every row",
        parameters={
            "score": "the detector whose scores are regressed on the features",
            "ridge": "how strongly the regression is held to that of the training rows",
        },
    )
    default_score = "energy"
    own_reads = (FEATURES,)
    _holds_threshold_in_stream = False

    class Fitted(NamedTuple):
        start: Annotated[FloatArray, Numbers("weights")]
        products: Annotated[FloatArray, Numbers("weights", "weights")]

    class State(NamedTuple):
        """The regression as the stream has left it."""

        weights: Annotated[FloatArray, Numbers("weights")]
        covariance: Annotated[FloatArray, Numbers("weights", "weights")]
        training: Annotated[float, Numbers(least=0.0)]
        """How many rows the training rows count as, besides the ridge."""

    fitted_: Fitted

    def __init__(self, score: Score = "energy", ridge: float = 1.0) -> None:
        self._score_by(score)
        self.ridge = _validate.positive(ridge, "ridge")

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        self._require_one_fit()
        train = join(chunks)
        scores = fit_held_out(self.scorer, train)
        width = train.features.shape[1] + 1
        gram, right = np.zeros((width, width)), np.zeros(width)
        for a in range(0, len(train), _BLOCK):
            rows = _with_constant(train.features[a : a + _BLOCK])
            gram += rows.T @ rows
            right += rows.T @ scores[a : a + _BLOCK]
        start = np.asarray(np.linalg.solve(gram + self.ridge * np.eye(width), right), dtype=np.float64)
        self._learn(self.Fitted(start, gram / len(train)))

    def _start(self) -> State:
        start = self.fitted_.start
        return self.State(start.copy(), np.eye(start.size) / self.ridge, 0.0)

    def _calmed(self, state: State) -> State:
        start, products = self.fitted_
        rows = _TRAINING_ROWS_PER_WEIGHT * start.size
        if state.training >= rows:
            return state
        information = np.linalg.inv(state.covariance)  # what w rests on: the ridge and the rows of the stream
        more = (rows - state.training) * products
        right = information @ state.weights + more @ start
        covariance: FloatArray = np.asarray(np.linalg.inv(information + more), dtype=np.float64)
        return self.State(covariance @ right, covariance, rows)

    def _checked_state(self, state: State) -> State:
        if state.weights.size != self.fitted_.start.size:
            raise InvalidInput(f"state.weights must have {self.fitted_.start.size} numbers; got {state.weights.size}.")
        return state

    def _score_at(self, state: State, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for a in range(0, len(outputs), _BLOCK):
            scores[a : a + _BLOCK] = _with_constant(outputs.features[a : a + _BLOCK]) @ state.weights
        for name in self.scorer.reads:  # the weights stand for them; what could not be scored passes for nothing
            if not _validate.finite_row_mask(outputs.array(name)).all():
                raise _validate.invalid_row_error(outputs.array(name), name, can_skip=True)
        return scores

    def _prepare(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        targets = self.scorer._score(outputs.only(*self.scorer.reads), threads)
        return ModelOutputs._trusted({FEATURES: _with_constant(outputs.features), _TARGETS: targets[:, None]})

    def _step(self, state: State, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, State]:
        weights, covariance = state.weights.copy(), state.covariance.copy()
        scores = np.empty(len(prepared))
        targets = prepared.array(_TARGETS)[:, 0].tolist()
        with np.errstate(over="ignore", invalid="ignore"):
            for i, (row, target) in enumerate(zip(prepared.features, targets, strict=True)):
                direction = covariance @ row
                gain: FloatArray = direction / (1.0 + row @ direction)
                weights += gain * (target - row @ weights)
                covariance -= np.outer(gain, direction)
                scores[i] = row @ weights
        if not (np.isfinite(scores).all() and np.isfinite(weights).all() and np.isfinite(covariance).all()):
            raise _validate.invalid_row_error(prepared.features[:, :-1], FEATURES, can_skip=True)
        return scores, state._replace(weights=weights, covariance=covariance)


def _with_constant(features: Rows) -> FloatArray:
    if not np.isfinite(features).all():
        raise _validate.invalid_row_error(features, FEATURES, can_skip=True)
    rows = np.ones((len(features), features.shape[1] + 1))
    rows[:, :-1] = features
    return rows
