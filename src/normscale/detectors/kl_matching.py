"""KL-matching: the divergence of the softmax from the nearest typical softmax of a class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale._kernels.members import members_of_each
from normscale._validate import FloatArray, IntArray
from normscale.detectors.base import Detector
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of, by_blocks, log_softmax
from normscale.outputs import LOGITS, ModelOutputs
from normscale.state import Numbers


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
        """The classes that were predicted, and what is typical of each."""

        classes: Annotated[IntArray, Numbers("typical")]
        log_typical: Annotated[FloatArray, Numbers("typical", LOGITS)]

    fitted_: Fitted

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> tuple[dict[int, int], dict[int, FloatArray]]:
        """How many rows are predicted as each class, and the logarithm of the sum of their softmax."""
        found: tuple[dict[int, int], dict[int, FloatArray]] = {}, {}
        for chunk in chunks:
            for _, block in blocks_of(chunk, self.reads, fitting=True):
                predicted, log_p = block.argmax(axis=1), log_softmax(block)
                own = {c: log_p[members] for c, members in members_of_each(predicted)}
                sums = {c: np.logaddexp.reduce(rows, axis=0) for c, rows in own.items()}
                found = self._merge(found, ({c: len(rows) for c, rows in own.items()}, sums))
        return found

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

    @by_blocks
    def _score(self, logits: FloatArray) -> FloatArray:
        logits -= logits.max(axis=1, keepdims=True)
        weights = np.exp(logits)
        total = weights.sum(axis=1)
        nearest = (weights @ self.fitted_.log_typical.T).max(axis=1)
        divergence: FloatArray = (np.einsum("ij,ij->i", weights, logits) - nearest) / total - np.log(total)
        return np.maximum(divergence, 0.0)
