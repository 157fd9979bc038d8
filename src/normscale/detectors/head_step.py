"""Steps between features and logits: they change one or the other where the last layer turns features into logits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import join
from normscale.detectors.row_blocks import blocks_of
from normscale.detectors.step import Step
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
        """The last layer; a subclass that learns more has a record of its own, with the head first."""

        head: Annotated[Head, HEAD]

    fitted_: Any

    @abstractmethod
    def _logits(self, *blocks: FloatArray) -> FloatArray:
        """The new logits (n, C) of finite rows of :attr:`own_reads`, features (n, d) first; they may be overwritten."""

    def _told_features(self, rows: ModelOutputs) -> Any:
        """What the features of some rows tell, besides the head."""
        Step._partial(self, rows, 0)  # looks for rows that are not finite

    def _learned(self, head: Head, told: Any) -> Any:
        """The record :attr:`fitted_`, by the head and what the features of all rows tell."""
        return self.Fitted(head)

    def _partial(self, rows: ModelOutputs, turn: int) -> tuple[Head | None, Any]:
        return rows.head, self._told_features(rows)

    def _finish(self, total: Any, turn: int) -> Any:
        return self._learned(*total)

    @property
    def _width(self) -> int:
        return int(self.fitted_.head.n_classes)

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        logits = np.empty((len(outputs), self._width))
        for place, *blocks in blocks_of(outputs, self.own_reads, self._width):
            logits[place] = self._logits(*blocks)
        others = {name: outputs.array(name) for name in outputs.names if name not in (*self.removes, LOGITS)}
        return ModelOutputs._trusted({LOGITS: logits, **others}, outputs.labels)


class PercentileStep(HeadStep):
    """Base class of those that learn percentiles of all training activations together."""

    def _fit_step(self, chunks: Iterator[ModelOutputs]) -> None:
        train = join(chunks)
        assert train.head is not None  # the contract checked it
        if not np.isfinite(train.features).all():
            raise _validate.invalid_row_error(train.features, FEATURES)
        self._learn(self._learned(train.head, train.features.astype(np.float64, copy=False)))

    def why_all_rows(self) -> str:
        return "it learns percentiles of all training activations"


def percentile_of(value: float) -> float:
    """A percentile strictly between 0 and 100."""
    return 100.0 * _validate.fraction(_validate.real(value, "percentile") / 100.0, "percentile/100")
