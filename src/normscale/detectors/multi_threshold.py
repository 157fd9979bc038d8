"""MSP with one threshold for each predicted class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector, Setting
from normscale.detectors.formula import SumFormula, plain_formula
from normscale.detectors.registry import register
from normscale.detectors.threshold import Threshold
from normscale.metrics.thresholds import thresholds_per_class
from normscale.outputs import LOGITS, ModelOutputs
from normscale.scores import msp_score
from normscale.state import Numbers


@register
class MultiThreshold(Detector):
    """How far the log-odds of being wrong lie above the threshold of the predicted class.

    ``fit`` sets, for each class, the threshold below which a share ``keep`` of the rows predicted as that class
    lie; a class that is never predicted gets the threshold of all rows. The score is the log-odds less the
    threshold, so 0 is the natural place to decide. The paper's numbers average one AUROC per predicted class
    (:func:`normscale.evaluate_per_class`), within which the thresholds make no difference.

    Examples
    --------
    >>> detector = MultiThreshold(keep=0.5).fit([[2.0, 0.0], [4.0, 0.0], [0.0, 9.0]])
    >>> detector.thresholds_.round(12).tolist()
    [-4.0, -9.0]
    >>> detector.score([[3.0, 0.0], [0.0, 3.0]]).round(12).tolist()
    [1.0, 6.0]
    >>> detector.predict([[5.0, 0.0], [0.0, 5.0]]).tolist()
    [False, True]
    """

    name = "multi_threshold"
    title = "Multi-Threshold"
    paper = "Ravikumar & Roy"
    cost = "one pass over the logits"
    settings = (Setting.FROZEN, Setting.PER_CLASS)
    parameters = {"keep": "share of in-distribution rows of each class to accept"}

    class Fitted(NamedTuple):
        """The threshold of every class."""

        thresholds: Annotated[FloatArray, Numbers(LOGITS)]

    fitted_: Fitted

    def __init__(self, keep: float = 0.95) -> None:
        self.keep = _validate.fraction(keep, "keep", allow_one=True)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        scores, predicted = [], []
        for chunk in chunks:
            scores.append(msp_score(chunk.logits))
            predicted.append(chunk.predicted)
        if scores and self.widths_ is not None:
            every = np.concatenate(scores)
            n_classes = self.widths_[LOGITS]
            thresholds = thresholds_per_class(every, np.concatenate(predicted), n_classes, self.keep)
            self._learn(self.Fitted(thresholds))
            self.threshold_ = Threshold(0.0, keep=self.keep, n=int(every.size))

    def why_all_rows(self) -> str:
        return "its thresholds are quantiles of all training scores"

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        excess: FloatArray = msp_score(outputs.logits, threads=threads)
        excess -= self.fitted_.thresholds[outputs.predicted]
        return excess

    def formula(self) -> SumFormula:
        return SumFormula(((1.0, plain_formula("log_odds")),), self.fitted_.thresholds)
