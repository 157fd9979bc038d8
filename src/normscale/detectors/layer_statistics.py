"""Statistics of whole layers beside those of training: Gram, WeiPer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._kernels import members_of_each
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.base import About, Detector, join
from normscale.detectors.mahalanobis import layer_names
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks, lengths
from normscale.detectors.step import DECLARED_HEAD
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, HEAD, LOGITS, Head, ModelOutputs
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

    The paper also sums over positions; layers here are averaged over space when they are extracted.
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


_FLOOR_OF_FEATURES, _FLOOR_OF_LOGITS = 0.01, 0.025
"""Added to every bin of a histogram of features, of disturbed logits; the authors' values."""

_MOST_COUNTED, _MOST_WEIGHED = 10_000, 2000
"""Training rows that the histograms are of (each gives a hundred logits of every class), and that lambda_2 is from."""
_PRODUCTS = 1 << 18
"""Disturbed logits that are held at once, where those of a row under one disturbance are no more."""


class Histogram(NamedTuple):
    """Bins of equal width over the range of the training values, and the training rows' mean share in each."""

    low: float
    high: float
    shares: Annotated[FloatArray, Numbers("bins", least=0.0)]

    def check(self) -> None:
        """Raise where there is no range."""
        if self.low >= self.high:
            raise InvalidInput("histograms must have a range: low below high.")

    def counts(self, values: FloatArray) -> FloatArray:
        """How many of every row's values (n, m) are in each bin; those out of range are in none. Shape (n, bins)."""
        n, bins = values.shape[0], self.shares.size
        position = (values - self.low) * (bins / (self.high - self.low)) + 1.0  # bins 0 and bins + 1: out of range
        np.clip(position, 0.0, bins + 1.0, out=position)
        index = position.astype(np.int32)
        index += np.arange(0, n * (bins + 2), bins + 2, dtype=np.int32)[:, None]
        return np.bincount(index.ravel(), minlength=n * (bins + 2)).reshape(n, bins + 2)[:, 1:-1].astype(np.float64)

    def divergence(self, shares: FloatArray, smoothing: int, floor: float) -> FloatArray:
        """Both Kullback-Leibler divergences between training and every row's smoothed histogram, added; (n,)."""
        own = _smoothed(shares, smoothing) + floor
        own /= own.sum(axis=1, keepdims=True)
        train = self.shares + floor
        train = train / train.sum()
        return ((own - train) * np.log(own / train)).sum(axis=1)


_NONE = Histogram(0.0, 1.0, np.zeros(0))
"""Before training rows were looked at."""


@register
class WeiPer(Detector):
    """WeiPer with the KLD score: histograms of a row's features and of its logits under disturbed weights.

        score = KL(features) + lambda_1 KL(logits) - lambda_2 MSP

    Every class's weights are disturbed ``repeats`` times by random vectors of ``distance`` times their own length. One
    histogram is over a row's features, one over all its disturbed logits; each is smoothed and compared with the mean
    over up to 10 000 training rows by the symmetric Kullback-Leibler divergence. MSP is the mean over the repeats of
    the largest softmax probability.

    The authors choose the parameters on OoD data of each network; the defaults are theirs for CIFAR-10. But lambda_2
    makes MSP vary as much over the training rows as both divergences do: their 0.1 ranks little better than chance on
    other networks.
    """

    name = "weiper"
    about = About(
        "WeiPer+KLD",
        'Granz, Heurich & Landgraf 2024: "WeiPer: OOD Detection using Weight Perturbations of Class Projections"',
        cost="a matrix product with a hundred perturbed last layers",
        parameters={
            "repeats": "how often the weights are disturbed",
            "distance": "length of the disturbance, relative to the weights' own",
            "bins": "of the histograms",
            "lambda_1": "weight of the divergence of the disturbed logits",
            "lambda_2": "weight of the largest softmax probability; by default from the training rows",
            "smoothing": "bins averaged in the histogram of the features",
            "logit_smoothing": "bins averaged in the histogram of the disturbed logits",
            "seed": "of the disturbances",
        },
    )
    reads = (FEATURES,)
    reads_in_fit = (HEAD,)

    class Fitted(NamedTuple):
        head: Annotated[Head, DECLARED_HEAD]
        features: Histogram
        logits: Histogram
        msp_weight: float

    fitted_: Fitted
    _disturbed: NDArray[np.float32]

    def __init__(
        self,
        repeats: int = 100,
        distance: float = 1.8,
        bins: int = 100,
        lambda_1: float = 2.5,
        lambda_2: float | None = None,
        smoothing: int = 4,
        logit_smoothing: int = 15,
        seed: int = 0,
    ) -> None:
        self.repeats = _validate.at_least(repeats, "repeats", 1)
        self.distance = _validate.positive(distance, "distance")
        self.bins = _validate.at_least(bins, "bins", 2)
        self.lambda_1 = _validate.real(lambda_1, "lambda_1")
        self.lambda_2 = None if lambda_2 is None else _validate.real(lambda_2, "lambda_2")
        self.smoothing = _validate.at_least(smoothing, "smoothing", 1)
        self.logit_smoothing = _validate.at_least(logit_smoothing, "logit_smoothing", 1)
        self.seed = _validate.at_least(seed, "seed", 0)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        train = join(chunks)  # the bins depend on the range of all rows, so that rows are read twice
        head, train = train.head, train[_sampled(train.features, _MOST_COUNTED)]
        assert head is not None  # the contract checked it
        self._learn(self.Fitted(head, _NONE, _NONE, 0.0))
        low, high = [np.inf, np.inf], [-np.inf, -np.inf]
        for kind, values in self._values(train):
            low[kind], high[kind] = min(low[kind], float(values.min())), max(high[kind], float(values.max()))
        empty = [Histogram(*_widened(*ends), np.zeros(self.bins)) for ends in zip(low, high, strict=True)]
        sums = [np.zeros(self.bins), np.zeros(self.bins)]
        for kind, values in self._values(train):
            sums[kind] += empty[kind].counts(values).sum(axis=0)
        full = [one._replace(shares=total / total.sum()) for one, total in zip(empty, sums, strict=True)]
        self.fitted_ = self.Fitted(head, full[0], full[1], self.lambda_2 or 0.0)
        if self.lambda_2 is None:
            divergence, msp = self._parts(train[_sampled(train.features, _MOST_WEIGHED)])
            weight = float(divergence.std() / msp.std()) if msp.std() > 1e-9 else 0.0
            self.fitted_ = self.fitted_._replace(msp_weight=weight)

    def _derive(self) -> None:
        """Weights (repeats * n_classes, d) from the seed; this generator's numbers never change between versions.

        They are random, so float32 will do: of ImageNet's networks they are half a gigabyte.
        """
        weight = self.fitted_.head.weight.astype(np.float64)
        disturbed = np.empty((self.repeats, *weight.shape), np.float32)
        sizes, random = self.distance * lengths(weight)[:, None], np.random.RandomState(self.seed)
        for part in disturbed:
            noise = random.standard_normal(weight.shape)
            part[...] = weight + noise * (sizes / lengths(noise)[:, None])
        self._disturbed = disturbed.reshape(-1, weight.shape[1])

    def _values(self, rows: ModelOutputs) -> Iterator[tuple[int, FloatArray]]:
        """Blocks of what the histograms are of: 0 with features (n, d), 1 with disturbed logits (n, any number)."""
        for _, block in float_blocks(rows.features, FEATURES, self.fitted_.head.n_classes, fitting=True):
            yield 0, block
            yield from ((1, logits.reshape(len(block), -1)) for logits in self._logits(block))

    def _logits(self, block: FloatArray) -> Iterator[FloatArray]:
        """The logits (n, some of the repeats, n_classes) of a block of features under the disturbed weights."""
        bias = self.fitted_.head.bias.astype(np.float64)
        step = max(1, _PRODUCTS // (len(block) * bias.size)) * bias.size
        for a in range(0, len(self._disturbed), step):
            weights = self._disturbed[a : a + step].astype(np.float64)
            logits = (block @ weights.T).reshape(len(block), -1, bias.size)
            logits += bias
            yield logits

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        divergence, msp = self._parts(outputs)
        return divergence - self.fitted_.msp_weight * msp

    def _parts(self, outputs: ModelOutputs) -> tuple[FloatArray, FloatArray]:
        """Both divergences, weighted and added, and MSP; (n,) each."""
        divergence, msp = np.empty(len(outputs)), np.zeros(len(outputs))
        of_features, of_logits = self.fitted_.features, self.fitted_.logits
        for where, block in float_blocks(outputs.features, FEATURES, self.fitted_.head.n_classes):
            shares = np.zeros((len(block), self.bins))
            for logits in self._logits(block):
                shares += of_logits.counts(logits.reshape(len(block), -1)) / len(self._disturbed)
                logits -= logits.max(axis=2, keepdims=True)
                msp[where] += (1.0 / np.exp(logits, out=logits).sum(axis=2)).sum(axis=1) / self.repeats
            own = of_features.counts(block) / block.shape[1]
            divergence[where] = of_features.divergence(own, self.smoothing, _FLOOR_OF_FEATURES)
            divergence[where] += self.lambda_1 * of_logits.divergence(shares, self.logit_smoothing, _FLOOR_OF_LOGITS)
        return divergence, msp


def _sampled(features: Rows, most: int) -> IntArray:
    """Up to so many rows that their content decides, so that the order of the rows does not matter."""
    if len(features) <= most:
        return np.arange(len(features))
    sums = np.concatenate([block.sum(axis=1) for _, block in float_blocks(features, FEATURES)])
    return np.argsort(sums * 1e6 % 1.0, kind="stable")[:most]


def _widened(low: float, high: float) -> tuple[float, float]:
    """A range a billionth wider, so that rounding moves no training value out of it; not by the same on both sides,
    so that a single value lies on no edge.
    """
    step = 1e-9 * (max(abs(low), abs(high)) or 1.0)
    return low - step, high + 2.5 * step


def _smoothed(shares: FloatArray, size: int) -> FloatArray:
    """Means over ``size`` neighbouring columns, the outermost repeated; an even size reaches one further right."""
    left = (size - 1) // 2
    padded = np.pad(shares, ((0, 0), (left, size - 1 - left)), mode="edge")
    total = sum(padded[:, j : j + shares.shape[1]] for j in range(size))
    return np.asarray(total) / size
