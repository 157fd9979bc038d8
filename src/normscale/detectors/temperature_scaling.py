"""MSP of logits divided by a temperature that was fitted on labelled validation data."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.formula import LogitFormula, plain_formula
from normscale.detectors.registry import register
from normscale.metrics.temperature import Slopes, TemperatureSearch, slopes
from normscale.outputs import ModelOutputs
from normscale.scores import msp_score
from normscale.state import Numbers


@register
class TemperatureScaling(Detector):
    """The temperature that minimises the negative log-likelihood, then the log-odds of being wrong.

    Fit it on labelled rows that the classifier was not trained on: on its own training set a network is right
    nearly always and the temperature comes out too low.

    References
    ----------
    Guo et al., "On Calibration of Modern Neural Networks", 2017.

    Examples
    --------
    >>> from normscale import ModelOutputs
    >>> validation = ModelOutputs([[4.0, 0.0]] * 3 + [[0.0, 4.0]], labels=[0, 0, 1, 1])
    >>> round(TemperatureScaling().fit(validation).temperature_, 4)
    3.641
    """

    name = "temperature_scaling"
    title = "Temperature Scaling"
    paper = "Guo et al. 2017"
    cost = "one pass over the logits"
    fitted_on = "validation"
    needs_labels = True

    class Fitted(NamedTuple):
        temperature: Annotated[float, Numbers(above=0.0)]

    fitted_: Fitted
    _reads_again = True

    def _begin(self) -> TemperatureSearch:
        return TemperatureSearch()

    def _partial(self, rows: ModelOutputs, turn: int) -> Slopes:
        assert rows.labels is not None  # the contract checked it
        known = rows.labels >= 0
        return slopes(rows.logits[known], rows.labels[known], self._fitting.asks)

    def _finish(self, total: Slopes, turn: int) -> Fitted | None:
        self._fitting.tell(total)
        return None if self._fitting.temperature is None else self.Fitted(self._fitting.temperature)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return msp_score(outputs.logits, self.fitted_.temperature, threads=threads)

    def formula(self) -> LogitFormula:
        return plain_formula("log_odds", self.fitted_.temperature)
