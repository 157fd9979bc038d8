"""GradNorm: the size of the gradient that would make the prediction uniform, without a backward pass."""

from __future__ import annotations

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks
from normscale.outputs import FEATURES, LOGITS


@register
class GradNorm(Detector):
    """Minus the L1 norm of the last layer's gradient of the divergence between a uniform and the predicted softmax.

    For the divergence KL(u | softmax(z / T)) and logits z = W f + b the gradient by W is the outer product of
    ``(p - u) / T`` and f, with p the softmax and u = 1 / n_classes, so that

        score = -|p - u|_1 |f|_1 / T

    which is what a backward pass would find.

    References
    ----------
    Huang, Geng & Li, "On the Importance of Gradients for Detecting Distributional Shifts in the Wild", 2021.

    Examples
    --------
    >>> from normscale import ModelOutputs
    >>> GradNorm().score(ModelOutputs([[0.0, 0.0], [99.0, 0.0]], features=[[1.0, -2.0], [1.0, -2.0]])).tolist()
    [-0.0, -3.0]
    """

    name = "gradnorm"
    title = "GradNorm"
    paper = "Huang, Geng & Li 2021"
    cost = "one pass over logits and features"
    reads = (LOGITS, FEATURES)
    needs_fit = False
    parameters = {"temperature": "divides the logits"}

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = _validate.positive(temperature, "temperature")

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        logits -= logits.max(axis=1, keepdims=True)
        logits /= self.temperature
        p = np.exp(logits, out=logits)
        p /= p.sum(axis=1, keepdims=True)
        p -= 1.0 / p.shape[1]
        size: FloatArray = np.abs(p, out=p).sum(axis=1) * np.abs(features, out=features).sum(axis=1)
        return -size / self.temperature
