"""A step: a detector that changes the outputs and lets another detector score them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from normscale._validate import FloatArray
from normscale.detectors.base import Detector, join
from normscale.detectors.registry import JOIN
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

    def _score_by(self, score: Score) -> None:
        super()._score_by(score)
        cls, scorer = type(self), self.scorer
        passed = (name for name in scorer.reads if name not in self.writes)
        self.reads = tuple(dict.fromkeys((*self.own_reads, *passed)))
        self.settings = scorer.settings
        if not set(self.writes) & set(scorer.reads) or set(self.removes) & set(scorer.reads):
            raise InvalidInput(
                f"{cls.name} passes {' and '.join(self.writes)} on, so its score must read that; {scorer.name} reads "
                f"{' and '.join(scorer.reads)}. Try {cls.name}{JOIN}{cls.default_score}."
            )

    # -- what a subclass writes ------------------------------------------------------------------------------

    @abstractmethod
    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        """The outputs that the scorer reads; must raise on rows that are not finite."""

    def _fit_step(self, chunks: Iterator[ModelOutputs]) -> None:
        """Learn what :meth:`_transform` needs; every chunk must be consumed."""
        for _ in chunks:
            pass

    # -- the contract ----------------------------------------------------------------------------------------

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        if not self.scorer.needs_fit:
            self._fit_step(chunks)
            return
        self._require_one_fit()
        train = join(chunks)
        self._fit_step(iter([train]))
        self._start_own()
        self.scorer.fit_chunks([self._transform(train, 1)])

    def why_all_rows(self) -> str:
        if self.scorer.needs_fit:
            return f"{self.scorer.name} is fitted on what {type(self).name} makes of all rows"
        return "" if type(self)._fit_step is Step._fit_step else "its fit takes all rows in one place"

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> None:
        self._fit_step(chunks)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return self.scorer._score(self._transform(outputs, threads), threads)

    def _stream(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return self.scorer._stream(self._transform(outputs, threads), threads)


def require_logit_score(step: Detector, scorer: Detector) -> None:
    """Refuse a scorer that reads anything but logits."""
    if scorer.reads != (LOGITS,):
        raise InvalidInput(
            f"{type(step).__name__} passes scaled logits on, so its score must read logits alone; "
            f"{scorer.name} reads {' and '.join(scorer.reads)}."
        )
