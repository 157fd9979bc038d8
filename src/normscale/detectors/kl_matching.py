"""KL-matching: the divergence of the softmax from the nearest typical softmax of a class."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from normscale._kernels.members import members_of_each
from normscale._validate import FloatArray, IntArray
from normscale.detectors.base import Detector
from normscale.detectors.partial_fit import merged
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of, by_blocks, log_softmax
from normscale.outputs import LOGITS, ModelOutputs
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
