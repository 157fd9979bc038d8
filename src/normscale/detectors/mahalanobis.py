"""Mahalanobis distance of features to the nearest class mean, in one layer or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector, join
from normscale.detectors.class_distance import ClassDistance, ClassGaussian, checked_shrinkage
from normscale.detectors.class_sums import ClassSums
from normscale.detectors.formula import FeatureFormula
from normscale.detectors.logistic import logistic_weights
from normscale.detectors.registry import register
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments
from normscale.outputs import ATTACKED, FEATURES, LOGITS, ModelOutputs, check_name


@register
class Mahalanobis(Detector):
    """Squared distance to the nearest class mean under the classes' common covariance.

    References
    ----------
    Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks", 2018.
    Chen, Wiesel, Eldar & Hero, "Shrinkage Algorithms for MMSE Covariance Estimation", 2010.
    """

    name = "mahalanobis"
    title = "Mahalanobis"
    paper = "Lee et al. 2018"
    cost = "two matrix products with each layer"
    needs_labels = True
    parameters = {
        "layers": "names of the arrays in which distances are measured",
        "shrinkage": "of the covariance towards the identity, 0 to 1, or oas",
        "weights": "how several layers become one score: uniform, attacks, or numbers",
        "classes": "of training rows: labels or predicted",
    }

    class Fitted(NamedTuple):
        layer_weights: FloatArray
        gaussians: tuple[ClassGaussian, ...]

    fitted_: Fitted
    distances_: list[ClassDistance]

    @property
    def weights_(self) -> FloatArray:
        """The weight of each layer's distance."""
        return self.fitted_.layer_weights

    def __init__(
        self,
        layers: str | Sequence[str] = (FEATURES,),
        shrinkage: float | str = "oas",
        weights: str | ArrayLike = "uniform",
        classes: str = "labels",
    ) -> None:
        names = layers.split(",") if isinstance(layers, str) else layers
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise InvalidInput(f"layers must be names of arrays, such as 'stage1,features'; got {layers!r}.")
        self.layers = tuple(check_name(name) for name in names)
        if not self.layers or len(set(self.layers)) < len(self.layers):
            raise InvalidInput(f"layers must be one name or several different ones; got {layers!r}.")
        self.shrinkage = checked_shrinkage(shrinkage)
        if isinstance(weights, str):
            self.weights: str | tuple[float, ...] = _validate.one_of(weights, "weights", ("uniform", "attacks"))
        else:
            self.weights = tuple(_validate.as_finite_vector(weights, "weights").tolist())
            if len(self.weights) != len(self.layers):
                raise InvalidInput(f"weights must be {len(self.layers)} numbers, one a layer; got {len(self.weights)}.")
        self.reads = self.layers
        self._reads_again = len(self.layers) > 1 and self.weights == "uniform"
        self.classes = _validate.one_of(classes, "classes", ("labels", "predicted"))
        self.needs_labels = self.classes == "labels"
        attacked = [ATTACKED + name for name in self.layers] if self.weights == "attacks" else []
        logits = [LOGITS] if not self.needs_labels and LOGITS not in self.layers else []
        self.reads_in_fit = (*attacked, *logits)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        if self.weights != "attacks" or len(self.layers) == 1:
            super()._fit(chunks)
            return
        train = join(chunks)
        self._learn(self._finish(self._told_by([train], 0)[0], 0))
        clean, attacked = self._all_distances(train), self._all_distances(train, ATTACKED)
        both = np.concatenate([clean, attacked])
        weights = logistic_weights(both, np.arange(len(both)) >= len(clean), ridge=1.0)
        self._learn(self.fitted_._replace(layer_weights=weights))

    def why_all_rows(self) -> str:
        return "its weights are regressed on all rows" if self.weights == "attacks" and len(self.layers) > 1 else ""

    def _partial(self, rows: ModelOutputs, turn: int) -> Any:
        if turn == 1:  # the distances are known: how far do they vary?
            return RunningMoments(len(self.layers)).update(self._all_distances(rows))
        classes = rows.labels if self.needs_labels else rows.predicted
        assert classes is not None  # the contract checked it
        return [ClassSums(name).add(rows.array(name), classes) for name in self.layers]

    def _finish(self, total: Any, turn: int) -> Fitted | None:
        if turn == 1:
            deviations: FloatArray = np.maximum(total.std, np.finfo(np.float64).tiny)
            return self.fitted_._replace(layer_weights=1.0 / (len(self.layers) * deviations))
        found = tuple(ClassDistance.of(sums, self.shrinkage, self.name).record for sums in total)
        weights = np.ones(len(found)) if isinstance(self.weights, str) else np.array(self.weights)
        fitted = self.Fitted(weights, found)
        if self._reads_again:
            self._learn(fitted)
        return None if self._reads_again else fitted

    def _all_distances(self, outputs: ModelOutputs, prefix: str = "") -> FloatArray:
        """Squared distances in every layer; (n, n_layers)."""
        columns = [
            distance.squared(outputs.array(prefix + name), prefix + name)
            for name, distance in zip(self.layers, self.distances_, strict=True)
        ]
        return np.stack(columns, axis=1)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        if len(self.layers) == 1:
            return self.distances_[0].squared(outputs.array(self.layers[0]), self.layers[0])
        scores: FloatArray = self._all_distances(outputs) @ self.weights_
        return scores

    def formula(self) -> FeatureFormula | None:
        return self.distances_[0].formula() if len(self.layers) == 1 else None

    def _derive(self) -> None:
        self.distances_ = [ClassDistance(*one) for one in self.fitted_.gaussians]
        widths = [one.means.shape[1] for one in self.fitted_.gaussians]
        if self.widths_ is not None and widths != [self.widths_[name] for name in self.layers]:
            raise InvalidInput("there must be means for each layer, with a column for each feature.")
        if self.weights_.shape != (len(self.layers),):
            raise InvalidInput(f"weights must be {len(self.layers)} numbers.")


@register
class MahalanobisLayers(Mahalanobis):
    """The same over the stages of the networks in :mod:`normscale.bench.train`, as its authors use it.

    A class of its own so that it has a name in comparisons; every parameter is :class:`Mahalanobis`'.
    """

    name = "mahalanobis_layers"
    title = "Mahalanobis, all layers"

    def __init__(
        self,
        layers: str | Sequence[str] = ("stem", "stage1", "stage2", "stage3", FEATURES),
        shrinkage: float | str = "oas",
        weights: str | ArrayLike = "uniform",
        classes: str = "labels",
    ) -> None:
        super().__init__(layers, shrinkage, weights, classes)
