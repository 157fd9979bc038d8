"""The largest logit, standardised within its predicted class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._kernels.members import members_of_each
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.common_scale import beyond_rounding
from normscale.detectors.registry import register
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs
from normscale.scores import max_logit_score


@register
class StandardisedMaxLogit(Detector):
    """How many deviations the largest logit lies below what is usual for its predicted class.

    With c the predicted class, and mu_c and sigma_c mean and deviation (n - 1 in the denominator) of the largest logit
    over the training rows predicted as c,

        score = -(max_j z_j - mu_c) / sigma_c

    A class with fewer than two such rows, or with equal ones, takes mean and deviation of all rows.

    Attributes
    ----------
    means_, deviations_ : arrays of shape (C,)

    References
    ----------
    Jung et al., "Standardized Max Logits: A Simple yet Effective Approach for Identifying Unexpected Road Obstacles in
    Urban-Scene Segmentation", 2021.

    Examples
    --------
    >>> detector = StandardisedMaxLogit().fit([[2.0, 0.0], [4.0, 0.0], [0.0, 10.0], [0.0, 30.0]])
    >>> detector.means_.tolist()
    [3.0, 20.0]
    >>> detector.score([[3.0, 0.0], [0.0, 3.0]]).round(4).tolist()
    [0.0, 1.2021]
    """

    name = "standardised_max_logit"
    title = "Standardised MaxLogit"
    paper = "Jung et al. 2021"
    cost = "two passes over the logits"

    means_: FloatArray
    deviations_: FloatArray

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        tops, predicted = [], []
        for chunk in chunks:
            tops.append(-max_logit_score(chunk.logits))
            predicted.append(chunk.predicted)
        if not tops or self.widths_ is None:
            return
        top, classes = np.concatenate(tops), np.concatenate(predicted)
        every = _deviation(top)
        self.means_ = np.full(self.widths_[LOGITS], top.mean())
        self.deviations_ = np.full(self.widths_[LOGITS], every or 1.0)
        for c, members in members_of_each(classes):
            own = top[members]
            deviation = _deviation(own)
            if deviation > 0.0:
                self.means_[c], self.deviations_[c] = own.mean(), deviation

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        score: FloatArray = max_logit_score(outputs.logits, threads=threads)
        predicted = outputs.predicted
        score += self.means_[predicted]
        score /= self.deviations_[predicted]
        return score

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return {"means": self.means_, "deviations": self.deviations_}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.means_ = _validate.as_finite_vector(tensors["means"], "means")
        self.deviations_ = _validate.as_finite_vector(tensors["deviations"], "deviations")
        if self.means_.shape != self.deviations_.shape or not (self.deviations_ > 0.0).all():
            raise InvalidInput("means and deviations must have a number for each class, deviations above 0.")


def _deviation(values: FloatArray) -> float:
    """The sample deviation; 0 for one value, and for equal ones."""
    deviation = float(values.std(ddof=1)) if values.size > 1 else 0.0
    return deviation if beyond_rounding(deviation, values) else 0.0
