"""Steps that learn nothing: logits less their mean, logits over a temperature, features of length one."""

from __future__ import annotations

import numpy as np

from normscale import _kernels, _validate
from normscale.detectors.base import About
from normscale.detectors.formula import FeatureFormula, Formula, LogitFormula, SumFormula
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks, unit_rows
from normscale.detectors.step import Score, Step, replaced
from normscale.outputs import FEATURES, LOGITS, ModelOutputs

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
        found = replaced(outputs, LOGITS, rows)
        return (
            found
            if outputs.head is None
            else ModelOutputs._trusted(
                {name: found.array(name) for name in found.names}, found.labels, outputs.head.centred()
            )
        )

    def _formula(self) -> Formula | None:
        return _centred_formula(self._scorer_formula())


def _centred_formula(inner: Formula | None) -> Formula | None:
    if isinstance(inner, LogitFormula):
        return inner._replace(centred=True)
    if not isinstance(inner, SumFormula):
        return None
    terms = tuple((weight, found) for weight, term in inner.terms if (found := _centred_formula(term)) is not None)
    return inner._replace(terms=terms) if len(terms) == len(inner.terms) else None


@register
class Tempered(Step):
    """Logits divided by a fixed temperature, scored by another detector.

        logits = z / T

    A high temperature makes MSP, entropy and their like look at all logits instead of the largest two. The temperature
    is ODIN's, without ODIN's change of the inputs; nothing is learned, and no OoD data chooses it here.
    ``temperature_scaling`` fits one on labelled rows instead.

    Examples
    --------
    >>> detector = Tempered("max_logit", temperature=4.0)
    >>> detector.name, detector.score([[2.0, 0.0], [0.5, 0.0]]).tolist()
    ('tempered+max_logit', [-0.5, -0.125])
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
        inner = self._scorer_formula() if self.scorer.reads == (LOGITS,) else None
        if isinstance(inner, LogitFormula):
            return self._tempered(inner)
        if not isinstance(inner, SumFormula) or inner.ood_position is not None:
            return None
        terms = [(weight, self._tempered(term)) for weight, term in inner.terms if isinstance(term, LogitFormula)]
        return inner._replace(terms=tuple(terms)) if len(terms) == len(inner.terms) else None

    def _tempered(self, formula: LogitFormula) -> LogitFormula:
        t = self.temperature
        return formula._replace(shift=formula.shift * t, factor=formula.factor / t)


@register
class Unit(Step):
    """Every row of features divided by its length, scored by another detector.

    Networks give OoD inputs shorter features than others, which lie near every class mean: a distance then takes them
    for familiar. Directions alone do not. A row of zeros stays one. ``unit+mahalanobis`` is Mahalanobis++.

    Examples
    --------
    >>> train = ModelOutputs(features=[[2.0, 0.1], [3.0, -0.1], [0.1, 5.0], [-0.1, 1.0]], labels=[0, 0, 1, 1])
    >>> near, short = Unit().fit(train).score(np.array([[9.0, 0.0], [0.1, 0.1]]))
    >>> bool(near < short)
    True
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
