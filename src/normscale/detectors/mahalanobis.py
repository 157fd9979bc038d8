"""Mahalanobis distance of features to the nearest class mean, and less that to all classes together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import About, Detector, join
from normscale.detectors.class_gaussian import ClassGaussian, ClassSums, checked_shrinkage, distance_formula
from normscale.detectors.formula import FeatureFormula
from normscale.detectors.formula_scores import NearestMean
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments
from normscale.outputs import ATTACKED, FEATURES, LABELS, LOGITS, ModelOutputs, check_name
from normscale.state import Numbers


def logistic_weights(features: ArrayLike, positive: ArrayLike, *, ridge: float = 1.0) -> FloatArray:
    """Weights (d,) of a logistic regression of ``positive`` (n,) on ``features`` (n, d); the constant is left out.

    Minimises sum_i log(1 + exp(-t_i (b + w^T x_i))) + ridge / 2 |w|^2 on standardised features by Newton's method (with
    halved steps where a full one would not help), and gives the weights back for the features as they are. A feature
    that does not vary gets weight 0.

    Examples
    --------
    >>> logistic_weights([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [3.0, 5.0]], [0, 1, 0, 1]).round(4).tolist()
    [0.4055, 0.0]
    """
    rows: FloatArray = np.asarray(features, dtype=np.float64)
    target = _validate.as_outcomes(positive, "positive", length=len(rows))
    if not np.isfinite(rows).all():
        raise _validate.invalid_row_error(rows, "features")
    std = rows.std(axis=0)
    used = std > 1e-12 * np.abs(rows).max(axis=0, initial=0.0)
    design = np.c_[np.ones(len(rows)), (rows[:, used] - rows[:, used].mean(axis=0)) / std[used]]
    penalties = np.full(design.shape[1], _validate.positive(ridge, "ridge"))
    penalties[0] = 1e-9  # the constant is free, but must stay finite when one side is missing
    sign = np.where(target, 1.0, -1.0)

    def loss(w: FloatArray) -> float:
        return float(np.logaddexp(0.0, -sign * (design @ w)).sum() + 0.5 * penalties @ (w * w))

    w = np.zeros(design.shape[1])
    for _ in range(100):
        p = 0.5 * (1.0 + np.tanh(0.5 * (design @ w)))
        gradient = design.T @ (p - target) + penalties * w
        hessian = (design * (p * (1.0 - p))[:, None]).T @ design + np.diag(penalties)
        step, before = np.linalg.solve(hessian, gradient), loss(w)
        while loss(w - step) > before and np.abs(step).max() > 1e-12:
            step = step / 2.0
        w = w - step
        if np.abs(step).max() <= 1e-10 * (1.0 + np.abs(w).max()):
            break
    weights = np.zeros(rows.shape[1])
    weights[used] = w[1:] / std[used]
    return weights


def layer_names(layers: str | Sequence[str]) -> tuple[str, ...]:
    """Names of arrays, all different, from a sequence or a text with commas."""
    names = layers.split(",") if isinstance(layers, str) else layers
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"layers must be names of arrays, such as 'stage1,features'; got {layers!r}.")
    if not names or len(set(names)) < len(names):
        raise InvalidInput(f"layers must be one name or several different ones; got {layers!r}.")
    return tuple(check_name(name) for name in names)


@register
class Mahalanobis(Detector):
    """Squared distance to the nearest class mean under the classes' common covariance, in one layer or several.

    The covariance S is moved towards the identity of equal trace, ``(1 - a) S + a tr(S)/d I``; a by Chen, Wiesel, Eldar
    & Hero 2010 ("oas") is next to 0 with many rows. With a = 0 and fewer independent directions than features,
    distances are measured in those directions only, with a warning. Several layers become one score by weights:
    "uniform" averages each in standard deviations over the training rows; "attacks" regresses the training inputs
    against attacks on them, whose activations are the arrays ``attacked_<layer>`` of the outputs that ``fit`` gets.
    """

    name = "mahalanobis"
    about = About(
        "Mahalanobis",
        'Lee et al. 2018: "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial '
        'Attacks"',
        cost="two matrix products with each layer",
        parameters={
            "layers": "names of the arrays in which distances are measured; features is the penultimate layer",
            "shrinkage": "of the covariance towards the identity, 0 to 1, or oas",
            "weights": "how several layers become one score: uniform, attacks, or numbers",
            "classes": "of training rows: labels or predicted",
        },
    )
    reads_in_fit: tuple[str, ...] = (LABELS,)

    class Fitted(NamedTuple):
        layer_weights: FloatArray
        gaussians: tuple[ClassGaussian, ...]

    fitted_: Fitted
    distances_: list[NearestMean]

    def __init__(
        self,
        layers: str | Sequence[str] = (FEATURES,),
        shrinkage: float | str = "oas",
        weights: str | ArrayLike = "uniform",
        classes: str = "labels",
    ) -> None:
        self.layers = layer_names(layers)
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
        attacked = [ATTACKED + name for name in self.layers] if self.weights == "attacks" else []
        classes = LABELS if self.classes == "labels" else LOGITS
        self.reads_in_fit = (*attacked, *([classes] if classes not in self.layers else []))

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

    def _why_all_rows(self) -> str:
        return "its weights are regressed on all rows" if self.weights == "attacks" and len(self.layers) > 1 else ""

    def _partial(self, rows: ModelOutputs, turn: int) -> Any:
        if turn == 1:  # the distances are known: how far do they vary?
            return RunningMoments(len(self.layers)).update(self._all_distances(rows))
        classes = rows.labels if self._needs_labels else rows.predicted
        assert classes is not None  # the contract checked it
        return [ClassSums(name).add(rows.array(name), classes) for name in self.layers]

    def _finish(self, total: Any, turn: int) -> Fitted | None:
        if turn == 1:
            deviations: FloatArray = np.maximum(total.std, np.finfo(np.float64).tiny)
            return self.fitted_._replace(layer_weights=1.0 / (len(self.layers) * deviations))
        found = tuple(ClassGaussian.of(sums, self.shrinkage, self.name) for sums in total)
        weights = np.ones(len(found)) if isinstance(self.weights, str) else np.array(self.weights)
        fitted = self.Fitted(weights, found)
        if self._reads_again:
            self._learn(fitted)
        return None if self._reads_again else fitted

    def _all_distances(self, outputs: ModelOutputs, prefix: str = "") -> FloatArray:
        """Squared distances in every layer; (n, n_layers)."""
        columns = np.empty((len(outputs), len(self.layers)))
        for column, name, distance in zip(columns.T, self.layers, self.distances_, strict=True):
            column[:] = distance.squared(outputs.array(prefix + name))
            if not np.isfinite(column).all():
                raise _validate.invalid_row_error(outputs.array(prefix + name), prefix + name, can_skip=True)
        return columns

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        distances = self._all_distances(outputs)
        return distances[:, 0] if len(self.layers) == 1 else distances @ self.fitted_.layer_weights

    def _formula(self) -> FeatureFormula | None:
        return distance_formula(self.fitted_.gaussians[0]) if len(self.layers) == 1 else None

    def _derive(self) -> None:
        self.distances_ = [NearestMean(distance_formula(one)) for one in self.fitted_.gaussians]
        widths = [one.means.shape[1] for one in self.fitted_.gaussians]
        if self._widths is not None and widths != [self._widths[name] for name in self.layers]:
            raise InvalidInput("there must be means for each layer, with a column for each feature.")
        if self.fitted_.layer_weights.shape != (len(self.layers),):
            raise InvalidInput(f"weights must be {len(self.layers)} numbers.")


@register
class MahalanobisLayers(Mahalanobis):
    """The same over the stages of the networks in :mod:`normscale.bench.train`, as its authors use it.

    A class of its own so that it has a name in comparisons; every parameter is :class:`Mahalanobis`'.
    """

    name = "mahalanobis_layers"
    about = About("Mahalanobis, all layers")

    def __init__(
        self,
        layers: str | Sequence[str] = ("stem", "stage1", "stage2", "stage3", FEATURES),
        shrinkage: float | str = "oas",
        weights: str | ArrayLike = "uniform",
        classes: str = "labels",
    ) -> None:
        super().__init__(layers, shrinkage, weights, classes)


@register
class RelativeMahalanobis(Detector):
    """Squared Mahalanobis distance to the nearest class mean, less the one under a Gaussian of all training rows.

        score = min_k (f - mu_k)' S^-1 (f - mu_k)  -  (f - mu_0)' S_0^-1 (f - mu_0)

    with the class means mu_k, the covariance S within the classes, and mean mu_0 and covariance S_0 of all rows.

    S_0 is S and the covariance between the class means. In coordinates in which S is the identity and S_0 is diagonal,
    the two distances are the same number in every direction in which the class means do not differ. So only the other
    directions, fewer than there are classes, are ever computed: there

        score = min_k |y - m_k|^2 - sum_j y_j^2 / s_j

    With one class every score is 0, as the formula says.

    Examples
    --------
    >>> train = ModelOutputs(features=[[-5.0], [-3.0], [3.0], [5.0]], labels=[0, 0, 1, 1])
    >>> RelativeMahalanobis(shrinkage=0.0).fit(train).score(np.array([[4.0], [0.0]])).round(3).tolist()
    [-0.941, 16.0]
    """

    name = "relative_mahalanobis"
    about = About(
        "Relative Mahalanobis",
        'Ren et al. 2021: "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection"',
        cost="four matrix products with the features",
        parameters={"shrinkage": "of the covariance within classes towards the identity, 0 to 1, or oas"},
    )
    reads = (FEATURES,)
    reads_in_fit: tuple[str, ...] = (LABELS,)

    class Fitted(NamedTuple):
        centre: Annotated[FloatArray, Numbers(FEATURES)]
        projection: Annotated[FloatArray, Numbers(FEATURES, "directions")]
        means: Annotated[FloatArray, Numbers("means", "directions")]
        variances: Annotated[FloatArray, Numbers("directions", least=1.0)]

        def check(self) -> None:
            if not len(self.means):
                raise InvalidInput("there must be a mean.")

    fitted_: Fitted

    def __init__(self, shrinkage: float | str = "oas") -> None:
        self.shrinkage = checked_shrinkage(shrinkage)

    def _partial(self, rows: ModelOutputs, turn: int) -> ClassSums:
        assert rows.labels is not None  # the contract checked it
        return ClassSums().add(rows.features, rows.labels)

    def _finish(self, total: ClassSums, turn: int) -> Fitted:
        distance = ClassGaussian.of(total, self.shrinkage, self.name)
        shares = total.counts / total.n
        centre = shares @ distance.means
        white = (distance.means - centre) @ distance.whitening
        _, sizes, directions = np.linalg.svd(np.sqrt(shares)[:, None] * white, full_matrices=False)
        differ = sizes > np.finfo(np.float64).eps * max(white.shape) * sizes.max(initial=0.0)
        differ[shares.size - 1 :] = False  # k means span k - 1 directions; a further one is rounding error
        axes = directions[differ].T
        return self.Fitted(centre, distance.whitening @ axes, white @ axes, 1.0 + sizes[differ] ** 2)

    @by_blocks
    def _score(self, features: FloatArray) -> FloatArray:
        centre, projection, means, variances = self.fitted_
        y = (features - centre) @ projection
        to_means = y @ (-2.0 * means.T) + np.einsum("ij,ij->i", means, means)
        return to_means.min(axis=1) + np.square(y) @ (1.0 - 1.0 / variances)
