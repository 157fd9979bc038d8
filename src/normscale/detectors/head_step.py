"""Steps between features and logits: they change one or the other where the last layer turns features into logits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.row_blocks import float_blocks
from normscale.detectors.step import Step
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, Head, ModelOutputs
from normscale.state import Numbers

HEAD = {"weight": Numbers("classes", FEATURES), "bias": Numbers("classes")}
"""What the parts of a head in a record must be."""
_OTHER_HEAD = "all training outputs must have the same head; they come from different networks."


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

    class Fitted(NamedTuple):
        """The last layer; a subclass that learns more has a record of its own, with the head in it."""

        head: Annotated[Head, HEAD]

    fitted_: Any

    @abstractmethod
    def _logits(self, features: FloatArray) -> FloatArray:
        """The new logits (n, C) of finite features (n, d), which may be overwritten."""

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> tuple[Head, Any] | None:
        first = next(chunks, None)
        if first is None:
            return None
        assert first.head is not None  # the contract checked it
        return first.head, self._partial_features(_of_one_network(first, chunks))

    def _partial_features(self, chunks: Iterator[ModelOutputs]) -> Any:
        """What the features of some rows tell, besides the head; every chunk must be consumed."""
        for chunk in chunks:
            for _ in float_blocks(chunk.features, FEATURES):
                pass

    def _merge_features(self, first: Any, second: Any) -> Any:
        """What the features of two parts of the rows tell together."""
        return None

    def _finish_features(self, head: Head, total: Any) -> Any:
        """The record :attr:`fitted_`, by the head and what the features of all rows tell."""
        return self.Fitted(head)

    def _merge(self, first: Any, second: Any) -> Any:
        if not first[0].equals(second[0]):
            raise InvalidInput(_OTHER_HEAD)
        return first[0], self._merge_features(first[1], second[1])

    def _finish(self, total: Any, turn: int) -> bool:
        if total is not None:
            self._learn(self._finish_features(*total))
        return True

    @property
    def _width(self) -> int:
        return int(self.fitted_.head.n_classes)

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        rows = outputs.features
        logits = np.empty((len(outputs), self._width))
        for place, block in float_blocks(rows, FEATURES, self._width):
            logits[place] = self._logits(block)
        others = {name: outputs.array(name) for name in outputs.names if name not in (FEATURES, LOGITS)}
        return ModelOutputs._trusted({LOGITS: logits, **others}, outputs.labels)


def _of_one_network(first: ModelOutputs, others: Iterator[ModelOutputs]) -> Iterator[ModelOutputs]:
    yield first
    assert first.head is not None
    for chunk in others:
        if not first.head.equals(chunk.head):
            raise InvalidInput(_OTHER_HEAD)
        yield chunk


def percentile_of(value: float) -> float:
    """A percentile strictly between 0 and 100."""
    return 100.0 * _validate.fraction(_validate.real(value, "percentile") / 100.0, "percentile/100")
