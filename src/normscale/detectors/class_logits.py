"""Logits beside those of their predicted class: KL-matching, standardised MaxLogit, Multi-Threshold, OpenMax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._kernels import members_of_each
from normscale._validate import FloatArray, IntArray
from normscale.detectors.base import About, ByFormula, Detector, join
from normscale.detectors.formula import SumFormula, plain_formula
from normscale.detectors.partial_fit import ROUNDING, Gathered, merged
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of, by_blocks, float_blocks, log_softmax
from normscale.detectors.stream_aware import ClassMoments
from normscale.errors import InvalidInput
from normscale.metrics.thresholds import Threshold, thresholds_per_class
from normscale.outputs import LABELS, LOGITS, ModelOutputs
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
class MultiThreshold(ByFormula):
    """How far the log-odds of being wrong lie above the threshold of the predicted class.

    ``fit`` sets, for each class, the threshold below which a share ``keep`` of the rows predicted as that class lie; a
    class that is never predicted gets that of all rows. The paper's numbers average one AUROC per predicted class
    (:func:`normscale.evaluate_per_class`), within which the thresholds make no difference.
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

    def _partial(self, rows: ModelOutputs, turn: int) -> Gathered:
        return Gathered([(msp_score(rows.logits), rows.predicted)])

    def _finish(self, total: Gathered, turn: int) -> Fitted:
        scores, predicted = map(np.concatenate, zip(*total.parts, strict=True))
        self.threshold_ = Threshold(0.0, keep=self.keep, n=scores.size)
        return self.Fitted(thresholds_per_class(scores, predicted, (self._widths or {})[LOGITS], self.keep))

    def _formula(self) -> SumFormula:
        return SumFormula(((1.0, plain_formula("log_odds")),), self.fitted_.thresholds)


TRANSLATION = 10_000.0
"""What the tail's smallest value is moved to before a Weibull distribution is fitted, as libMR does."""
_STEPS = 200


class WeibullTail(NamedTuple):
    """P(X <= x) = 1 - exp(-(y / scale)^shape) with y = x - smallest + 10000, for a few distributions at once.

    Kept are ``shape`` and ``log_scale = log(scale / 10000)``: y and scale agree in so many digits that their quotient
    is only exact as a difference of such logarithms.
    """

    smallest: FloatArray
    shape: FloatArray
    log_scale: FloatArray

    def probability(self, values: FloatArray) -> FloatArray:
        """Of a smaller value, for each distribution; (n, k) to (n, k)."""
        with np.errstate(over="ignore", divide="ignore"):
            moved = np.maximum((values - self.smallest) / TRANSLATION, -1.0)  # a Weibull variable is not negative
            power = np.exp(self.shape * (np.log1p(moved) - self.log_scale))
        return -np.expm1(-power)


def fit_weibull(tail: FloatArray) -> tuple[float, float, float]:
    """Smallest value, shape and log-scale of the distribution of largest likelihood for values (n,), n >= 1.

    With l = log(y / 10000), the shape c solves ``sum(e^(c l) l) / sum(e^(c l)) - 1 / c = mean(l)``, whose left side
    grows with c: bisection cannot miss it. Equal values have no largest likelihood; their shape is one under which
    the probability jumps from 0 to 1 within a billionth of them.
    """
    smallest = float(tail.min())
    logs = np.log1p((tail - smallest) / TRANSLATION)
    largest, mean = float(logs.max()), float(logs.mean())
    steepest = TRANSLATION / (1e-9 * max(1.0, abs(smallest)))

    def excess(shape: float) -> float:
        weights = np.exp(shape * (logs - largest))
        return float(weights @ logs / weights.sum()) - 1.0 / shape - mean

    shape = steepest
    if excess(steepest) > 0.0:
        low, high = 0.0, steepest
        for _ in range(_STEPS):
            shape = np.sqrt(low * high) if low > 0.0 else high / 1024.0
            low, high = (low, shape) if excess(shape) > 0.0 else (shape, high)
            if high - low <= 1e-14 * high:
                break
    log_scale = largest + float(np.log(np.mean(np.exp(shape * (logs - largest))))) / shape
    return smallest, float(shape), log_scale


_ABOVE = Numbers(LOGITS, above=0.0)
_FEWEST_PER_CLASS = 4
"""Rows a class below which its tail means nothing: with 3 on the sample, OoD inputs score lower than others."""
_LEAST_BODY = 20
"""How many rows of a class there must be for each row of its tail: all of a class is no tail."""


@register
class OpenMax(Detector):
    """Log-odds of the unknown class that OpenMax adds to the softmax.

    The distances of the correctly predicted training rows of class k to their mean logits have a tail, its ``tail``
    largest; a Weibull distribution F_k is fitted to it by maximum likelihood. For a row z whose i-th largest logit,
    i = 1 ... a (``alpha``), is that of class k,

        v_k = z_k (1 - (a + 1 - i) / a * F_k(|z - mean_k|)),    v_0 = sum_k (z_k - v_k)

    and all other logits stay. The probability of the unknown class is that of v_0 in the softmax of (v_0, v); the score
    is its log-odds, v_0 - log sum exp(v), which ranks the same and never saturates. A class without correctly predicted
    training rows is far from everything, F_k = 1. Distances are Euclidean; no OoD data chooses a parameter.
    """

    name = "openmax"
    about = About(
        "OpenMax",
        'Bendale & Boult 2016: "Towards Open Set Deep Networks"',
        cost="one pass over the logits",
        parameters={
            "tail": "how many of the largest distances of a class its distribution is fitted to; the paper's 20, but "
            "at most a twentieth of the class (and 2)",
            "alpha": "how many of the largest logits give way to the unknown class; the paper's 10, or all classes",
        },
    )
    reads_in_fit = (LABELS,)

    class Fitted(NamedTuple):
        means: Annotated[FloatArray, Numbers(LOGITS, LOGITS)]
        weibull: Annotated[WeibullTail, {**dict.fromkeys(("smallest", "log_scale"), Numbers(LOGITS)), "shape": _ABOVE}]
        known: Annotated[NDArray[np.bool_], Numbers(LOGITS)]

        def check(self) -> None:
            if not self.known.any():
                raise InvalidInput("one class must be known.")

    fitted_: Fitted

    def __init__(self, tail: int = 20, alpha: int = 10) -> None:
        self.tail = _validate.at_least(tail, "tail", 1)
        self.alpha = _validate.at_least(alpha, "alpha", 1)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        train = join(_right_rows(chunk) for chunk in chunks)  # distances need the means of all rows first
        n_classes = train.logits.shape[1]
        if not len(train):
            raise InvalidInput(
                "no training row is predicted as its label, so no class has a mean. Do the labels belong to these "
                "logits?"
            )
        predicted = train.predicted
        found = np.unique(predicted).size
        if len(train) < _FEWEST_PER_CLASS * found:
            raise InvalidInput(
                f"openmax describes how far the rows of a class lie from its mean. It needs {_FEWEST_PER_CLASS} rows "
                f"a class on average that are predicted as their label; got {len(train)} such rows of {found} classes. "
                "Pass more training rows, or choose another detector."
            )
        means = np.zeros((n_classes, n_classes))
        known = np.bincount(predicted, minlength=n_classes) > 0
        fitted = np.tile([[0.0], [1.0], [0.0]], (1, n_classes))
        for c, members in members_of_each(predicted):
            rows = train.logits[members].astype(np.float64)
            means[c] = rows.mean(axis=0)
            distances = np.sqrt(np.square(rows - means[c]).sum(axis=1))
            longest = min(self.tail, max(2, distances.size // _LEAST_BODY))
            fitted[:, c] = fit_weibull(np.sort(distances)[-longest:])
        self._learn(self.Fitted(means, WeibullTail(*fitted), known))

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        every, tails, is_known = self.fitted_
        centre = every[is_known].mean(axis=0)
        means = every - centre
        squared_norms = np.einsum("ij,ij->i", means, means)
        a = min(self.alpha, is_known.size)
        shares = np.arange(a, 0, -1) / a
        for where, logits in float_blocks(outputs.logits, LOGITS, width=4 * is_known.size):
            at = np.arange(logits.shape[0])[:, None]
            top = np.argpartition(-logits, a - 1, axis=1)[:, :a]
            top = top[at, np.argsort(-logits[at, top], axis=1, kind="stable")]
            z = logits - centre
            squares = np.einsum("ij,ij->i", z, z)[:, None] + squared_norms - 2.0 * (z @ means.T)
            distances = np.sqrt(np.maximum(squares[at, top], 0.0))
            weibull = WeibullTail(*(part[top] for part in tails))
            far = np.where(is_known[top], weibull.probability(distances), 1.0)
            given = logits[at, top] * shares * far
            logits[at, top] -= given
            largest = logits.max(axis=1)
            known = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
            scores[where] = given.sum(axis=1) - known
        return scores


def _right_rows(chunk: ModelOutputs) -> ModelOutputs:
    """The rows whose label is the predicted class."""
    if not np.isfinite(chunk.logits).all():
        raise _validate.invalid_row_error(chunk.logits, LOGITS)
    return chunk.only(LOGITS)[chunk.predicted == chunk.labels]
