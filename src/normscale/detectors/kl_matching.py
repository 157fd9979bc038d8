"""KL-matching: the divergence of the softmax from the nearest typical softmax of a class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale._kernels.members import members_of_each
from normscale._validate import FloatArray, IntArray
from normscale.detectors.base import Detector
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks, log_softmax
from normscale.outputs import LOGITS, ModelOutputs
from normscale.state import Numbers


@register
class KLMatching(Detector):
    """The smallest divergence of the softmax from what is typical of a class.

    Typical of class k is the mean softmax d_k of the validation rows predicted as k. With p a row's softmax,

        score = min_k sum_j p_j log(p_j / d_kj)

    over the classes that were predicted at least once. The means are summed in log space, so that no d_kj is 0.

    Attributes
    ----------
    classes_ : array (K,) of the classes that were predicted
    log_typical_ : array (K, C), log d_k

    References
    ----------
    Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", 2022.

    Examples
    --------
    >>> detector = KLMatching().fit([[3.0, 0.0], [0.0, 3.0]])
    >>> detector.score([[3.0, 0.0], [0.0, 0.0]]).round(4).tolist()
    [0.0, 0.8554]
    """

    name = "kl_matching"
    title = "KL-Matching"
    paper = "Hendrycks et al. 2022"
    cost = "a product of the softmax with a C x C matrix"
    fitted_on = "validation"

    class Fitted(NamedTuple):
        """The classes that were predicted, and what is typical of each."""

        classes: Annotated[IntArray, Numbers("typical")]
        log_typical: Annotated[FloatArray, Numbers("typical", LOGITS)]

    fitted_: Fitted

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> tuple[dict[int, int], dict[int, FloatArray]]:
        """How many rows are predicted as each class, and the logarithm of the sum of their softmax."""
        counts: dict[int, int] = {}
        sums: dict[int, FloatArray] = {}
        for chunk in chunks:
            for _, block in float_blocks(chunk.logits, LOGITS):
                predicted = block.argmax(axis=1)
                log_p = log_softmax(block)
                for c, members in members_of_each(predicted):
                    own = log_p[members]
                    total = np.logaddexp.reduce(own, axis=0)
                    sums[c] = np.logaddexp(sums[c], total) if c in sums else total
                    counts[c] = counts.get(c, 0) + len(own)
        return counts, sums

    def _merge(self, first: Any, second: Any) -> tuple[dict[int, int], dict[int, FloatArray]]:
        counts, sums = dict(first[0]), dict(first[1])
        for c, total in second[1].items():
            sums[c] = np.logaddexp(sums[c], total) if c in sums else total
            counts[c] = counts.get(c, 0) + second[0][c]
        return counts, sums

    def _finish(self, total: Any, turn: int) -> bool:
        counts, sums = total
        if counts:
            classes = np.array(sorted(counts), dtype=np.int64)
            self._learn(self.Fitted(classes, np.stack([sums[c] - np.log(counts[c]) for c in classes.tolist()])))
        return True

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        out = np.empty(len(outputs))
        for place, below in float_blocks(outputs.logits, LOGITS):
            below -= below.max(axis=1, keepdims=True)
            weights = np.exp(below)
            total = weights.sum(axis=1)
            nearest = (weights @ self.fitted_.log_typical.T).max(axis=1)
            out[place] = (np.einsum("ij,ij->i", weights, below) - nearest) / total - np.log(total)
        return np.maximum(out, 0.0, out=out)
