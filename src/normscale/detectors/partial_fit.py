"""A fit in parts: what each part of the rows tells, merged two by two, makes the detector that all rows would make."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

from normscale.detectors.base import Detector
from normscale.detectors.baseline import TrainingBaseline
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs


class Partial(NamedTuple):
    """What some of the training rows tell: a size that does not grow with their number."""

    n_rows: int
    widths: dict[str, int]
    """Columns of every array that the detector reads; empty without rows."""
    baseline: TrainingBaseline | None
    own: Any
    """What :meth:`Detector._partial` gave."""


class PartialFit:
    """The fit of a detector whose training rows are in several places.

    Parameters
    ----------
    detector : Detector
        Left as it is until :meth:`finish` is done.

    Raises
    ------
    InvalidInput
        Where the detector must see all rows at once; :meth:`Detector.why_all_rows` says why.

    Examples
    --------
    >>> from normscale import NormScaling
    >>> fit = PartialFit(NormScaling())
    >>> halves = [fit.partial([ModelOutputs(rows)]) for rows in ([[4.0, 0.0], [0.0, 8.0]], [[2.0, 4.0]])]
    >>> fit.finish(fit.merge(*halves))
    True
    >>> fit.detector.score([[4.0, 0.0]]).round(4).tolist()
    [-2.4495]
    """

    def __init__(self, detector: Detector) -> None:
        """Begin with a detector that has learned nothing."""
        if why := detector.why_all_rows():
            raise InvalidInput(
                f"{detector.name} cannot be fitted in parts: {why}. Fit it on one table that fits into memory, such as "
                "a sample of the rows."
            )
        self.detector = detector
        self._learner = detector._learner()
        self._turn = 0
        self.done = False

    def partial(self, chunks: Iterable[ModelOutputs]) -> Partial:
        """What these rows tell; nothing changes, so that any process may ask for any part of them, also twice."""
        learner = copy.copy(self._learner)
        learner.baseline_ = None
        n_rows = 0

        def counted() -> Iterable[ModelOutputs]:
            nonlocal n_rows
            for chunk in chunks:
                n_rows += len(chunk)
                yield chunk

        own = learner._partial(iter(learner._checked(counted(), counted=self._turn > 0)), self._turn)
        return Partial(n_rows, learner.widths_ or {}, learner.baseline_, own)

    def merge(self, first: Partial, second: Partial) -> Partial:
        """What two parts tell together."""
        if not first.n_rows or not second.n_rows:
            return first if first.n_rows else second
        for name, width in first.widths.items():
            if width != second.widths[name]:
                raise InvalidInput(
                    f"{self.detector.name}: {name} has {width} columns in one part of the rows and "
                    f"{second.widths[name]} in another; all must have the same."
                )
        baseline = first.baseline
        if baseline is not None:
            other = second.baseline
            alike = other is not None and other.predicted.size == baseline.predicted.size
            baseline = baseline.merge(other) if alike and other is not None else None
        own = self._learner._merge(first.own, second.own)
        return Partial(first.n_rows + second.n_rows, first.widths, baseline, own)

    def finish(self, total: Partial) -> bool:
        """Learn from what all rows tell; False where they must be read again: begin anew with :meth:`partial`."""
        if not total.n_rows:
            raise InvalidInput(f"{self.detector.name}: the training outputs are empty; at least one row is needed.")
        learner = self._learner
        if self._turn == 0:
            learner.widths_, learner.baseline_ = dict(total.widths), total.baseline
        self.done = learner._finish(total.own, self._turn)
        self._turn += 1
        if self.done:
            self.detector._take_over(learner)
        return self.done
