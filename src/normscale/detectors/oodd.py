"""OODD: nearness to the training features less nearness to the most suspicious features of the stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.base import About, Detector, join
from normscale.detectors.feature_bank import FeatureBank
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks, unit_rows
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.scores import msp_score
from normscale.state import Numbers

_SIMILARITY = "similarity"
"""The array of prepared rows that says how similar to training each is."""


@register
class OODD(Detector):
    """A dictionary of suspicious features, kept along the stream.

        score = (k-th largest cosine to the dictionary) - (k-th largest cosine to the training features)

    The dictionary holds the rows of the stream that are least like training so far; each row may enter it and is then
    scored. The training features are those of the most confident rows, every class in its turn. The paper takes rows in
    by batches of 512 and may begin with made-up outliers; here rows follow one another, and the dictionary begins
    empty.

    Examples
    --------
    >>> train = ModelOutputs(logits=[[5.0, 0.0], [0.0, 5.0]], features=[[1.0, 0.0], [0.0, 1.0]])
    >>> detector = OODD(k=1, share=1.0).fit(train)
    >>> detector.stream(np.array([[0.0, -1.0], [1.0, 0.0]])).round(6).tolist()
    [1.0, -1.0]
    """

    name = "oodd"
    about = About(
        "OODD",
        'Yang et al. 2025: "OODD: Test-time Out-of-Distribution Detection with Dynamic Dictionary"; its defaults',
        cost="products with the training features and the dictionary; in a stream one row after the other",
        parameters={
            "k": "which neighbour counts among the training features",
            "k_dictionary": "which neighbour counts among the suspicious features",
            "size": "how many suspicious features are kept",
            "share": "of the training rows to keep, the most confident first",
        },
    )
    reads = (FEATURES,)
    reads_in_fit = (LOGITS,)
    _holds_threshold_in_stream = False
    _in_place = True

    class Fitted(NamedTuple):
        bank: Annotated[Rows, Numbers("rows", FEATURES)]

    class State(NamedTuple):
        """The dictionary, with room for all of its rows."""

        held: Annotated[int, Numbers(least=0.0)]
        """How many rows it holds."""
        suspects: Annotated[FloatArray, Numbers("size", FEATURES)]
        """Their features, of length one; 0 where there is room."""
        similarity: Annotated[FloatArray, Numbers("size")]
        """How similar to training each is."""

        def check(self) -> None:
            if self.held > len(self.suspects):
                raise InvalidInput(f"the dictionary must hold at most {len(self.suspects)} rows; got {self.held}.")

    fitted_: Fitted
    bank_: FeatureBank

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
        self._learn(self.Fitted(train.features[kept]))

    def _derive(self) -> None:
        self.bank_ = FeatureBank(self.fitted_.bank, np.ones(len(self.fitted_.bank)))

    @property
    def dictionary_(self) -> FloatArray:
        """The features in the dictionary."""
        state: OODD.State = self._current()
        return state.suspects[: state.held]

    def _start(self) -> State:
        return self.State(0, np.zeros((self.size, self.fitted_.bank.shape[1])), np.zeros(self.size))

    def _similarity(self, block: FloatArray) -> FloatArray:
        """The k-th largest cosine of rows of length one to the training features."""
        return self.bank_.largest_products(block, min(self.k, len(self.bank_)))[:, -1]

    def _score_at(self, state: State, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for where, block in float_blocks(outputs.features, FEATURES, self.size):
            rows = unit_rows(block)
            scores[where] = -self._similarity(rows)
            if state.held:
                scores[where] += _kth_largest(rows @ state.suspects[: state.held].T, self.k_dictionary)
        return scores

    def _prepare(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        rows, similarities = np.empty(outputs.features.shape), np.empty((len(outputs), 1))
        for where, block in float_blocks(outputs.features, FEATURES):
            rows[where] = unit_rows(block)
            similarities[where, 0] = self._similarity(rows[where])
        return ModelOutputs._trusted({FEATURES: rows, _SIMILARITY: similarities})

    def _step(self, state: State, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, State]:
        scores = np.empty(len(prepared))
        held, suspects, similarity = state
        similarities = prepared.array(_SIMILARITY)[:, 0].tolist()
        for i, (row, similar) in enumerate(zip(prepared.features, similarities, strict=True)):
            place = held if held < self.size else int(similarity.argmax())
            if held < self.size or similar < similarity[place]:
                suspects[place], similarity[place] = row, similar
                held = min(held + 1, self.size)
            scores[i] = _kth_largest((suspects[:held] @ row)[None], self.k_dictionary)[0] - similar
        return scores, state._replace(held=held)


def _kth_largest(values: FloatArray, k: int) -> FloatArray:
    """The k-th largest number of every row (n, m), or the last where there are fewer."""
    k = min(k, values.shape[1])
    return np.partition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k]


def most_confident(train: ModelOutputs, n: int) -> IntArray:
    """The n rows that the network is surest of: first the surest of every predicted class, then the second, ..."""
    order = np.lexsort((msp_score(train.logits), train.predicted))
    counts = np.bincount(train.predicted[order])
    place = np.concatenate([np.arange(count) for count in counts])
    return np.sort(order[np.argsort(place, kind="stable")[:n]])
