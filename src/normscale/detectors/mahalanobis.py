"""Mahalanobis distance of features to the nearest class mean, and less that to all classes together."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normscale import _validate
from normscale._kernels import members_of_each
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.base import About, Detector, join
from normscale.detectors.formula import FeatureFormula, NearestMean
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks
from normscale.errors import InvalidInput, NumericalWarning
from normscale.moments import RunningMoments
from normscale.outputs import ATTACKED, FEATURES, LABELS, LOGITS, ModelOutputs, check_name
from normscale.state import Numbers

_BLOCK_ROWS = 4096


class ClassSums:
    """Counts, sums and scatter of features by class, in one pass over chunks.

    Everything is taken relative to the first chunk's mean, so that subtracting "between the classes" from "in
    all" loses no digits to a common offset.
    """

    def __init__(self, name: str = FEATURES) -> None:
        self.name = name
        self.n = 0
        self.classes: IntArray = np.zeros(0, dtype=np.int64)
        """The classes that occur, in order."""
        self.counts: FloatArray = np.zeros(0)
        """How many rows each of them has."""

    def add(self, features: Rows, labels: IntArray | None = None) -> ClassSums:
        """Take features (b, d) and their classes (b,) in; returns self. Without classes, all rows are of one."""
        labels = np.zeros(len(features), np.int64) if labels is None else labels
        if labels.size and labels.min() < 0:
            raise InvalidInput(
                f"labels[{int(np.argmin(labels))}] is -1 (unknown); the class of every training row is needed."
            )
        for a in range(0, features.shape[0], _BLOCK_ROWS):
            block = np.array(features[a : a + _BLOCK_ROWS], dtype=np.float64)
            if not np.isfinite(block).all():
                raise _validate.invalid_row_error(features, self.name)
            with np.errstate(over="ignore", invalid="ignore"):
                if self.n == 0:
                    self._origin = block.mean(axis=0)
                    self._sums = np.zeros((0, block.shape[1]))
                    self._scatter = np.zeros((block.shape[1], block.shape[1]))
                block -= self._origin
                self._scatter += block.T @ block
            if not np.isfinite(self._scatter).all():
                raise _validate.invalid_row_error(features, self.name)
            self._join(*class_totals(block, labels[a : a + _BLOCK_ROWS]))
            self.n += block.shape[0]
        return self

    def merge(self, other: ClassSums) -> ClassSums:
        """The sums over both sets of rows, about this one's origin; neither is changed.

        With s the other's origin less this one's and t its sums over all classes, its scatter about this origin is
        ``S + s t' + t s' + n s s'``. Origins are means of rows, so that s is no larger than the rows' spread.
        """
        merged = ClassSums(self.name)
        merged.n = self.n + other.n
        merged._origin = self._origin
        merged.classes, merged.counts, merged._sums = self.classes, self.counts.copy(), self._sums.copy()
        shift, total = other._origin - self._origin, other._sums.sum(axis=0)
        merged._join(other.classes, other.counts, other._sums + other.counts[:, None] * shift)
        crossed = np.outer(shift, total)
        merged._scatter = self._scatter + other._scatter + (crossed + crossed.T) + other.n * np.outer(shift, shift)
        return merged

    def _join(self, classes: IntArray, counts: FloatArray, sums: FloatArray) -> None:
        """Add the counts and sums of some classes."""
        both = np.union1d(self.classes, classes)
        if both.size > self.classes.size:
            known, known_counts, known_sums = self.classes, self.counts, self._sums
            self.classes, self.counts, self._sums = both, np.zeros(both.size), np.zeros((both.size, sums.shape[1]))
            self._join(known, known_counts, known_sums)
        places = np.searchsorted(self.classes, classes)
        self.counts[places] += counts
        self._sums[places] += sums

    def result(self) -> tuple[IntArray, FloatArray, FloatArray, float]:
        """Classes present, their means, the covariance within them, and the size of its rounding error."""
        means = self._sums / self.counts[:, None]
        within = (self._scatter - (means * self.counts[:, None]).T @ means) / self.n
        largest = float(np.diagonal(self._scatter).max()) / self.n
        error = largest * np.finfo(np.float64).eps * within.shape[0] * 4.0
        return self.classes, means + self._origin, (within + within.T) / 2.0, error


def class_totals(rows: FloatArray, classes: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """The classes that occur, in order, how many rows (n, d) each has, and the sums of these."""
    members = dict(members_of_each(classes))
    sums = np.empty((len(members), rows.shape[1]))
    for total, own in zip(sums, members.values(), strict=True):
        np.add.reduce(rows[own], axis=0, out=total)
    counts = np.array([own.size for own in members.values()], dtype=np.float64)
    return np.array(list(members), dtype=np.int64), counts, sums


class ClassGaussian(NamedTuple):
    """Class means, and the whitening of the classes' common covariance."""

    classes: Annotated[IntArray, Numbers("classes")]
    """Those that have training rows."""
    means: Annotated[FloatArray, Numbers("classes", "columns")]
    covariance: Annotated[FloatArray, Numbers("columns", "columns")]
    """Within the classes, before shrinkage."""
    whitening: Annotated[FloatArray, Numbers("columns", "rank")]
    shrinkage: float
    """The amount used."""

    @classmethod
    def of(cls, sums: ClassSums, shrinkage: float | str, detector: str = "") -> ClassGaussian:
        """From the sums over the training rows; ``detector`` is who asks, for messages."""
        classes, means, covariance, error = sums.result()
        d = covariance.shape[0]
        values, vectors = np.linalg.eigh(covariance)
        values = np.maximum(values, 0.0)
        trace = float(values.sum())
        if trace <= d * error:
            raise InvalidInput(
                f"{sums.name} do not vary within the classes (rank 0 of {d}), so a Mahalanobis distance does not "
                f"exist: there are {sums.n} rows of {len(classes)} classes. "
                + ("Pass more than one row a class." if sums.n <= len(classes) else "Are all rows of a class the same?")
            )
        amount = _oas(values, sums.n) if shrinkage == "oas" else float(shrinkage)
        values = (1.0 - amount) * values + amount * trace / d
        used = values > error
        rank = int(used.sum())
        if rank < d:
            warnings.warn(_rank_sentence(sums, covariance, rank, detector), NumericalWarning, stacklevel=8)
        return cls(classes, means, covariance, vectors[:, used] / np.sqrt(values[used]), amount)


def distance_formula(gaussian: ClassGaussian) -> FeatureFormula:
    """The squared Mahalanobis distance to the nearest class mean: in the whitened space plain Euclidean distances."""
    centre = gaussian.means.mean(axis=0)
    return FeatureFormula(centre, gaussian.whitening, (gaussian.means - centre) @ gaussian.whitening)


def checked_shrinkage(shrinkage: float | str) -> float | str:
    """A share of the identity, or the rule that chooses it."""
    if shrinkage == "oas":
        return shrinkage
    if isinstance(shrinkage, str):
        raise InvalidInput(f'shrinkage must be a number in [0, 1] or "oas"; got {shrinkage!r}.')
    return _validate.fraction(shrinkage, "shrinkage", allow_zero=True, allow_one=True)


def _rank_sentence(sums: ClassSums, covariance: FloatArray, rank: int, detector: str) -> str:
    """What directions without variance mean: columns that never change are no lack of rows."""
    d = covariance.shape[0]
    constant = int((np.diagonal(covariance) <= 0.0).sum())
    if rank + constant == d:
        why = f"{constant} of the {d} columns never change within a class, and what happens in them is not seen."
        advice = "Leave such columns out, or pass"
    else:
        why = f"what happens in the other {d - rank} directions is not seen."
        advice = "Pass more rows, or"
    return (
        f"{detector or 'Mahalanobis'}: the covariance of the {sums.name} has rank {rank} of {d} ({sums.n} rows): {why} "
        f'{advice} shrinkage="oas".'
    )


def _oas(eigenvalues: FloatArray, n: int) -> float:
    """Shrinkage by the Oracle Approximating formula from the covariance's eigenvalues."""
    d = eigenvalues.size
    mean_square = float((eigenvalues**2).sum()) / d**2
    square_mean = float(eigenvalues.mean()) ** 2
    denominator = (n + 1.0) * (mean_square - square_mean / d)
    return 1.0 if denominator <= 0.0 else min(1.0, (mean_square + square_mean) / denominator)


def logistic_weights(features: ArrayLike, positive: ArrayLike, *, ridge: float = 1.0) -> FloatArray:
    """Weights (d,) of a logistic regression of ``positive`` (n,) on ``features`` (n, d); the constant is left out.

    Minimises sum_i log(1 + exp(-t_i (b + w^T x_i))) + ridge / 2 |w|^2 on standardised features by Newton's method (with
    halved steps where a full one would not help), and gives the weights back for the features as they are. A feature
    that does not vary gets weight 0.
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
            "layers": "names of the arrays in which distances are measured; by default features, the penultimate layer",
            "shrinkage": "of the covariance towards the identity, 0 to 1, or oas",
            "weights": "how several layers become one score: uniform, attacks, or numbers",
            "classes": "of training rows: labels or predicted",
        },
    )
    reads_in_fit: tuple[str, ...] = (LABELS,)
    usual_layers: ClassVar[tuple[str, ...]] = (FEATURES,)

    class Fitted(NamedTuple):
        layer_weights: FloatArray
        gaussians: tuple[ClassGaussian, ...]

    fitted_: Fitted
    distances_: list[NearestMean]

    def __init__(
        self,
        layers: str | Sequence[str] | None = None,
        shrinkage: float | str = "oas",
        weights: str | ArrayLike = "uniform",
        classes: str = "labels",
    ) -> None:
        self.layers = layer_names(self.usual_layers if layers is None else layers)
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
        self._learn(self._finish(self._sum_of_parts([train], 0)[0], 0))
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

    A class of its own so that it has a name in comparisons; layers are by default all stages.
    """

    name = "mahalanobis_layers"
    about = About("Mahalanobis, all layers")
    usual_layers = ("stem", "stage1", "stage2", "stage3", FEATURES)


@register
class RelativeMahalanobis(Detector):
    """Squared Mahalanobis distance to the nearest class mean, less the one under a Gaussian of all training rows.

        score = min_k (f - mu_k)' S^-1 (f - mu_k)  -  (f - mu_0)' S_0^-1 (f - mu_0)

    with the class means mu_k, the covariance S within the classes, and mean mu_0 and covariance S_0 of all rows.

    In coordinates in which S is the identity and S_0 is diagonal, both distances are the same in every direction in
    which the class means do not differ. So only the other directions, fewer than there are classes, are computed.
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
