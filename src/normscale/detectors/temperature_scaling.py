"""MSP of logits divided by a temperature that was fitted on labelled validation data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple, Self

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
        """The temperature."""

        temperature: Annotated[float, Numbers(above=0.0)]

    fitted_: Fitted

    _reads_again = True
    _search: TemperatureSearch
    """Of the fit that is under way."""

    def _learner(self) -> Self:
        learner = super()._learner()
        learner._search = TemperatureSearch()
        return learner

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> Slopes:
        total = slopes([], [], self._search.asks)
        for chunk in chunks:
            assert chunk.labels is not None  # the contract checked it
            known = chunk.labels >= 0
            total = total.merge(slopes(chunk.logits[known], chunk.labels[known], self._search.asks))
        return total

    def _merge(self, first: Slopes, second: Slopes) -> Slopes:
        return first.merge(second)

    def _finish(self, total: Slopes, turn: int) -> bool:
        self._search.tell(total)
        if self._search.temperature is None:
            return False
        self._learn(self.Fitted(self._search.temperature))
        del self._search
        return True

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return msp_score(outputs.logits, self.fitted_.temperature, threads=threads)

    def formula(self) -> LogitFormula:
        return plain_formula("log_odds", self.fitted_.temperature)
