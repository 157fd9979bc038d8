"""Steps between features and logits: they change one or the other where the last layer turns features into logits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import join
from normscale.detectors.row_blocks import float_blocks
from normscale.detectors.step import Step
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, Head, ModelOutputs
from normscale.state import Numbers

HEAD = {"weight": Numbers("classes", FEATURES), "bias": Numbers("classes")}
"""What the parts of a head in a record must be."""


class HeadStep(Step):
    """Base class; a subclass says how features become logits (:meth:`_logits`), and what it learns for that.

    Scores are computed in blocks, so that the logits are never held as a whole.
    """

    default_score = "energy"
    own_reads: ClassVar[tuple[str, ...]] = (FEATURES,)
    removes: ClassVar[tuple[str, ...]] = (FEATURES,)
    needs_head = True

    class Fitted(NamedTuple):
        """The last layer; a subclass that learns more has a record of its own, with the head in it."""

        head: Annotated[Head, HEAD]

    fitted_: Any

    @abstractmethod
    def _logits(self, features: FloatArray) -> FloatArray:
        """The new logits (n, C) of finite features (n, d), which may be overwritten."""

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> tuple[Head | None, Any]:
        shared = SharedHead()
        own = self._partial_features(shared.checked(chunks))
        return shared.head, own

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
        return same_head(first[0], second[0]), self._merge_features(first[1], second[1])

    def _finish(self, total: Any, turn: int) -> bool:
        if total[0] is not None:
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


class SharedHead:
    """The last layer that all chunks have in common."""

    head: Head | None = None

    def checked(self, chunks: Iterator[ModelOutputs]) -> Iterator[ModelOutputs]:
        """Pass chunks on; one with another last layer is an error."""
        for chunk in chunks:
            self.head = chunk.head if self.head is None else same_head(self.head, chunk.head)
            yield chunk


def same_head(first: Head, second: Head | None) -> Head:
    """The last layer of two parts of the training rows, which must be one."""
    if not first.equals(second):
        raise InvalidInput("all training outputs must have the same head; they come from different networks.")
    return first


def all_features(chunks: Iterator[ModelOutputs]) -> FloatArray:
    """The features of all rows in one array, for percentiles of them."""
    features = join(chunks).features
    if not np.isfinite(features).all():
        raise _validate.invalid_row_error(features, FEATURES)
    return features.astype(np.float64, copy=False)


def percentile_of(value: float) -> float:
    """A percentile strictly between 0 and 100."""
    return 100.0 * _validate.fraction(_validate.real(value, "percentile") / 100.0, "percentile/100")
