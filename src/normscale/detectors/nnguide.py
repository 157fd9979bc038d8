"""NNGuide: the energy of the logits, guided by the nearest training features and their energies."""

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
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.scores import energy_score
from normscale.state import Numbers


@register
class NNGuide(Detector):
    """Nearest-neighbour guidance: minus energy times the mean of the k largest similarities to the training rows.

        score = -E(z) * mean over the k largest of E(z_i) f' f_i / (|f| |f_i|),    E(z) = log sum exp(z)

    The search is exact. A row of zeros has no direction; every similarity to it is 0.

    Parameters
    ----------
    k : int
        How many of the largest similarities count. 10 is what pytorch-ood takes; no OoD data chooses it here. A bank of
        fewer rows uses all.
    bank : int, optional
        How many training rows to keep, drawn at random with a fixed seed; by default all. The paper keeps 1 % of
        ImageNet.

    References
    ----------
    Park, Jung & Teoh, "Nearest Neighbor Guidance for Out-of-Distribution Detection", 2023.

    Examples
    --------
    >>> train = ModelOutputs([[3.0, -99.0], [-99.0, 2.0]], features=[[4.0, 0.0], [0.0, 2.0]])
    >>> NNGuide(k=1).fit(train).score(ModelOutputs([[5.0, -99.0]], features=[[7.0, 0.0]])).tolist()
    [-15.0]
    """

    name = "nnguide"
    title = "NNGuide"
    paper = "Park, Jung & Teoh 2023"
    cost = "a matrix product with the bank, and a partial sort"
    reads = (LOGITS, FEATURES)
    parameters = {
        "k": "how many of the largest similarities count",
        "bank": "training rows to keep, drawn at random with a fixed seed; by default all",
    }

    class Fitted(NamedTuple):
        """The training rows that are kept, and the energy of each."""

        bank: Annotated[Rows, Numbers("rows", FEATURES)]
        energies: Annotated[FloatArray, Numbers("rows")]

    fitted_: Fitted
    bank_: FeatureBank

    def __init__(self, k: int = 10, bank: int | None = None) -> None:
        self.k = _validate.at_least(k, "k", 1)
        self.bank = None if bank is None else _validate.at_least(bank, "bank", 1)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        sample = BankSample(self.bank or 0)
        for chunk in chunks:
            if not np.isfinite(chunk.features).all():
                raise _validate.invalid_row_error(chunk.features, FEATURES)
            sample.add(chunk.features, -energy_score(chunk.logits))
        if self.widths_ is not None:
            self._learn(self.Fitted(*sample.result()))

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        k = min(self.k, len(self.bank_))
        scores = energy_score(outputs.logits, threads=threads)
        for where, block in float_blocks(outputs.features, FEATURES):
            scores[where] *= self.bank_.largest_products(unit_rows(block), k).mean(axis=1)
        return scores

    def _derive(self) -> None:
        self.bank_ = FeatureBank(*self.fitted_)
