"""Steps that change logits or features by a fixed rule: Centred, Tempered, Unit, PresentClasses."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from normscale import _kernels, _validate
from normscale._validate import IntArray
from normscale.detectors.base import About
from normscale.detectors.baseline import MissingClasses, classes_in_training
from normscale.detectors.formula import FeatureFormula, Formula, LogitFormula, SumFormula, with_logit_terms
from normscale.detectors.norm_scaling import NormScaling
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks, unit_rows
from normscale.detectors.step import Score, Step, replaced
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.state import Numbers

_TITLES = {"mahalanobis": "Mahalanobis++", "relative_mahalanobis": "Relative Mahalanobis++"}


@register
class Centred(Step):
    """Logits less their mean over the row, scored by another detector.

    Softmax, and so training, cannot see a number that is added to all logits of a row. On some networks it varies from
    input to input and is larger for OoD inputs: then Energy and the largest logit are upside down. Without it they are
    not; on networks that keep it still, nothing changes. The last layer is centred, too, for scores that read it.

    Examples
    --------
    >>> Centred("max_logit").score([[5.0, 1.0, 0.0], [105.0, 101.0, 100.0]]).tolist()
    [-3.0, -3.0]
    """

    name = "centred"
    about = About(
        "Centred",
        "docs/robust.md",
        cost="one more pass over the logits",
        parameters={"score": "the detector that scores the centred logits; it may read features, too"},
    )
    default_score = "energy"
    own_reads = (LOGITS,)
    learns_nothing = True

    def __init__(self, score: Score = "energy") -> None:
        self._score_by(score)

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        rows = _kernels.less_row_means(outputs.logits)
        if not np.isfinite(rows).all():
            raise _validate.invalid_row_error(outputs.logits, LOGITS, can_skip=True)
        return replaced(outputs, LOGITS, rows, head=outputs.head and outputs.head.centred())

    def _formula(self) -> Formula | None:
        return with_logit_terms(self._scorer_formula(), lambda term: term._replace(centred=True))


@register
class Tempered(Step):
    """Logits divided by a fixed temperature, scored by another detector.

        logits = z / T

    A high temperature makes MSP, entropy and their like look at all logits instead of the largest two. The temperature
    is ODIN's, without ODIN's change of the inputs; nothing is learned, and no OoD data chooses it here.
    ``temperature_scaling`` fits one on labelled rows instead.
    """

    name = "tempered"
    about = About(
        "Tempered",
        'Liang, Li & Srikant 2018: "Enhancing The Reliability of Out-of-distribution Image Detection in Neural '
        'Networks"',
        cost="one pass over the logits, and the score",
        parameters={"score": "the detector that scores the new logits", "temperature": "divides the logits"},
    )
    default_score = "msp"
    own_reads = (LOGITS,)
    learns_nothing = True

    def __init__(self, score: Score = "msp", temperature: float = 1000.0) -> None:
        self._score_by(score)
        self.temperature = _validate.positive(temperature, "temperature")

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        logits = np.empty(outputs.logits.shape)
        for place, block in float_blocks(outputs.logits, LOGITS):
            np.divide(block, self.temperature, out=logits[place])
        return replaced(outputs, LOGITS, logits)

    def _formula(self) -> Formula | None:
        inner, t = self._scorer_formula(), self.temperature
        if isinstance(inner, SumFormula) and inner.ood_position is not None:
            return None
        return with_logit_terms(inner, lambda term: term._replace(shift=term.shift * t, factor=term.factor / t))


@register
class Unit(Step):
    """Every row of features divided by its length, scored by another detector.

    Networks give OoD inputs shorter features than others, which lie near every class mean: a distance then takes them
    for familiar. Directions alone do not. A row of zeros stays one. ``unit+mahalanobis`` is Mahalanobis++.
    """

    name = "unit"
    about = About(
        "Unit length",
        'Mueller & Hein 2025: "Mahalanobis++: Improving OOD Detection via Feature Normalization"',
        cost="one more pass over the features",
        parameters={"score": "the detector that scores the scaled features: any that reads features"},
    )
    default_score = "mahalanobis"
    own_reads = (FEATURES,)
    writes = (FEATURES,)
    learns_nothing = True

    def __init__(self, score: Score = "mahalanobis") -> None:
        self._score_by(score)
        self.about = self.about._replace(title=_TITLES.get(self.scorer.name, self.about.title))

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        unit = np.empty(outputs.features.shape)
        for where, block in float_blocks(outputs.features, FEATURES):
            unit[where] = unit_rows(block)
        return replaced(outputs, FEATURES, unit)

    def _formula(self) -> FeatureFormula | None:
        inner = self._scorer_formula()
        return inner._replace(unit=True) if isinstance(inner, FeatureFormula) else None


_LEFT_OUT = 1e6
"""Taken off a logit that is left out, where a formula must keep its column."""


@register
class PresentClasses(Step):
    """The logits of the classes that are present in the training rows, scored by another detector.

    A classifier may know more classes than the rows at hand. The logits of the missing ones vary less on these rows, so
    that norm-scaling divides them by too little and takes what OoD inputs do to them for certainty. They are left out
    where there are ten rows or more for each present class, and where the median of their standard deviations is below
    .9 of the others'. Else a class may be missing by chance, and its logit counts.

    A class is present when a training row has its label; without labels, when it is predicted at least a fifth as often
    as it would be if all classes were equally frequent.

    Examples
    --------
    >>> train = np.tile([[4.0, 0.0, -3.0], [0.0, 8.0, -3.1], [2.0, 4.0, -3.2]], (10, 1))
    >>> detector = PresentClasses("norm_scaling").fit(train)
    >>> detector.classes_.tolist(), detector.score([[4.0, 0.0, 9.0]]).round(4).tolist()
    ([0, 1], [-2.4495])
    """

    name = "present_classes"
    about = About(
        "Present classes",
        "docs/robust.md",
        cost="one more pass over the logits",
        parameters={"score": "the detector that scores the logits that are left"},
    )
    default_score = "norm_scaling"
    own_reads = (LOGITS,)
    logits_alone = True

    class Fitted(NamedTuple):
        classes: Annotated[IntArray, Numbers("kept", least=0.0)]
        """The columns that are kept."""

    fitted_: Fitted

    def __init__(self, score: Score = "norm_scaling") -> None:
        self._score_by(score)

    @property
    def _in_parts(self) -> bool:
        """All that norm-scaling learns are moments of the logits, and those of the classes that are kept serve it."""
        inner = self.scorer.scorer if isinstance(self.scorer, NormScaling) else None
        return (inner is not None and not inner._needs_fit) or super()._in_parts

    def _partial(self, rows: ModelOutputs, turn: int) -> set[int]:
        """The labels that rows have."""
        return set() if rows.labels is None else set(np.unique(rows.labels).tolist())

    def _finish(self, total: set[int], turn: int) -> Fitted:
        assert self._baseline is not None  # fit reads logits
        present = classes_in_training(self._baseline, total)
        missing = MissingClasses.of(self._baseline, present)
        kept = np.flatnonzero(present if missing is not None and missing.left_out else np.ones_like(present))
        if self._in_parts and self.scorer._needs_fit:
            scorer = self.scorer._learner()
            scorer._widths, scorer._baseline = {LOGITS: kept.size}, self._baseline.of_classes(kept)
            scorer._learn(scorer.Fitted())
            self.scorer._take_over(scorer)
        return self.Fitted(kept)

    def _derive(self) -> None:
        classes, last = self.fitted_.classes, (self._widths or {})[LOGITS]
        if classes.size < 2 or (np.diff(classes) < 1).any() or classes[-1] >= last:
            raise InvalidInput(f"classes must be two or more columns in order, below {last}.")

    @property
    def _all(self) -> bool:
        assert self._widths is not None
        return self.fitted_.classes.size == self._widths[LOGITS]

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        if self._all:
            return outputs
        rows = outputs.logits
        if not np.isfinite(rows).all():
            raise _validate.invalid_row_error(rows, LOGITS, can_skip=True)
        return ModelOutputs._trusted({LOGITS: np.ascontiguousarray(rows[:, self.fitted_.classes])}, outputs.labels)

    def _formula(self) -> LogitFormula | None:
        inner = self._scorer_formula()
        if not isinstance(inner, LogitFormula) or self._all:
            return inner if isinstance(inner, LogitFormula) else None
        if inner.centred:
            return None
        assert self._widths is not None
        width = self._widths[LOGITS]
        shift, factor = np.full(width, _LEFT_OUT), np.ones(width)
        shift[self.fitted_.classes], factor[self.fitted_.classes] = inner.shift, inner.factor
        return inner._replace(shift=shift, factor=factor)
