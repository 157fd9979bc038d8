"""Unit: features are scaled to length one before they are scored."""

from __future__ import annotations

import numpy as np

from normscale.detectors.formula import FeatureFormula
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks, unit_rows
from normscale.detectors.step import Step
from normscale.detectors.wrapper import Score
from normscale.outputs import FEATURES, ModelOutputs

_TITLES = {"mahalanobis": "Mahalanobis++", "relative_mahalanobis": "Relative Mahalanobis++"}


@register
class Unit(Step):
    """Every row of features divided by its length, scored by another detector.

    Networks give OoD inputs shorter features than others, which lie near every class mean: a distance then takes them
    for familiar. Directions alone do not. A row of zeros stays one. ``unit+mahalanobis`` is Mahalanobis++.

    Parameters
    ----------
    score : str or Detector
        What scores the scaled features: any detector that reads features.

    References
    ----------
    Mueller & Hein, "Mahalanobis++: Improving OOD Detection via Feature Normalization", 2025.

    Examples
    --------
    >>> train = ModelOutputs(features=[[2.0, 0.1], [3.0, -0.1], [0.1, 5.0], [-0.1, 1.0]], labels=[0, 0, 1, 1])
    >>> near, short = Unit().fit(train).score(np.array([[9.0, 0.0], [0.1, 0.1]]))
    >>> bool(near < short)
    True
    """

    name = "unit"
    title = "Unit length"
    paper = "Mueller & Hein 2025"
    cost = "one more pass over the features"
    default_score = "mahalanobis"
    own_reads = (FEATURES,)
    writes = (FEATURES,)
    learns_nothing = True
    needs_fit = False
    parameters = {"score": "the detector that scores the scaled features"}

    def __init__(self, score: Score = "mahalanobis") -> None:
        self._score_by(score)
        self.needs_fit = self.scorer.needs_fit
        self.title = _TITLES.get(self.scorer.name, self.title)

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        unit = np.empty(outputs.features.shape)
        for where, block in float_blocks(outputs.features, FEATURES):
            unit[where] = unit_rows(block)
        arrays = {name: outputs.array(name) for name in outputs.names}
        return ModelOutputs._trusted(arrays | {FEATURES: unit}, outputs.labels, outputs.head)

    def formula(self) -> FeatureFormula | None:
        inner = self._scorer_formula()
        return inner._replace(unit=True) if isinstance(inner, FeatureFormula) else None
