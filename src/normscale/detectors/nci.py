"""NCI: features of known classes lie along the weights of their class, and far from the origin."""

from __future__ import annotations

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.class_directions import ClassDirections
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks, lengths
from normscale.errors import InvalidInput


@register
class NCI(ClassDirections):
    """Neural-collapse inspired: how well centred features follow the predicted class's weights, and their size.

        score = -w_c' (f - mu) / |f - mu|  -  alpha |f|_1

    with c the class of the largest logit, w_c its weights in the last layer and mu the mean of the training features.
    Features that lie in mu have no direction; the first term is 0 there.

    Parameters
    ----------
    alpha : float, at least 0
        Weight of the features' size. The authors tune it on OoD data; here it is the default of their code in OpenOOD,
        0.0001, whatever the data.

    References
    ----------
    Liu & Qin, "Detecting Out-of-Distribution Through the Lens of Neural Collapse", 2025.

    Examples
    --------
    >>> from normscale import ModelOutputs
    >>> train = ModelOutputs(np.eye(2), features=[[2.0, 0.0], [0.0, 2.0]], head=(np.eye(2), np.zeros(2)))
    >>> NCI(alpha=0.5).fit(train).score(ModelOutputs([[3.0, 1.0]], features=[[4.0, 1.0]])).tolist()
    [-3.5]
    """

    name = "nci"
    title = "NCI"
    paper = "Liu & Qin 2025"
    cost = "one pass over the features"
    parameters = {"alpha": "weight of the size of the features"}

    def __init__(self, alpha: float = 1e-4) -> None:
        self.alpha = _validate.real(alpha, "alpha")
        if not 0.0 <= self.alpha < np.inf:
            raise InvalidInput(f"alpha must be finite and at least 0; got {alpha!r}.")

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        size = np.abs(features).sum(axis=1)
        features -= self.mean_
        along = np.einsum("ij,ij->i", features, self.fitted_.weight[logits.argmax(axis=1)])
        distance = lengths(features)
        score: FloatArray = -along / np.where(distance > 0.0, distance, 1.0) - self.alpha * size
        return score
