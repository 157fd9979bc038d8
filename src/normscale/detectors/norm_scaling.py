"""Norm-scaling: z-score each class's logit with that class's running mean and deviation, then score."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscale import _validate
from normscale._kernels import KINDS
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import Detector, OutputsLike
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments
from normscale.outputs import ModelOutputs
from normscale.scaling import frozen_scores, norm_scale, stream_into


class NormScaling(Detector):
    """The paper's detector.

    ``fit`` takes the mean and deviation of every logit over all training rows. ``stream`` takes each row into the
    running statistics, scales it by them, and scores it: what the paper does at test time. ``score`` scales by the
    statistics as they are.

    Parameters
    ----------
    score : {"msp", "max", "energy"}
        What is read off the scaled logits: the log-odds of the prediction being wrong (the paper), minus the
        largest, or minus the log-sum-exp.
    prior_weight : float
        How many streamed rows the training statistics count as. 1.0 is the paper: the stream soon speaks for
        itself. The size of the training set gives a cautious form; ``inf`` never moves.
    temperature : float
        tau: divides the scaled logits. It does not change a ranking by ``"max"``; for probabilities fit it with
        :func:`normscale.fit_temperature` on ``scale(validation_logits)``.

    Attributes
    ----------
    training_ : RunningMoments
        Of the training rows.
    running_ : RunningMoments
        Of the prior and every streamed row.

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
    """

    name: ClassVar[str] = "norm_scaling"
    parameters: ClassVar[tuple[str, ...]] = ("score", "prior_weight", "temperature")

    training_: RunningMoments
    running_: RunningMoments

    def __init__(self, score: str = "msp", prior_weight: float = 1.0, temperature: float = 1.0) -> None:
        """Store the parameters."""
        self.score_kind = _validate.one_of(score, "score", KINDS)
        self.prior_weight = _validate.positive(prior_weight, "prior_weight", allow_inf=True)
        self.temperature = _validate.positive(temperature, "temperature")

    def get_params(self) -> dict[str, Any]:
        """Return the constructor's arguments; ``score`` is kept as ``score_kind``, beside the method of that name."""
        return {
            "score": self.score_kind,
            "prior_weight": self.prior_weight,
            "temperature": self.temperature,
        }

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        training: RunningMoments | None = None
        for chunk in chunks:
            if training is None:
                training = RunningMoments(chunk.n_classes)
            training.update(chunk.logits)
        if training is not None:
            self._start(training)

    def _start(self, training: RunningMoments) -> None:
        self.training_ = training
        self.running_ = self._prior()

    def _prior(self) -> RunningMoments:
        """The training statistics as what the stream starts from."""
        if math.isinf(self.prior_weight):
            return self.training_
        return self.training_.reweighted(self.prior_weight)

    def _score(self, rows: Rows, threads: int) -> FloatArray:
        return frozen_scores(rows, self.running_, self.score_kind, self.temperature, threads)

    def stream(self, outputs: OutputsLike, *, threads: int = 1, on_invalid: str = "raise") -> FloatArray:
        """Take each row in, then score it; goes on where the last call stopped.

        Any split of the rows into calls gives the same scores and state. A block with a bad row is refused whole
        (``on_invalid="raise"``) or scored NaN in that row and taken in without it (``"skip"``).

        Examples
        --------
        >>> detector = NormScaling().fit([[4.0, 0.0], [0.0, 8.0]])
        >>> first = detector.stream([[1.0, 2.0], [3.0, 1.0]])
        >>> second = detector.stream([[0.5, 0.5]])
        >>> detector.n_streamed_, detector.running_.weight
        (3, 4.0)
        """
        if self.prior_weight == math.inf:
            return super().stream(outputs, threads=threads, on_invalid=on_invalid)
        rows = self._rows(outputs)
        return stream_into(self.running_, rows, self.score_kind, self.temperature, threads, on_invalid)

    def __copy__(self) -> Self:
        """A detector that may stream on by itself: the running statistics are its own."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        if self.is_fitted:
            twin.running_ = self.running_.copy()
        return twin

    @property
    def n_streamed_(self) -> int:
        """Rows taken in by ``stream`` since ``fit`` or ``reset``; with frozen statistics none ever are."""
        self._require_fitted()
        return 0 if math.isinf(self.prior_weight) else round(self.running_.weight - self.prior_weight)

    def scale(self, logits: ArrayLike) -> FloatArray:
        """The scaled logits (n, C) under the current statistics; for calibration and for looking at them."""
        self._require_fitted()
        return norm_scale(logits, self.running_, self.temperature)

    def reset(self) -> Self:
        """Forget the stream and start again from the training statistics."""
        self._require_fitted()
        self._start(self.training_)
        return self

    def merge(self, other: NormScaling) -> NormScaling:
        """A detector that has seen both streams, for detectors that started from the same training statistics.

        Each stream's own rows are what its running statistics hold beyond the prior; the prior counts once.
        """
        self._require_fitted()
        other._require_fitted()
        if self.get_params() != other.get_params() or self.training_ != other.training_:
            raise InvalidInput(
                "only norm-scaling detectors with equal parameters and equal training statistics can be merged; "
                "fit once, save, and load that file in every worker. (To join training sets, use fit_chunks.)"
            )
        merged = copy.copy(self)
        if not math.isinf(self.prior_weight):
            merged.running_ = self.running_.merge(other.running_.without(self._prior()))
        return merged

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return {
            "training.weight": np.array([self.training_.weight]),
            "training.mean": self.training_.mean,
            "training.m2": self.training_.m2,
            "running.weight": np.array([self.running_.weight]),
            "running.mean": self.running_.mean,
            "running.m2": self.running_.m2,
        }

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.training_, self.running_ = (
            RunningMoments.from_state(
                float(tensors[f"{part}.weight"][0]), tensors[f"{part}.mean"], tensors[f"{part}.m2"]
            )
            for part in ("training", "running")
        )
