"""Logits divided by a temperature before another detector scores them."""

from __future__ import annotations

import numpy as np

from normscale import _validate
from normscale.detectors.formula import LogitFormula, SumFormula
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks
from normscale.detectors.step import Step
from normscale.detectors.wrapper import Score
from normscale.outputs import LOGITS, ModelOutputs


@register
class Tempered(Step):
    """Logits divided by a fixed temperature, scored by another detector.

        logits = z / T

    A high temperature makes MSP, entropy and their like look at all logits instead of the largest two. The temperature
    is ODIN's, without ODIN's change of the inputs; nothing is learned, and no OoD data chooses it here.
    ``temperature_scaling`` fits one on labelled rows instead.

    Parameters
    ----------
    score : str or Detector
        What scores the new logits.
    temperature : float
        T.

    References
    ----------
    Liang, Li & Srikant, "Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks", 2018.

    Examples
    --------
    >>> detector = Tempered("max_logit", temperature=4.0)
    >>> detector.name, detector.score([[2.0, 0.0], [0.5, 0.0]]).tolist()
    ('tempered+max_logit', [-0.5, -0.125])
    """

    name = "tempered"
    title = "Tempered"
    paper = "Liang, Li & Srikant 2018"
    cost = "one pass over the logits, and the score"
    default_score = "msp"
    own_reads = (LOGITS,)
    parameters = {"score": "the detector that scores the new logits", "temperature": "divides the logits"}

    def __init__(self, score: Score = "msp", temperature: float = 1000.0) -> None:
        self._score_by(score)
        self.temperature = _validate.positive(temperature, "temperature")
        self.needs_fit = self.scorer.needs_fit

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        logits = np.empty(outputs.logits.shape)
        for place, block in float_blocks(outputs.logits, LOGITS):
            np.divide(block, self.temperature, out=logits[place])
        arrays = {name: logits if name == LOGITS else outputs.array(name) for name in outputs.names}
        return ModelOutputs._trusted(arrays, outputs.labels, outputs.head)

    def formula(self) -> LogitFormula | SumFormula | None:
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
