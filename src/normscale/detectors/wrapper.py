"""A wrapper: a detector that stands on the score of another detector, its scorer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from normscale.detectors.base import Detector
from normscale.detectors.baseline import TrainingBaseline
from normscale.detectors.registry import JOIN, as_detector, detector_class
from normscale.errors import InvalidInput

_SCORER = "scorer."
"""Before the names of the scorer's arrays in a file."""

Score = str | Mapping[str, Any] | Detector
"""What ``score`` may be: a detector's name, its :meth:`Detector.spec`, or a detector."""


class Wrapper(Detector):
    """Base class of detectors with the parameter ``score``; a subclass calls :meth:`_score_by` in its constructor.

    They are detectors like any other: fitted, saved, loaded, served and named on the command line, where ``a+b`` is the
    wrapper ``a`` around the scorer ``b``, which may be a wrapper again.
    """

    default_score: ClassVar[str]
    """Which detector scores where nothing else is said."""
    own_reads: ClassVar[tuple[str, ...]]
    """What the wrapper itself reads, besides its scorer."""

    scorer: Detector

    def _score_by(self, score: Score) -> None:
        """Keep the detector that scores; name, arrays and needs follow from it."""
        self.scorer = scorer = as_detector(score)
        cls = type(self)
        if scorer.name != cls.default_score:
            self.name = f"{cls.name}{JOIN}{scorer.name}"
            self.title = f"{cls.title} + {scorer.title or scorer.name}"
        self.reads = tuple(dict.fromkeys((*self.own_reads, *scorer.reads)))
        self.needs_labels = cls.needs_labels or scorer.needs_labels
        self.needs_head = cls.needs_head or scorer.needs_head
        self.reads_in_fit = scorer.reads_in_fit

    def _require_one_fit(self) -> None:
        """Refuse a scorer that is fitted on other rows than the wrapper."""
        if self.scorer.needs_fit and self.scorer.fitted_on != self.fitted_on:
            raise InvalidInput(
                f"{self.name}: {type(self).name} is fitted on {self.fitted_on} outputs and {self.scorer.name} on "
                f"{self.scorer.fitted_on} outputs, so one fit cannot serve both. Choose another score."
            )

    # -- what a subclass writes ------------------------------------------------------------------------------

    def _own_tensors(self) -> dict[str, NDArray[Any]]:
        """The wrapper's own fitted arrays."""
        return {}

    def _restore_own(self, tensors: dict[str, NDArray[Any]]) -> None:
        """Take the wrapper's own fitted arrays back in; the scorer is there already."""

    def _start_own(self) -> None:
        """Begin a new stream from what ``fit`` learned, without the scorer."""

    # -- the contract ----------------------------------------------------------------------------------------

    def get_params(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.parameters if name != "score"}
        return {"score": short_spec(self.scorer), **own}

    def _start(self) -> None:
        self._start_own()
        self.scorer._start()

    def _steady(self) -> None:
        self.scorer._steady()
        super()._steady()

    def _separate(self) -> None:
        self.scorer = copy.copy(self.scorer)

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return {**self._own_tensors(), **inner_tensors(self.scorer, _SCORER)}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        restore_inner(self.scorer, _SCORER, tensors)
        self._restore_own(tensors)


def short_spec(detector: Detector) -> str | dict[str, Any]:
    """What makes the same, unfitted detector again: its name where that is enough, else its spec."""
    spec = detector.spec()
    plain = spec["parameters"] == detector_class(spec["detector"])().get_params()
    return detector.name if plain else spec


def inner_tensors(inner: Detector, prefix: str) -> dict[str, NDArray[Any]]:
    """The state of a detector inside another's file, every name behind a prefix."""
    tensors = {} if inner.baseline_ is None else inner.baseline_.tensors()
    if inner.widths_ is not None:
        tensors["widths"] = np.array([inner.widths_[name] for name in inner.reads])
    tensors |= inner._tensors() if inner.is_fitted else {}
    return {f"{prefix}{name}": array for name, array in tensors.items()}


def restore_inner(inner: Detector, prefix: str, tensors: dict[str, NDArray[Any]]) -> None:
    """Give a detector inside another's file its state back."""
    own = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
    if "widths" in own:
        inner.widths_ = dict(zip(inner.reads, (int(width) for width in own["widths"]), strict=True))
    inner.baseline_ = TrainingBaseline.from_tensors(own)
    if not inner.is_fitted:
        raise InvalidInput(f"the state of {inner.name} is missing.")
    inner._restore(own)
