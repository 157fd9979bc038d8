"""Steps between features and logits: they change one or the other where the last layer turns features into logits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.row_blocks import float_blocks
from normscale.detectors.step import Step
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, Head, ModelOutputs


class HeadStep(Step):
    """Base class; a subclass says how features become logits (:meth:`_logits`), and what it learns for that.

    Scores are computed in blocks, so that the logits are never held as a whole.

    Attributes
    ----------
    head_ : Head
    """

    default_score = "energy"
    own_reads = (FEATURES,)
    removes = (FEATURES,)
    needs_head = True

    head_: Head

    @abstractmethod
    def _logits(self, features: FloatArray) -> FloatArray:
        """The new logits (n, C) of finite features (n, d), which may be overwritten."""

    def _learn(self, chunks: Iterator[ModelOutputs]) -> None:
        """Learn what :meth:`_logits` needs; ``head_`` is there, and every chunk must be consumed."""
        for chunk in chunks:
            for _ in float_blocks(chunk.features, FEATURES):
                pass

    def _fit_step(self, chunks: Iterator[ModelOutputs]) -> None:
        first = next(chunks, None)
        if first is None:
            return
        assert first.head is not None  # the contract checked it
        self.head_ = first.head
        self._learn(self._of_one_network(first, chunks))

    def _of_one_network(self, first: ModelOutputs, others: Iterator[ModelOutputs]) -> Iterator[ModelOutputs]:
        yield first
        for chunk in others:
            if not self.head_.equals(chunk.head):
                raise InvalidInput("all training outputs must have the same head; they come from different networks.")
            yield chunk

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        rows = outputs.features
        logits = np.empty((len(outputs), self.head_.n_classes))
        for place, block in float_blocks(rows, FEATURES, self.head_.n_classes):
            logits[place] = self._logits(block)
        return self._passed_on(logits, outputs)

    @staticmethod
    def _passed_on(logits: FloatArray, outputs: ModelOutputs) -> ModelOutputs:
        others = {name: outputs.array(name) for name in outputs.names if name not in (FEATURES, LOGITS)}
        return ModelOutputs._trusted({LOGITS: logits, **others}, outputs.labels)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        out = np.empty(len(outputs))
        for place, block in float_blocks(outputs.features, FEATURES, self.head_.n_classes):
            out[place] = self.scorer._score(self._passed_on(self._logits(block), outputs[place]), threads)
        return out

    def _own_tensors(self) -> dict[str, NDArray[Any]]:
        return {"head.weight": self.head_.weight, "head.bias": self.head_.bias}

    def _restore_own(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.head_ = Head.checked((tensors["head.weight"], tensors["head.bias"]))
        if self.widths_ is not None and self.head_.weight.shape[1] != self.widths_[FEATURES]:
            raise InvalidInput("head.weight must have a column for each feature.")


def percentile_of(value: float) -> float:
    """A percentile strictly between 0 and 100."""
    return 100.0 * _validate.fraction(_validate.real(value, "percentile") / 100.0, "percentile/100")
