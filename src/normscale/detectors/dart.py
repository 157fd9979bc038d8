"""DART: an in-distribution and an OoD prototype of the features, both tracked along the stream."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import About, Detector
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of, lengths
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.scaling import scale_factor
from normscale.scores import energy_score
from normscale.state import Numbers

_IS_OOD = "is_ood"
"""The array of prepared rows that says which count as OoD."""


@register
class DART(Detector):
    """How much nearer the features are to a tracked OoD prototype than to a tracked in-distribution one.

        score = |x - p_in| / (|x - p_in| + |x - p_out|)

    with x the features standardised by mean and standard deviation of the training rows. Both prototypes begin as
    means of training rows: p_out of those whose Energy score lies more than one standard deviation above its mean,
    p_in of the others. Every row of the stream moves one of them a small step towards itself, chosen by its Energy in
    the same way, and is then scored. ``score`` uses the prototypes as they are.

    This is the paper's idea in a form of our own, made from its abstract: how rows choose a prototype, the step and the
    distance are ours. The paper works on batches, joins several layers, and turns the axis round where it was flipped.
    Its constants were set after looking at eight OoD sets of a CIFAR-10 ResNet-20, so figures on that network flatter
    it. Do not take its results for the authors'.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = np.abs(rng.normal(size=(200, 3)))
    >>> detector = DART().fit(ModelOutputs(rows, features=rows))
    >>> detector.stream(ModelOutputs(rows[:2], features=rows[:2])).round(2).tolist()
    [0.73, 0.81]
    """

    name = "dart"
    about = About(
        "DART",
        'Lee et al. 2026: "Tracking the Discriminative Axis: Dual Prototypes for Test-Time OOD Detection Under '
        'Covariate Shift"',
        cost="two distances a row; in a stream one row after the other",
        parameters={"memory": "rows of one kind after which a prototype has moved two thirds of the way"},
    )
    reads = (LOGITS, FEATURES)
    _holds_threshold_in_stream = False
    _reads_again = True

    class Fitted(NamedTuple):
        limit: float
        mean: Annotated[FloatArray, Numbers(FEATURES)]
        factor: Annotated[FloatArray, Numbers(FEATURES, least=0.0)]
        inside: Annotated[FloatArray, Numbers(FEATURES)]
        outside: Annotated[FloatArray, Numbers(FEATURES)]

    class State(NamedTuple):
        """The prototypes as the stream has left them."""

        inside: Annotated[FloatArray, Numbers(FEATURES)]
        outside: Annotated[FloatArray, Numbers(FEATURES)]

    fitted_: Fitted

    def __init__(self, memory: float = 1000.0) -> None:
        self.memory = _validate.positive(memory, "memory")
        if self.memory < 1.0:
            raise InvalidInput(f"memory must be at least 1; got {memory!r}.")

    def _partial(self, rows: ModelOutputs, turn: int) -> Any:
        if turn == 0:
            return RunningMoments(1).update(energy_score(rows.logits)[:, None])
        found = [RunningMoments(rows.features.shape[1]) for _ in range(2)]
        for _, logits, features in blocks_of(rows, self.reads, fitting=True):
            is_ood = energy_score(logits) > self._fitting
            for side, moments in enumerate(found):
                moments.update(features[is_ood == side])
        return found

    def _finish(self, total: Any, turn: int) -> Fitted | None:
        if turn == 0:
            self._fitting = float(total.mean[0] + total.std[0])  # the Energy above which a row counts as OoD
            return None
        assert self._baseline is not None  # fit reads logits
        moments = self._baseline.others[FEATURES]
        factor = scale_factor(moments)
        inside, outside = ((one.mean - moments.mean) * factor for one in total)
        return self.Fitted(self._fitting, moments.mean, factor, inside, outside)

    def _standardised(self, features: FloatArray) -> FloatArray:
        features -= self.fitted_.mean
        features *= self.fitted_.factor
        return features

    def _start(self) -> State:
        return self.State(self.fitted_.inside, self.fitted_.outside)

    def _score_at(self, state: State, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for where, _, features in blocks_of(outputs, self.reads):
            rows = self._standardised(features)
            near, far = lengths(rows - state.inside), lengths(rows - state.outside)
            scores[where] = near / np.maximum(near + far, np.finfo(np.float64).tiny)
        return scores

    def _prepare(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        features = np.empty(outputs.features.shape)
        for where, _, block in blocks_of(outputs, self.reads):
            features[where] = self._standardised(block)
        is_ood = energy_score(outputs.logits, threads=threads) > self.fitted_.limit
        return ModelOutputs._trusted({FEATURES: features, _IS_OOD: is_ood[:, None]})

    def _step(self, state: State, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, State]:
        scores = np.empty(len(prepared))
        prototypes = [state.inside.copy(), state.outside.copy()]
        for i, (row, side) in enumerate(zip(prepared.features, prepared.array(_IS_OOD)[:, 0].tolist(), strict=True)):
            prototypes[side] += (row - prototypes[side]) / self.memory
            near, far = lengths(row - np.stack(prototypes)).tolist()
            scores[i] = near / max(near + far, float(np.finfo(np.float64).tiny))
        return scores, self.State(*prototypes)
