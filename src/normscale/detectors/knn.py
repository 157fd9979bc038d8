"""KNN: how far away the k-th nearest training feature is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import Detector
from normscale.detectors.feature_bank import BankSample, FeatureBank
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks, unit_rows
from normscale.outputs import FEATURES, ModelOutputs
from normscale.state import Numbers


@register
class KNN(Detector):
    """Distance of the features to the k-th nearest training features, all of length one.

        score = |f/|f| - (the k-th nearest f_i/|f_i| of the training rows)|

    The search is exact. A row of zeros has no direction; it stays the zero vector, at distance 1 from every other.

    Parameters
    ----------
    k : int
        Which neighbour counts. 50 is the paper's choice for CIFAR-10 (it takes 200 for CIFAR-100 and 1000 for
        ImageNet) and OpenOOD's default; no OoD data chooses it here. A bank of fewer rows uses its last.
    bank : int, optional
        How many training rows to keep, drawn at random with a fixed seed; by default all.

    Attributes
    ----------
    bank_ : FeatureBank

    References
    ----------
    Sun, Ming, Zhu & Li, "Out-of-Distribution Detection with Deep Nearest Neighbors", 2022.

    Examples
    --------
    >>> KNN(k=1).fit(np.array([[2.0, 0.0], [0.0, 5.0]])).score(np.array([[7.0, 0.0], [-1.0, 0.0]])).round(4).tolist()
    [0.0, 1.4142]
    """

    name = "knn"
    title = "KNN"
    paper = "Sun et al. 2022"
    cost = "a matrix product with the bank, and a partial sort"
    reads = (FEATURES,)
    parameters = {
        "k": "which neighbour counts",
        "bank": "training rows to keep, drawn at random with a fixed seed; by default all",
    }

    class Fitted(NamedTuple):
        """The training rows that are kept."""

        bank: Annotated[Rows, Numbers("rows", FEATURES)]

    fitted_: Fitted
    bank_: FeatureBank

    def __init__(self, k: int = 50, bank: int | None = None) -> None:
        self.k = _validate.at_least(k, "k", 1)
        self.bank = None if bank is None else _validate.at_least(bank, "bank", 1)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        sample = BankSample(self.bank or 0)
        for chunk in chunks:
            if not np.isfinite(chunk.features).all():
                raise _validate.invalid_row_error(chunk.features, FEATURES)
            sample.add(chunk.features, np.ones(len(chunk)))
        if self.widths_ is not None:
            self._learn(self.Fitted(sample.result()[0]))

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        k = min(self.k, len(self.bank_))
        scores = np.empty(len(outputs))
        for where, block in float_blocks(outputs.features, FEATURES):
            scores[where] = self.bank_.distances(unit_rows(block), k)
        return scores

    def _derive(self) -> None:
        self.bank_ = FeatureBank(self.fitted_.bank, np.ones(len(self.fitted_.bank)))
