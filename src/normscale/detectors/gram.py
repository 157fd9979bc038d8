"""Gram matrices: how far the products of a row's activations leave the range that its class had in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._kernels.members import members_of_each
from normscale._validate import FloatArray, IntArray
from normscale.detectors.base import About, Detector, join
from normscale.detectors.mahalanobis import layer_names
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.state import Numbers

_EDGE = 1e-6
"""Added to a bound before it divides, as in the authors' code: bounds of 0 are common behind a ReLU."""
_HELD_OUT = 10
"""Every tenth training row of a class measures the expected deviation and sets no bounds."""


class GramLayer(NamedTuple):
    """What is learned of a layer."""

    bounds: Annotated[FloatArray, Numbers(2, LOGITS, "powers", "channels")]
    """Smallest and largest value of every statistic, for each class."""
    expected: Annotated[float, Numbers(above=0.0)]
    """The mean deviation of held-out training rows."""


@register
class Gram(Detector):
    """How far the Gram statistics of a row's layers lie outside the range of its predicted class.

    With f a layer's activations and p a power, the statistic of channel i is the sum of row i of the p-th order Gram
    matrix,

        g_i = (f_i^p * sum_j f_j^p) ** (1/p)      (the root keeps the sign)

    Training rows predicted as class c give the smallest and the largest value of every g_i; a new row of class c
    deviates by (min - g) / |min| below and (g - max) / |max| above, summed over channels and powers. The score is the
    sum over layers of the deviation divided by its mean over held-out training rows (every tenth of each class, which
    then sets no bounds); a layer without any such deviation is divided by 1. No OoD data chooses anything.

    The paper has maps, where row i of the Gram matrix is also summed over positions. Layers here are averaged over
    space when they are extracted, so it sees which channels are strong together, not where.

    Examples
    --------
    >>> train = ModelOutputs([[1.0, 0.0]] * 2, features=[[1.0, 2.0], [2.0, 2.0]])
    >>> detector = Gram(powers=1).fit(train)
    >>> detector.bounds_[0][:, 0, 0].tolist()
    [[3.0, 6.0], [8.0, 8.0]]
    >>> detector.score(ModelOutputs([[1.0, 0.0]] * 2, features=[[1.5, 2.0], [4.0, 2.0]])).round(3).tolist()
    [0.0, 2.5]
    """

    name = "gram"
    about = About(
        "Gram",
        'Sastry & Oore 2020: "Detecting Out-of-Distribution Examples with In-distribution Examples and Gram Matrices"',
        cost="a pass over each layer for each power",
        parameters={
            "layers": "names of the arrays that are looked at",
            "powers": "orders of the Gram matrices, 1 to this",
        },
    )

    class Fitted(NamedTuple):
        layers: tuple[GramLayer, ...]

    fitted_: Fitted

    @property
    def bounds_(self) -> list[FloatArray]:
        """Smallest and largest statistics of each layer."""
        return [layer.bounds for layer in self.fitted_.layers]

    def __init__(self, layers: str | Sequence[str] = (FEATURES,), powers: int = 10) -> None:
        self.layers = layer_names(layers)
        if LOGITS in self.layers:
            raise InvalidInput(f"layers must be other arrays than the logits; got {layers}.")
        self.powers = _validate.at_least(powers, "powers", 1)
        self.reads = (LOGITS, *self.layers)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        train = join(chunk.only(*self.reads) for chunk in chunks)
        n_classes = train.n_classes
        predicted = _finite_classes(train)
        held_out = _every_tenth(predicted)
        found = []
        for name in self.layers:
            rows = train.array(name)
            bounds = np.empty((2, n_classes, self.powers, rows.shape[1]))
            bounds[0], bounds[1] = np.inf, -np.inf
            for place, block in float_blocks(rows, name, self.powers * rows.shape[1]):
                own = ~held_out[place]
                statistics = _statistics(block[own], self.powers)
                if not np.isfinite(statistics).all():
                    raise _validate.invalid_row_error(rows, name)
                np.minimum.at(bounds[0], predicted[place][own], statistics)
                np.maximum.at(bounds[1], predicted[place][own], statistics)
            seen = np.isfinite(bounds[0, :, 0, 0])
            bounds[0, ~seen] = bounds[0, seen].min(axis=0)  # a class without rows: the range of all classes
            bounds[1, ~seen] = bounds[1, seen].max(axis=0)
            deviations = self._deviations(rows[held_out], name, predicted[held_out], bounds)
            expected = float(deviations.mean()) if deviations.size else 0.0
            found.append(GramLayer(bounds, expected if expected > 0.0 else 1.0))
        self._learn(self.Fitted(tuple(found)))

    def _deviations(self, rows: NDArray[Any], name: str, predicted: IntArray, bounds: FloatArray) -> FloatArray:
        """How far a layer's statistics lie outside the bounds of the predicted classes; (n,)."""
        out = np.empty(len(rows))
        weights = 1.0 / np.abs(bounds + _EDGE)
        for place, block in float_blocks(rows, name, self.powers * rows.shape[1]):
            classes = predicted[place]
            statistics = _statistics(block, self.powers)
            if not np.isfinite(statistics).all():
                raise _validate.invalid_row_error(rows, name, can_skip=True)
            below = np.maximum(bounds[0][classes] - statistics, 0.0) * weights[0][classes]
            above = np.maximum(statistics - bounds[1][classes], 0.0) * weights[1][classes]
            out[place] = (below + above).sum(axis=(1, 2))
        return out

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        predicted = _finite_classes(outputs)
        total = np.zeros(len(outputs))
        for name, (bounds, expected) in zip(self.layers, self.fitted_.layers, strict=True):
            total += self._deviations(outputs.array(name), name, predicted, bounds) / expected
        return total

    def _derive(self) -> None:
        widths = [layer.bounds.shape[-1] for layer in self.fitted_.layers]
        if self._widths is not None and widths != [self._widths[name] for name in self.layers]:
            raise InvalidInput("there must be bounds for each layer, with a column for each channel.")


def _finite_classes(outputs: ModelOutputs) -> IntArray:
    """The predicted classes; logits that are not finite raise."""
    for _ in float_blocks(outputs.logits, LOGITS):
        pass
    return outputs.predicted


def _every_tenth(predicted: IntArray) -> NDArray[np.bool_]:
    """Rows 10, 20, ... of each class."""
    held_out = np.zeros(predicted.size, dtype=np.bool_)
    for _, members in members_of_each(predicted):
        held_out[members[_HELD_OUT - 1 :: _HELD_OUT]] = True
    return held_out


def _statistics(rows: FloatArray, powers: int) -> FloatArray:
    """The statistics g of rows (n, d); (n, powers, d).

    Rows are divided by their largest number first, so that no power overflows; g is of degree two, and not finite where
    the square of that number is not.
    """
    size = np.abs(rows).max(axis=1, keepdims=True)
    unit = rows / np.where(size > 0.0, size, 1.0)
    out = np.empty((rows.shape[0], powers, rows.shape[1]))
    power = np.ones_like(unit)
    for p in range(1, powers + 1):
        power *= unit
        total = power.sum(axis=1, keepdims=True)
        root = np.sign(total) * np.abs(total) ** (1.0 / p)
        out[:, p - 1] = (unit if p % 2 else np.abs(unit)) * root
    with np.errstate(over="ignore", invalid="ignore"):
        out *= np.square(size)[:, :, None]
    return out
