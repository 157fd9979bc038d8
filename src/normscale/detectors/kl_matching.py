"""KL-matching: the divergence of the softmax from the nearest typical softmax of a class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._kernels.members import members_of_each
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks, log_softmax
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs


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

    classes_: NDArray[np.int64]
    log_typical_: FloatArray

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
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
        self.classes_ = np.array(sorted(counts), dtype=np.int64)
        if self.classes_.size:
            self.log_typical_ = np.stack([sums[c] - np.log(counts[c]) for c in self.classes_.tolist()])

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        out = np.empty(len(outputs))
        for place, below in float_blocks(outputs.logits, LOGITS):
            below -= below.max(axis=1, keepdims=True)
            weights = np.exp(below)
            total = weights.sum(axis=1)
            nearest = (weights @ self.log_typical_.T).max(axis=1)
            out[place] = (np.einsum("ij,ij->i", weights, below) - nearest) / total - np.log(total)
        return np.maximum(out, 0.0, out=out)

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return {"classes": self.classes_, "log_typical": self.log_typical_}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.classes_, self.log_typical_ = tensors["classes"], tensors["log_typical"]
        n_classes = None if self.widths_ is None else self.widths_[LOGITS]
        if self.log_typical_.shape != (self.classes_.size, n_classes) or not np.isfinite(self.log_typical_).all():
            raise InvalidInput("log_typical must have a finite row for each class and a column for each logit.")
        self.log_typical_ = _validate.as_rows(self.log_typical_, "log_typical").astype(np.float64)
