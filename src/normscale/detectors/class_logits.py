"""Logits compared with those of the same predicted class: KL-matching, standardised MaxLogit, Multi-Threshold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._kernels.members import members_of_each
from normscale._validate import FloatArray, IntArray
from normscale.detectors.base import About, Detector
from normscale.detectors.class_profiles import ClassMoments
from normscale.detectors.formula import SumFormula, plain_formula
from normscale.detectors.partial_fit import ROUNDING, merged
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of, by_blocks, log_softmax
from normscale.detectors.threshold import Threshold
from normscale.metrics.thresholds import thresholds_per_class
from normscale.outputs import LOGITS, ModelOutputs
from normscale.scores import max_logit_score, msp_score
from normscale.state import Numbers


class _LogSum(NamedTuple):
    """How many rows there are, and the logarithm of the sum of their softmax."""

    n: int
    log_sum: FloatArray

    def merge(self, other: _LogSum) -> _LogSum:
        return _LogSum(self.n + other.n, np.logaddexp(self.log_sum, other.log_sum))


@register
class KLMatching(Detector):
    """The smallest divergence of the softmax from what is typical of a class.

    Typical of class k is the mean softmax d_k of the validation rows predicted as k. With p a row's softmax,

        score = min_k sum_j p_j log(p_j / d_kj)

    over the classes that were predicted at least once. The means are summed in log space, so that no d_kj is 0.

    Examples
    --------
    >>> detector = KLMatching().fit([[3.0, 0.0], [0.0, 3.0]])
    >>> detector.score([[3.0, 0.0], [0.0, 0.0]]).round(4).tolist()
    [0.0, 0.8554]
    """

    name = "kl_matching"
    about = About(
        "KL-Matching",
        'Hendrycks et al. 2022: "Scaling Out-of-Distribution Detection for Real-World Settings"',
        cost="a product of the softmax with a C x C matrix",
        fitted_on="validation",
    )

    class Fitted(NamedTuple):
        classes: Annotated[IntArray, Numbers("typical")]
        """Those that were predicted."""
        log_typical: Annotated[FloatArray, Numbers("typical", LOGITS)]

    fitted_: Fitted

    def _partial(self, rows: ModelOutputs, turn: int) -> dict[int, _LogSum]:
        found: dict[int, _LogSum] = {}
        for _, block in blocks_of(rows, self.reads, fitting=True):
            predicted, log_p = block.argmax(axis=1), log_softmax(block)
            own = members_of_each(predicted)
            found = merged(found, {c: _LogSum(len(rows), np.logaddexp.reduce(log_p[rows], axis=0)) for c, rows in own})
        return found

    def _finish(self, total: dict[int, _LogSum], turn: int) -> Fitted:
        classes = sorted(total)
        return self.Fitted(np.array(classes), np.stack([total[c].log_sum - np.log(total[c].n) for c in classes]))

    @by_blocks
    def _score(self, logits: FloatArray) -> FloatArray:
        logits -= logits.max(axis=1, keepdims=True)
        weights = np.exp(logits)
        total = weights.sum(axis=1)
        nearest = (weights @ self.fitted_.log_typical.T).max(axis=1)
        divergence: FloatArray = (np.einsum("ij,ij->i", weights, logits) - nearest) / total - np.log(total)
        return np.maximum(divergence, 0.0)


@register
class StandardisedMaxLogit(Detector):
    """How many deviations the largest logit lies below what is usual for its predicted class.

    With c the predicted class, and mu_c and sigma_c mean and deviation (n - 1 in the denominator) of the largest logit
    over the training rows predicted as c,

        score = -(max_j z_j - mu_c) / sigma_c

    A class with fewer than two such rows, or with equal ones, takes mean and deviation of all rows.

    Examples
    --------
    >>> detector = StandardisedMaxLogit().fit([[2.0, 0.0], [4.0, 0.0], [0.0, 10.0], [0.0, 30.0]])
    >>> detector.means_.tolist()
    [3.0, 20.0]
    >>> detector.score([[3.0, 0.0], [0.0, 3.0]]).round(4).tolist()
    [0.0, 1.2021]
    """

    name = "standardised_max_logit"
    about = About(
        "Standardised MaxLogit",
        'Jung et al. 2021: "Standardized Max Logits: A Simple yet Effective Approach for Identifying Unexpected '
        'Road Obstacles in Urban-Scene Segmentation"',
        cost="two passes over the logits",
    )

    class Fitted(NamedTuple):
        means: Annotated[FloatArray, Numbers(LOGITS)]
        deviations: Annotated[FloatArray, Numbers(LOGITS, above=0.0)]

    fitted_: Fitted

    def _partial(self, rows: ModelOutputs, turn: int) -> ClassMoments:
        return ClassMoments.of(rows, -max_logit_score(rows.logits)[:, None])

    def _finish(self, total: ClassMoments, turn: int) -> Fitted:
        counts, means, m2 = (part.ravel() for part in total)
        mean = counts @ means / counts.sum()
        whole = m2.sum() + counts @ np.square(means - mean)
        deviations = np.sqrt(m2 / np.maximum(counts - 1.0, 1.0))
        deviation = np.sqrt(whole / max(counts.sum() - 1.0, 1.0))
        own = deviations > ROUNDING * np.abs(means)
        everywhere = deviation if deviation > ROUNDING * abs(mean) else 1.0
        return self.Fitted(np.where(own, means, mean), np.where(own, deviations, everywhere))

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        score: FloatArray = max_logit_score(outputs.logits, threads=threads)
        predicted = outputs.predicted
        score += self.fitted_.means[predicted]
        score /= self.fitted_.deviations[predicted]
        return score


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
    about = About(
        "Multi-Threshold",
        "Ravikumar & Roy",
        cost="one pass over the logits",
        parameters={"keep": "share of in-distribution rows of each class to accept"},
    )
    _ranks_per_class = True

    class Fitted(NamedTuple):
        thresholds: Annotated[FloatArray, Numbers(LOGITS)]

    fitted_: Fitted

    def __init__(self, keep: float = 0.95) -> None:
        self.keep = _validate.fraction(keep, "keep", allow_one=True)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        scores, predicted = [], []
        for chunk in chunks:
            scores.append(msp_score(chunk.logits))
            predicted.append(chunk.predicted)
        if scores and self._widths is not None:
            every = np.concatenate(scores)
            n_classes = self._widths[LOGITS]
            thresholds = thresholds_per_class(every, np.concatenate(predicted), n_classes, self.keep)
            self._learn(self.Fitted(thresholds))
            self.threshold_ = Threshold(0.0, keep=self.keep, n=int(every.size))

    def _why_all_rows(self) -> str:
        return "its thresholds are quantiles of all training scores"

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        excess: FloatArray = msp_score(outputs.logits, threads=threads)
        excess -= self.fitted_.thresholds[outputs.predicted]
        return excess

    def _formula(self) -> SumFormula:
        return SumFormula(((1.0, plain_formula("log_odds")),), self.fitted_.thresholds)
