"""A step: a detector that changes the outputs and lets another detector score them."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray
from normscale.detectors.base import Detector, join
from normscale.detectors.formula import Formula, offered_formula
from normscale.detectors.partial_fit import PartialFit
from normscale.detectors.registry import JOIN
from normscale.detectors.row_blocks import block_rows, row_slices
from normscale.detectors.wrapper import Score, Wrapper
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs


class Step(Wrapper):
    """Base class of the steps; a subclass says how outputs are changed (:meth:`_transform`).

    ``react+energy`` is the step ``react`` whose outputs ``energy`` scores.
    """

    writes: ClassVar[tuple[str, ...]] = (LOGITS,)
    """The arrays that :meth:`_transform` puts in."""
    removes: ClassVar[tuple[str, ...]] = ()
    """The arrays that are not there any more after it."""
    learns_nothing: ClassVar[bool] = False
    """Whether training rows say nothing to the step itself; its scorer is then fitted as by itself."""

    def _score_by(self, score: Score) -> None:
        super()._score_by(score)
        cls, scorer = type(self), self.scorer
        passed = (name for name in scorer.reads if name not in self.writes)
        self.reads = tuple(dict.fromkeys((*self.own_reads, *passed)))
        self.settings = scorer.settings
        self._reads_again = self.learns_nothing and scorer._reads_again
        if not set(self.writes) & set(scorer.reads) or set(self.removes) & set(scorer.reads):
            raise InvalidInput(
                f"{cls.name} passes {' and '.join(self.writes)} on, so its score must read that; {scorer.name} reads "
                f"{' and '.join(scorer.reads)}. Try {cls.name}{JOIN}{cls.default_score}."
            )

    # -- what a subclass writes ------------------------------------------------------------------------------

    @abstractmethod
    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        """The outputs that the scorer reads; must raise on rows that are not finite."""

    # -- the contract: a step's state is that of its scorer --------------------------------------------------

    @property
    def _in_parts(self) -> bool:
        """Whether parts of the rows tell all: there is one thing to learn, by the step or by its scorer."""
        return not self.scorer.needs_fit or (self.learns_nothing and not self.scorer.why_all_rows())

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        if self._in_parts:
            super()._fit(chunks)
            return
        self._require_one_fit()
        train = join(chunks)
        if not self.learns_nothing:
            super()._fit(iter([train]))
        self.scorer.fit_chunks(self._transformed([train]))

    def why_all_rows(self) -> str:
        if self._in_parts:
            return ""
        said = f"{self.scorer.name} is fitted on what {type(self).name} makes of all rows"
        return self.scorer.why_all_rows() if self.learns_nothing else said

    def _transformed(self, chunks: Iterable[ModelOutputs]) -> Iterator[ModelOutputs]:
        for chunk in chunks:
            for part in row_slices(chunk):
                try:
                    yield self._transform(part, 1)
                except InvalidInput:
                    self._transform(chunk, 1)  # names the row as its place among all
                    raise

    def _scorer_fit(self, turn: int) -> PartialFit:
        if turn == 0:
            self._require_one_fit()
            self._fitting = PartialFit(self.scorer)
        return self._fitting

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> Any:
        if not (self.learns_nothing and self.scorer.needs_fit):
            return super()._partial(chunks, turn)
        return self._scorer_fit(turn).partial(self._transformed(chunks))

    def _merge(self, first: Any, second: Any) -> Any:
        return first if first is None else PartialFit(self.scorer).merge(first, second)

    def _finish(self, total: Any, turn: int) -> bool:
        if total is None:
            return super()._finish(total, turn)
        done = self._scorer_fit(turn).finish(total)
        if done:
            del self._fitting
            self._learn(self.Fitted())
        return done

    @property
    def _in_place(self) -> bool:
        return self.scorer._in_place

    def _score_at(self, state: Any, outputs: ModelOutputs, threads: int) -> FloatArray:
        size = block_rows(max(self._width, *(outputs.array(name).shape[1] for name in self.own_reads)))
        if len(outputs) <= size:
            return self.scorer._score_at(state, self._transform(outputs, threads), threads)
        scores = np.empty(len(outputs))
        for a in range(0, len(outputs), size):  # so that what is passed on is never held as a whole
            try:
                part = self._transform(outputs[a : a + size], threads)
                scores[a : a + size] = self.scorer._score_at(state, part, threads)
            except InvalidInput:
                self._transform(outputs, threads)  # names the row as its place among all
                raise
        return scores

    @property
    def _width(self) -> int:
        """Numbers per row of what is passed on, where that is more than what is read."""
        return 0

    def _start(self) -> Any:
        return self.scorer._start()

    def _calmed(self, state: Any) -> Any:
        return self.scorer._calmed(state)

    def _prepare(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        return self.scorer._prepare(self._transform(outputs, threads), threads)

    def _step(self, state: Any, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, Any]:
        return self.scorer._step(state, prepared, threads)

    def _merge_states(self, first: Any, second: Any) -> Any:
        return self.scorer._merge_states(first, second)

    def _blank(self) -> Any:
        return self.scorer._blank()

    def _read_state(self, arrays: Mapping[str, NDArray[Any]], name: str = "state") -> Any:
        return self.scorer._read_state(arrays, name)

    def _scorer_formula(self) -> Formula | None:
        """The formula that the scorer offers, by the running statistics that this step keeps for it."""
        scorer = self.scorer
        if self._runs:
            scorer = copy.copy(scorer)
            scorer.state_ = self._current()
        return offered_formula(scorer)


def require_logit_score(step: Detector, scorer: Detector) -> None:
    """Refuse a scorer that reads anything but logits."""
    if scorer.reads != (LOGITS,):
        raise InvalidInput(
            f"{type(step).__name__} passes scaled logits on, so its score must read logits alone; "
            f"{scorer.name} reads {' and '.join(scorer.reads)}."
        )
