"""A wrapper: a detector that stands on the score of another detector, its scorer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from normscale.detectors.base import Detector
from normscale.detectors.registry import JOIN, as_detector, detector_class
from normscale.errors import InvalidInput

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

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.parameters if name != "score"}
        return {"score": short_spec(self.scorer), **own}

    def _inner(self) -> dict[str, Detector]:
        return {"scorer": self.scorer}

    def _set_inner(self, inner: dict[str, Detector]) -> None:
        self.scorer = inner["scorer"]


def short_spec(detector: Detector) -> str | dict[str, Any]:
    """What makes the same, unfitted detector again: its name where that is enough, else its spec."""
    spec = detector.spec()
    plain = spec["parameters"] == detector_class(spec["detector"])().get_params()
    return detector.name if plain else spec
