"""RTL: what a linear function of the features says about another detector's scores, learned along the stream."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import Setting, join
from normscale.detectors.registry import register
from normscale.detectors.wrapper import Score, Wrapper
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, ModelOutputs

_BLOCK = 4096


@register
class RTL(Wrapper):
    """Test-time linear regression of another detector's scores s on the features f; the prediction is the score.

    The stream's rows fit w in s = (f, 1) . w by least squares, one by one (recursive least squares); each row is taken
    in and then scored by what w says of it: what features do not explain is taken for noise. The ridge draws w to the
    fit of the training rows, from which the stream starts; the paper's starts from nothing. The paper's batch form is
    not here: it must see all rows before it scores the first.

    Parameters
    ----------
    score : str or Detector
        The detector whose scores are regressed; as fitted, its own statistics do not run.
    ridge : float
        How strongly w is held to the training rows' fit.

    Attributes
    ----------
    weights_ : array (d + 1,)
        w, the constant last.

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
    title = "RTL"
    paper = "Fan et al. 2022, 2024"
    cost = "the wrapped score; in a stream a product with a (d, d) matrix for every row"
    default_score = "energy"
    own_reads = (FEATURES,)
    settings: tuple[Setting, ...] = (Setting.FROZEN, Setting.STREAM)
    parameters = {
        "score": "the detector whose scores are regressed on the features",
        "ridge": "how strongly the regression is held to that of the training rows",
    }

    start_: FloatArray
    weights_: FloatArray
    covariance_: FloatArray

    def __init__(self, score: Score = "energy", ridge: float = 1.0) -> None:
        self._score_by(score)
        self.ridge = _validate.positive(ridge, "ridge")

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        self._require_one_fit()
        train = join(chunks)
        self.scorer = copy.copy(self.scorer)
        scores = self.scorer.fit_held_out(train)
        width = train.features.shape[1] + 1
        gram, right = self.ridge * np.eye(width), np.zeros(width)
        for a in range(0, len(train), _BLOCK):
            rows = _with_constant(train.features[a : a + _BLOCK])
            gram += rows.T @ rows
            right += rows.T @ scores[a : a + _BLOCK]
        self.start_ = np.asarray(np.linalg.solve(gram, right), dtype=np.float64)

    def _start_own(self) -> None:
        self.weights_ = self.start_.copy()
        self.covariance_ = np.eye(self.start_.size) / self.ridge

    def _separate(self) -> None:
        super()._separate()
        if "weights_" in self.__dict__:
            self.weights_, self.covariance_ = self.weights_.copy(), self.covariance_.copy()

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for a in range(0, len(outputs), _BLOCK):
            scores[a : a + _BLOCK] = _with_constant(outputs.features[a : a + _BLOCK]) @ self.weights_
        return scores

    def _stream(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        targets = self.scorer._score(outputs.only(*self.scorer.reads), threads)
        weights, covariance = self.weights_.copy(), self.covariance_.copy()
        scores = np.empty(len(outputs))
        for i, (row, target) in enumerate(zip(_with_constant(outputs.features), targets.tolist(), strict=True)):
            direction = covariance @ row
            gain: FloatArray = direction / (1.0 + row @ direction)
            weights += gain * (target - row @ weights)
            covariance -= np.outer(gain, direction)
            scores[i] = row @ weights
        if not (np.isfinite(scores).all() and np.isfinite(weights).all() and np.isfinite(covariance).all()):
            raise InvalidInput("a row of the features is too large to be taken in; nothing was.")
        self.weights_, self.covariance_ = weights, covariance
        return scores

    def _own_tensors(self) -> dict[str, NDArray[Any]]:
        return {"start": self.start_, "weights": self.weights_, "covariance": self.covariance_}

    def _restore_own(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.start_ = _validate.as_finite_vector(tensors["start"], "start")
        self.weights_ = _validate.as_finite_vector(tensors["weights"], "weights")
        self.covariance_ = tensors["covariance"]
        width = self.start_.size
        if self.weights_.size != width or self.covariance_.shape != (width, width):
            raise InvalidInput(f"weights must have {width} numbers and covariance as many rows and columns.")
        if not np.isfinite(self.covariance_).all():
            raise InvalidInput("covariance must be finite.")


def _with_constant(features: Rows) -> FloatArray:
    if not np.isfinite(features).all():
        raise _validate.invalid_row_error(features, FEATURES, can_skip=True)
    rows = np.ones((len(features), features.shape[1] + 1))
    rows[:, :-1] = features
    return rows
