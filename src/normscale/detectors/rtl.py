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
_STEADY_ROWS_PER_WEIGHT = 3.0


@register
class RTL(Wrapper):
    """Test-time linear regression of another detector's scores s on the features f; the prediction is the score.

    The stream's rows fit w in s = (f, 1) . w by least squares, one by one (recursive least squares); each row is taken
    in and then scored by what w says of it: what features do not explain is taken for noise. The ridge draws w to the
    fit of the training rows, from which the stream starts; the paper's starts from nothing. The paper's batch form is
    not here: it must see all rows before it scores the first.

    With the ridge alone the first rows of a stream move w far: of the first ten known rows a fifth was flagged at a
    threshold for 5 %. So once a threshold is set, the training rows count as three rows for every number in w.

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
    products_ : array (d + 1, d + 1)
        Mean of (f, 1) (f, 1)' over the training rows.

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
    products_: FloatArray
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
        gram, right = np.zeros((width, width)), np.zeros(width)
        for a in range(0, len(train), _BLOCK):
            rows = _with_constant(train.features[a : a + _BLOCK])
            gram += rows.T @ rows
            right += rows.T @ scores[a : a + _BLOCK]
        self.products_ = gram / len(train)
        self.start_ = np.asarray(np.linalg.solve(gram + self.ridge * np.eye(width), right), dtype=np.float64)

    def _add_prior(self) -> None:
        information = np.linalg.inv(self.covariance_)  # what w rests on: the ridge and the rows of the stream
        more = _STEADY_ROWS_PER_WEIGHT * self.start_.size * self.products_
        right = information @ self.weights_ + more @ self.start_
        self.covariance_ = np.asarray(np.linalg.inv(information + more), dtype=np.float64)
        self.weights_ = self.covariance_ @ right

    def _start_own(self) -> None:
        self.weights_ = self.start_.copy()
        width = self.start_.size
        rows = _STEADY_ROWS_PER_WEIGHT * width if self._is_steady else 0.0
        information = self.ridge * np.eye(width) + rows * self.products_
        self.covariance_ = np.asarray(np.linalg.inv(information), dtype=np.float64)

    def _separate(self) -> None:
        super()._separate()
        if "weights_" in self.__dict__:
            self.weights_, self.covariance_ = self.weights_.copy(), self.covariance_.copy()

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for a in range(0, len(outputs), _BLOCK):
            scores[a : a + _BLOCK] = _with_constant(outputs.features[a : a + _BLOCK]) @ self.weights_
        for name in self.scorer.reads:  # the weights stand for them; what could not be scored passes for nothing
            if not _validate.finite_row_mask(outputs.array(name)).all():
                raise _validate.invalid_row_error(outputs.array(name), name, can_skip=True)
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
        steady = {"steady": np.ones(1)} if self._is_steady else {}
        own = {"start": self.start_, "products": self.products_}
        return {**own, **steady, "weights": self.weights_, "covariance": self.covariance_}

    def _restore_own(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.start_ = _validate.as_finite_vector(tensors["start"], "start")
        self.weights_ = _validate.as_finite_vector(tensors["weights"], "weights")
        self.covariance_, self.products_ = tensors["covariance"], tensors["products"]
        self._is_steady = "steady" in tensors
        width = self.start_.size
        if self.weights_.size != width or not self.covariance_.shape == self.products_.shape == (width, width):
            raise InvalidInput(f"weights must have {width} numbers, covariance and products as many rows and columns.")
        if not (np.isfinite(self.covariance_).all() and np.isfinite(self.products_).all()):
            raise InvalidInput("covariance and products must be finite.")


def _with_constant(features: Rows) -> FloatArray:
    if not np.isfinite(features).all():
        raise _validate.invalid_row_error(features, FEATURES, can_skip=True)
    rows = np.ones((len(features), features.shape[1] + 1))
    rows[:, :-1] = features
    return rows
