"""The nearest training features: KNN and NNGuide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import About, Detector, join
from normscale.detectors.feature_bank import FeatureBank
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks, unit_rows
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.scores import energy_score
from normscale.state import Numbers

_MOST_NEIGHBOURS = 50
"""The k of automatic choice where there are many training rows."""


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
    about = About(
        "KNN",
        'Sun et al. 2022: "Out-of-Distribution Detection with Deep Nearest Neighbors"',
        cost="a matrix product with the bank, and a partial sort",
        parameters={
            "k": "which neighbour counts; a bank of fewer rows uses its last. By default a tenth of the rows of a "
            "class, at most 50: beyond that neighbours are of other classes. The paper takes 50 for CIFAR-10, 200 for "
            "CIFAR-100 and 1000 for ImageNet"
        },
    )
    reads: tuple[str, ...] = (FEATURES,)

    class Fitted(NamedTuple):
        bank: Annotated[Rows, Numbers("rows", FEATURES)]

    fitted_: Any
    bank_: FeatureBank
    k_: int
    """The neighbour that counts."""

    def __init__(self, k: int | None = None) -> None:
        self.k = None if k is None else _validate.at_least(k, "k", 1)

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
        return self.bank_.distances(unit_rows(features), self.k_)

    def _derive(self) -> None:
        bank, *weights = self.fitted_
        self.bank_ = FeatureBank(bank, weights[0] if weights else np.ones(len(bank)))
        present = 1 if self._baseline is None else int(np.count_nonzero(self._baseline.predicted))
        usual = min(max(len(bank) // (10 * present), 1), _MOST_NEIGHBOURS)
        self.k_ = min(usual if self.k is None else self.k, len(bank))


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
    about = About(
        "NNGuide",
        'Park, Jung & Teoh 2023: "Nearest Neighbor Guidance for Out-of-Distribution Detection"',
        parameters={"k": "how many of the largest similarities count; 10 is what pytorch-ood takes"},
    )
    reads = (LOGITS, FEATURES)

    class Fitted(NamedTuple):
        bank: Annotated[Rows, Numbers("rows", FEATURES)]
        energies: Annotated[FloatArray, Numbers("rows")]

    def __init__(self, k: int | None = 10) -> None:
        super().__init__(k)

    def _bank(self, rows: Rows, train: ModelOutputs) -> Fitted:
        return self.Fitted(rows, -energy_score(train.logits))

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        guidance = self.bank_.largest_products(unit_rows(features), self.k_).mean(axis=1)
        return energy_score(logits) * guidance
