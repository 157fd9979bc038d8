"""OODD: nearness to the training features less nearness to the most suspicious features of the stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray, IntArray
from normscale.detectors.base import Detector, Setting, join
from normscale.detectors.feature_bank import FeatureBank
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks, unit_rows
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.scores import msp_score


@register
class OODD(Detector):
    """A dictionary of suspicious features, kept along the stream.

        score = (k-th largest cosine to the dictionary) - (k-th largest cosine to the training features)

    The dictionary holds the rows of the stream that are least like training so far; each row may enter it and is then
    scored. The training features are those of the most confident rows, every class in its turn. The paper takes rows in
    by batches of 512 and may begin with made-up outliers; here rows follow one another, and the dictionary begins
    empty.

    Parameters
    ----------
    k : int
        Which neighbour counts among the training features.
    k_dictionary : int
        Which neighbour counts in the dictionary; its last while it holds fewer.
    size : int
        Rows in the dictionary.
    share : float in (0, 1]
        Of the training rows, the most confident first.

    Attributes
    ----------
    bank_ : FeatureBank
    dictionary_ : array (m, d)
        Of length one, m at most ``size``.

    References
    ----------
    Yang et al., "OODD: Test-time Out-of-Distribution Detection with Dynamic Dictionary", CVPR 2025; its defaults.

    Examples
    --------
    >>> train = ModelOutputs(logits=[[5.0, 0.0], [0.0, 5.0]], features=[[1.0, 0.0], [0.0, 1.0]])
    >>> detector = OODD(k=1, share=1.0).fit(train)
    >>> detector.stream(np.array([[0.0, -1.0], [1.0, 0.0]])).round(6).tolist()
    [1.0, -1.0]
    """

    name = "oodd"
    title = "OODD"
    paper = "Yang et al. 2025"
    cost = "products with the training features and the dictionary; in a stream one row after the other"
    reads = (FEATURES,)
    reads_in_fit = (LOGITS,)
    settings = (Setting.FROZEN, Setting.STREAM)
    parameters = {
        "k": "which neighbour counts among the training features",
        "k_dictionary": "which neighbour counts among the suspicious features",
        "size": "how many suspicious features are kept",
        "share": "of the training rows to keep, the most confident first",
    }

    bank_: FeatureBank
    dictionary_: FloatArray
    likeness_: FloatArray

    def __init__(self, k: int = 10, k_dictionary: int = 5, size: int = 512, share: float = 0.5) -> None:
        self.k = _validate.at_least(k, "k", 1)
        self.k_dictionary = _validate.at_least(k_dictionary, "k_dictionary", 1)
        self.size = _validate.at_least(size, "size", 1)
        self.share = _validate.fraction(share, "share", allow_one=True)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        train = join(chunks)
        for name in (FEATURES, LOGITS):
            if not np.isfinite(train.array(name)).all():
                raise _validate.invalid_row_error(train.array(name), name)
        kept = most_confident(train, max(1, round(self.share * len(train))))
        self.bank_ = FeatureBank(train.features[kept], np.ones(kept.size))

    def _start(self) -> None:
        self.dictionary_ = np.empty((0, self.bank_.rows.shape[1]))
        self.likeness_ = np.empty(0)

    def _likeness(self, block: FloatArray) -> FloatArray:
        """The k-th largest cosine of rows of length one to the training features."""
        distances = self.bank_.distances(block, min(self.k, len(self.bank_)))
        return 1.0 - 0.5 * distances**2

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for where, block in float_blocks(outputs.features, FEATURES, self.size):
            rows = unit_rows(block)
            scores[where] = -self._likeness(rows)
            if len(self.dictionary_):
                scores[where] += _kth_largest(rows @ self.dictionary_.T, self.k_dictionary)
        return scores

    def _stream(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        held = len(self.dictionary_)
        room = np.empty((self.size, self.dictionary_.shape[1]))
        room[:held] = self.dictionary_
        likeness = np.full(self.size, -np.inf)
        likeness[:held] = self.likeness_
        for where, block in float_blocks(outputs.features, FEATURES):
            rows = unit_rows(block)
            likes = self._likeness(rows)
            for i, (row, like) in enumerate(zip(rows, likes.tolist(), strict=True), where.start):
                place = held if held < self.size else int(likeness.argmax())
                if held < self.size or like < likeness[place]:
                    room[place], likeness[place] = row, like
                    held = min(held + 1, self.size)
                scores[i] = _kth_largest((room[:held] @ row)[None], self.k_dictionary)[0] - like
        self.dictionary_, self.likeness_ = room[:held], likeness[:held]
        return scores

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return {"bank": self.bank_.rows, "dictionary": self.dictionary_, "likeness": self.likeness_}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        rows = tensors["bank"]
        self.bank_ = FeatureBank(rows, np.ones(rows.shape[0]))
        self.dictionary_, self.likeness_ = tensors["dictionary"], tensors["likeness"]
        if self.dictionary_.shape != (self.likeness_.size, rows.shape[1]) or self.likeness_.size > self.size:
            raise InvalidInput(f"dictionary must have at most {self.size} rows of {rows.shape[1]} numbers.")
        if not np.isfinite(self.dictionary_).all() or not np.isfinite(self.likeness_).all():
            raise InvalidInput("dictionary must be finite.")


def _kth_largest(values: FloatArray, k: int) -> FloatArray:
    """The k-th largest number of every row (n, m), or the last where there are fewer."""
    k = min(k, values.shape[1])
    largest: FloatArray = np.partition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k]
    return largest


def most_confident(train: ModelOutputs, n: int) -> IntArray:
    """The n rows that the network is surest of: first the surest of every predicted class, then the second, ..."""
    order = np.lexsort((msp_score(train.logits), train.predicted))
    counts = np.bincount(train.predicted[order])
    place = np.concatenate([np.arange(count) for count in counts])
    chosen: IntArray = np.sort(order[np.argsort(place, kind="stable")[:n]])
    return chosen
