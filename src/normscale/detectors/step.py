"""A step: a detector that changes the outputs and lets another detector score them."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray
from normscale.detectors.base import Detector, join
from normscale.detectors.baseline import TrainingBaseline
from normscale.detectors.registry import JOIN, as_detector, detector_class
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs

_SCORER = "scorer."
"""Before the names of the scorer's arrays in a file."""

Score = str | Mapping[str, Any] | Detector
"""What a step's ``score`` may be: a detector's name, its :meth:`Detector.spec`, or a detector."""


class Step(Detector):
    """Base class of the steps; a subclass says how outputs are changed (:meth:`_transform`).

    Steps are detectors like any other: fitted, saved, loaded, served and named on the command line, where
    ``react+energy`` is the step ``react`` whose outputs ``energy`` scores. The score may be a step again.

    A subclass has the parameter ``score`` and calls :meth:`_score_by` in its constructor.
    """

    default_score: ClassVar[str]
    """Which detector scores where nothing else is said."""
    own_reads: ClassVar[tuple[str, ...]]
    """What :meth:`_transform` reads."""
    writes: ClassVar[tuple[str, ...]] = (LOGITS,)
    """The arrays that :meth:`_transform` puts in."""
    removes: ClassVar[tuple[str, ...]] = ()
    """The arrays that are not there any more after it."""

    scorer: Detector
    """The detector that scores the changed outputs."""

    def _score_by(self, score: Score) -> None:
        """Keep the detector that scores; name, arrays and settings follow from it."""
        self.scorer = scorer = as_detector(score)
        cls = type(self)
        if scorer.name != cls.default_score:
            self.name = f"{cls.name}{JOIN}{scorer.name}"
            self.title = f"{cls.title} + {scorer.title or scorer.name}"
        self.reads = tuple(
            dict.fromkeys((*self.own_reads, *(name for name in scorer.reads if name not in self.writes)))
        )
        self.settings = scorer.settings
        self.needs_labels = cls.needs_labels or scorer.needs_labels
        self.reads_in_fit = scorer.reads_in_fit
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

    def _step_tensors(self) -> dict[str, NDArray[Any]]:
        """The step's own fitted arrays."""
        return {}

    def _restore_step(self, tensors: dict[str, NDArray[Any]]) -> None:
        """Take the step's own fitted arrays back in."""

    # -- the contract ----------------------------------------------------------------------------------------

    def get_params(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.parameters if name != "score"}
        spec = self.scorer.spec()
        plain = spec["parameters"] == detector_class(spec["detector"])().get_params()
        return {"score": self.scorer.name if plain else spec, **own}

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        if not self.scorer.needs_fit:
            self._fit_step(chunks)
            return
        if self.scorer.fitted_on != self.fitted_on:
            raise InvalidInput(
                f"{self.name}: {type(self).name} is fitted on {self.fitted_on} outputs and {self.scorer.name} on "
                f"{self.scorer.fitted_on} outputs, so one fit cannot serve both. Choose another score."
            )
        train = join(chunks)
        self._fit_step(iter([train]))
        self._start_step()
        self.scorer.fit(self._transform(train, 1))

    def _start_step(self) -> None:
        """Begin a new stream from what ``fit`` learned, without the scorer."""

    def _start(self) -> None:
        self._start_step()
        self.scorer._start()

    def _separate(self) -> None:
        self.scorer = copy.copy(self.scorer)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return self.scorer._score(self._transform(outputs, threads), threads)

    def _stream(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return self.scorer._stream(self._transform(outputs, threads), threads)

    def _tensors(self) -> dict[str, NDArray[Any]]:
        scorer = self.scorer
        inner = {} if scorer.baseline_ is None else scorer.baseline_.tensors()
        if scorer.widths_ is not None:
            inner["widths"] = np.array([scorer.widths_[name] for name in scorer.reads])
        inner |= scorer._tensors() if scorer.is_fitted else {}
        return {**self._step_tensors(), **{f"{_SCORER}{name}": array for name, array in inner.items()}}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self._restore_step(tensors)
        scorer = self.scorer
        inner = {name.removeprefix(_SCORER): array for name, array in tensors.items() if name.startswith(_SCORER)}
        if "widths" in inner:
            scorer.widths_ = dict(zip(scorer.reads, (int(width) for width in inner["widths"]), strict=True))
        scorer.baseline_ = TrainingBaseline.from_tensors(inner)
        if scorer.is_fitted:
            scorer._restore(inner)
        else:
            raise InvalidInput(f"the state of {scorer.name} is missing.")


def require_logit_score(step: Detector, scorer: Detector) -> None:
    """Refuse a scorer that reads anything but logits."""
    if scorer.reads != (LOGITS,):
        raise InvalidInput(
            f"{type(step).__name__} passes scaled logits on, so its score must read logits alone; "
            f"{scorer.name} reads {' and '.join(scorer.reads)}."
        )
