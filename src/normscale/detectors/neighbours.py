"""The nearest training features: KNN and NNGuide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import Detector, join
from normscale.detectors.feature_bank import FeatureBank
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks, unit_rows
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.scores import energy_score
from normscale.state import Numbers


@register
class KNN(Detector):
    """Distance of the features to the k-th nearest training features, all of length one.

        score = |f/|f| - (the k-th nearest f_i/|f_i| of the training rows)|

    The search is exact. A row of zeros has no direction; it stays the zero vector, at distance 1 from every other.

    Examples
    --------
    >>> KNN(k=1).fit(np.array([[2.0, 0.0], [0.0, 5.0]])).score(np.array([[7.0, 0.0], [-1.0, 0.0]])).round(4).tolist()
    [0.0, 1.4142]
    """

    name = "knn"
    title = "KNN"
    paper = 'Sun et al. 2022: "Out-of-Distribution Detection with Deep Nearest Neighbors"'
    cost = "a matrix product with the bank, and a partial sort"
    reads: tuple[str, ...] = (FEATURES,)
    parameters = {
        "k": "which neighbour counts; a bank of fewer rows uses its last. The paper takes 50 for CIFAR-10, 200 for "
        "CIFAR-100 and 1000 for ImageNet; no OoD data chooses it here"
    }

    class Fitted(NamedTuple):
        bank: Annotated[Rows, Numbers("rows", FEATURES)]

    fitted_: Any
    bank_: FeatureBank

    def __init__(self, k: int = 50) -> None:
        self.k = _validate.at_least(k, "k", 1)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        train = join(chunks)
        if not np.isfinite(train.features).all():
            raise _validate.invalid_row_error(train.features, FEATURES)
        rows = train.features.astype(np.result_type(train.features.dtype, np.float16).newbyteorder("="))
        self._learn(self._bank(rows, train))

    def _bank(self, rows: Rows, train: ModelOutputs) -> Any:
        """What is kept of training rows with these features."""
        return self.Fitted(rows)

    @by_blocks
    def _score(self, features: FloatArray) -> FloatArray:
        return self.bank_.distances(unit_rows(features), min(self.k, len(self.bank_)))

    def _derive(self) -> None:
        bank, *weights = self.fitted_
        self.bank_ = FeatureBank(bank, weights[0] if weights else np.ones(len(bank)))


@register
class NNGuide(KNN):
    """Nearest-neighbour guidance: minus energy times the mean of the k largest similarities to the training rows.

        score = -E(z) * mean over the k largest of E(z_i) f' f_i / (|f| |f_i|),    E(z) = log sum exp(z)

    The search is exact. A row of zeros has no direction; every similarity to it is 0.

    Examples
    --------
    >>> train = ModelOutputs([[3.0, -99.0], [-99.0, 2.0]], features=[[4.0, 0.0], [0.0, 2.0]])
    >>> NNGuide(k=1).fit(train).score(ModelOutputs([[5.0, -99.0]], features=[[7.0, 0.0]])).tolist()
    [-15.0]
    """

    name = "nnguide"
    title = "NNGuide"
    paper = 'Park, Jung & Teoh 2023: "Nearest Neighbor Guidance for Out-of-Distribution Detection"'
    reads = (LOGITS, FEATURES)
    parameters = {"k": "how many of the largest similarities count; 10 is what pytorch-ood takes"}

    class Fitted(NamedTuple):
        bank: Annotated[Rows, Numbers("rows", FEATURES)]
        energies: Annotated[FloatArray, Numbers("rows")]

    def __init__(self, k: int = 10) -> None:
        super().__init__(k)

    def _bank(self, rows: Rows, train: ModelOutputs) -> Fitted:
        return self.Fitted(rows, -energy_score(train.logits))

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        guidance = self.bank_.largest_products(unit_rows(features), min(self.k, len(self.bank_))).mean(axis=1)
        return energy_score(logits) * guidance
