"""Stream-aware: any detector, and what its stream teaches about the OoD inputs that are about."""

from __future__ import annotations

import copy
import math
from typing import Annotated, Any, NamedTuple, Self

import numpy as np

from normscale import _validate
from normscale._kernels import mixture as kernel
from normscale._kernels import mixture_reference as reference
from normscale._kernels.mixture import (
    SUSPECT,
    SUSPECT_WIDTH,
    ClassProfiles,
    Mixture,
    MixtureRows,
    MixtureSettings,
    RowGroups,
)
from normscale._kernels.mixture_reference import soft_step
from normscale._validate import FloatArray, IntArray
from normscale.detectors.base import About, OutputsLike
from normscale.detectors.formula import OodPosition, SharedPosition, SumFormula, offered_formula, scorer_of
from normscale.detectors.mahalanobis import ClassSums
from normscale.detectors.partial_fit import CommonScale, HeldOutFit, RowSample
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks, unit_rows
from normscale.detectors.step import Score, Wrapper
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.state import Numbers

_BORROWED = 5.0
"""How many rows of the average class each class's variances borrow: a class of one row has none of its own."""
PROFILES = {
    **dict.fromkeys(ClassProfiles._fields, Numbers(LOGITS)),
    **dict.fromkeys(("mean", "inverse_deviation"), Numbers(LOGITS, LOGITS)),
    "similarity_weights": Numbers(2),
    "shared_share": Numbers(1, least=0.0),
}
"""What the parts of profiles in a record must be."""
_COORDINATES = 32
"""At most so many coordinates of the features describe the shared group."""
_SMALLEST = 1e-6
"""Share of the average variance that a variance never falls below: a constant logit is not infinitely exact."""


class ClassMoments(NamedTuple):
    """Moments of numbers of the rows of each predicted class; those of parts merge."""

    counts: FloatArray  # (C, 1)
    mean: FloatArray  # (C, k)
    m2: FloatArray  # (C, k) sums of squared deviations

    @classmethod
    def of(cls, rows: ModelOutputs, values: FloatArray | None = None) -> ClassMoments:
        """Of values (n, k) of rows, at least one; by default of their logits, less the mean of each row."""
        if values is None:
            values = rows.logits.astype(np.float64)
            values -= values.mean(axis=1, keepdims=True)
        predicted = rows.predicted
        order = np.argsort(predicted, kind="stable")
        found, starts, sizes = np.unique(predicted[order], return_index=True, return_counts=True)
        ordered = values[order]
        means = np.add.reduceat(ordered, starts) / sizes[:, None]
        ordered -= np.repeat(means, sizes, axis=0)
        moments = cls(np.zeros((rows.n_classes, 1)), *(np.zeros((rows.n_classes, values.shape[1])) for _ in range(2)))
        moments.counts[found, 0], moments.mean[found] = sizes, means
        moments.m2[found] = np.add.reduceat(np.square(ordered, out=ordered), starts)
        return moments

    def merge(self, other: ClassMoments) -> ClassMoments:
        """The moments of both sets of rows."""
        counts = self.counts + other.counts
        share, apart = other.counts / np.maximum(counts, 1.0), other.mean - self.mean
        m2 = self.m2 + other.m2 + apart * apart * (self.counts * share)
        return ClassMoments(counts, self.mean + apart * share, m2)

    def profiles(self) -> ClassProfiles:
        """The parts of profiles that need no scores; the others are empty.

        A class that no training row is predicted as is described by all rows together.
        """
        counts, n = self.counts, self.counts.sum()
        everywhere = (counts * self.mean).sum(axis=0) / n
        average = self.m2.sum(axis=0) / n
        variance = (self.m2 + _BORROWED * average) / (counts + _BORROWED)
        floor = _SMALLEST * float(average.mean()) or 1.0
        later = ClassProfiles(*[np.empty(0)] * len(ClassProfiles._fields))
        return later._replace(
            share=counts[:, 0] / n,
            mean=np.where(counts > 0.0, self.mean, everywhere),
            inverse_deviation=1.0 / np.sqrt(np.maximum(variance, floor)),
        )


class FeatureSpace(NamedTuple):
    """The directions in which training features of length one vary most."""

    centre: Annotated[FloatArray, Numbers("coordinates")]
    directions: Annotated[FloatArray, Numbers(FEATURES, "coordinates")]
    """Each divided by the deviation of the training features along it."""

    @classmethod
    def of(cls, sums: ClassSums) -> FeatureSpace:
        """By the sums over all training rows, as one class."""
        _, means, covariance, error = sums.result()
        values, vectors = np.linalg.eigh(covariance)
        kept = np.flatnonzero(values > error)[-_COORDINATES:]
        directions = vectors[:, kept] / np.sqrt(values[kept])
        return cls(means[0] @ directions, np.ascontiguousarray(directions))

    def coordinates(self, rows: ModelOutputs) -> FloatArray:
        """(n, k) of the features of rows, of mean 0 and deviation 1 in training."""
        found = np.empty((len(rows), self.centre.size))
        for where, block in float_blocks(rows.features, FEATURES):
            found[where] = unit_rows(block) @ self.directions - self.centre
        return found


def _sums_of_features(rows: ModelOutputs) -> ClassSums:
    sums = ClassSums()
    for _, block in float_blocks(rows.features, FEATURES, fitting=True):
        sums.add(unit_rows(block))
    return sums


def finished_profiles(
    profiles: ClassProfiles, sample: RowSample, confidence: FloatArray, distance: FloatArray
) -> ClassProfiles:
    """The profiles with what a sample of training rows tells, by confidence and distance (m,) of each."""
    median, quartile, count_scale, top_scale = _levels(confidence, sample)
    weights = np.array([1.0, 1.0 / sample.spread_within(distance)])
    weights /= sample.spread_within(confidence - weights[1] * distance)
    similarity_median, _, similarity_scale, _ = _levels(weights[0] * confidence - weights[1] * distance, sample)
    suspected = soft_step(-SUSPECT - confidence, SUSPECT_WIDTH)
    return profiles._replace(
        similarity_weights=weights,
        similarity_median=similarity_median,
        similarity_scale=similarity_scale,
        median=median,
        count_scale=count_scale,
        quartile=quartile,
        top_scale=top_scale,
        shared_share=np.array([np.average(suspected, weights=sample.weights)]),
    )


def _levels(values: FloatArray, sample: RowSample) -> FloatArray:
    """Median, upper quartile, and what a row far above each counts as; (4, C)."""
    levels = np.empty((4, sample.counts.size))
    edges = np.searchsorted(sample.classes, np.arange(sample.counts.size + 1))
    for c in range(sample.counts.size):
        own = values[edges[c] : edges[c + 1]] if edges[c] < edges[c + 1] else values
        quantiles = np.quantile(own, (0.5, 0.75))
        levels[:, c] = *quantiles, *(1.0 / soft_step(own - one).mean() for one in quantiles)
    return levels


_CONFIDENCE, _PLACES = "confidence", "places"
"""Arrays of prepared rows."""
_RECENT = 5.0
"""The memory of the whole stream, in memories of a class."""
_LONG = 20.0
"""The memory that tells a shift of everything from a burst of OoD, in memories of a class."""
_COUNT_PRIOR = 20.0
"""How many rows of the threshold step count as much as the training's word on how ID rows count."""


class StreamState(NamedTuple):
    """What a detector has learned from its stream, for people."""

    rows: int
    """Rows streamed."""
    class_share: FloatArray
    """(C,) of recent rows predicted as each class."""
    training_share: FloatArray
    """(C,) of training rows predicted as each class."""
    id_share: FloatArray
    """(C,) of the recent rows predicted as each class, how many look in-distribution; at most 1."""
    overall_id_share: float
    """Of all recent rows; at most 1."""
    covariate_shift: float
    """0: the most confident rows are as confident as in training, whatever else is in the stream. Towards 1: not even
    they are, so the in-distribution inputs themselves have changed, or next to none are left."""
    trust: float
    """How much of what the stream taught goes into the scores: 1, and less where the inputs themselves have changed."""


@register
class StreamAware(Wrapper):
    """Any detector, taught by its stream what OoD looks like; what training said about the rest stays.

    Rows predicted as class c are a mixture of two groups. The in-distribution group is described at training and never
    moves; the OoD group, and its share, are learned online and forgotten again. A row is scored by three things: the
    wrapped detector's score (as fitted: its own statistics do not run), how many of the recent rows of its predicted
    class look like training (sure, and near the class in the logits), and whether it lies where recent OoD rows of that
    class lay. Where the in-distribution inputs themselves have changed, the stream cannot tell what is OoD: the wrapped
    score is left alone then. ``docs/robust.md`` derives it.

    References
    ----------
    docs/robust.md. Efron, "Large-Scale Simultaneous Hypothesis Testing", 2004 (two groups). Storey, "A Direct Approach
    to False Discovery Rates", 2002 (the share). Cappe & Moulines, "On-line EM Algorithm for Latent Data Models", 2009.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> train = rng.normal(size=(600, 3)) + 6.0 * np.eye(3)[rng.integers(0, 3, 600)]
    >>> detector = StreamAware("energy").fit(train)
    >>> ood = rng.normal(size=(100, 3)) + [2.0, 0.0, 0.0]
    >>> scores = detector.stream(ood)
    >>> detector.n_streamed_, bool(detector.state.id_share[0] < 0.4)
    (100, True)
    """

    name = "stream_aware"
    about = About(
        "Stream-aware",
        "docs/robust.md",
        cost="the wrapped score; in a stream one row after the other",
        parameters={
            "score": "the detector that is made stream-aware",
            "memory": "how many rows of a predicted class are remembered; the whole stream five times as long",
            "prior_weight": "rows of evidence after which the stream counts as much as training; inf: it never learns",
            "tolerance": "a class is above suspicion while this share of its recent rows looks in-distribution",
            "balanced": "whether known inputs have the class shares of training; then a more frequent class is suspect",
        },
    )
    default_score = "centred"
    own_reads = (LOGITS,)
    _reads_again = _in_place = True
    _survives_unbalanced_stream = True

    class Fitted(NamedTuple):
        scale: CommonScale
        profiles: Annotated[ClassProfiles, PROFILES]
        count_factors: Annotated[FloatArray, Numbers(3, above=0.0)]
        """What counts are multiplied by since a threshold was set."""
        space: FeatureSpace | None
        """For the shared OoD group; None where the wrapped detector reads no features."""

    fitted_: Fitted

    def __init__(
        self,
        score: Score = "centred",
        memory: float = 50.0,
        prior_weight: float = 5.0,
        tolerance: float = 0.8,
        balanced: bool = False,
    ) -> None:
        self._score_by(score)
        self.memory = _validate.positive(memory, "memory")
        if self.memory < 2.0:
            raise InvalidInput(f"memory must be at least 2 rows; got {memory!r}. The default is 50.")
        self.prior_weight = _validate.positive(prior_weight, "prior_weight", allow_inf=True)
        self._runs = not math.isinf(self.prior_weight)
        self.tolerance = _validate.fraction(tolerance, "tolerance", allow_one=True)
        self.balanced = bool(balanced)

    @property
    def _mixture_settings(self) -> MixtureSettings:
        return MixtureSettings(
            class_decay=1.0 - 1.0 / self.memory,
            recent_decay=1.0 - 1.0 / (_RECENT * self.memory),
            long_decay=1.0 - 1.0 / (_LONG * self.memory),
            prior=self.prior_weight if self._runs else 1.0,
            tolerance=self.tolerance,
            balanced=self.balanced,
        )

    def _why_all_rows(self) -> str:
        why = self.scorer._why_all_rows()
        return f"{self.scorer.name}: {why}" if why else ""

    def _begin(self) -> HeldOutFit:
        self._require_one_fit()
        return self.scorer._held_out()

    def _partial(self, rows: ModelOutputs, turn: int) -> Any:
        """First the scorer's fit, and where the rows of each class lie; then a sample of held-out scores."""
        inner: HeldOutFit = self._fitting
        if not inner.done:
            if turn:
                return inner.partial(rows), None, None
            features = _sums_of_features(rows) if FEATURES in self.scorer.reads else None
            return inner.partial(rows), ClassMoments.of(rows), features
        distance = reference.distances(rows.logits, rows.predicted, self._profiles)
        return RowSample.of(rows, np.column_stack([inner.columns(rows), distance]))

    def _finish(self, total: Any, turn: int) -> Fitted | None:
        inner: HeldOutFit = self._fitting
        if not inner.done:
            inner.finish(total[0])
            if turn == 0:
                self._profiles = total[1].profiles()
                self._space = None if total[2] is None else FeatureSpace.of(total[2])
            return None
        distance, sample = total.values[:, -1], total.of_columns(slice(0, -1))
        if inner.needs_sample:
            inner.settle(sample)
        scores = inner.combine(sample.values)
        scale = CommonScale.of(scores, sample)
        profiles = finished_profiles(self._profiles, sample, -scale(scores), distance)
        space = self._space
        del self._profiles, self._space
        return self.Fitted(scale, profiles, np.ones(3), space)

    def _scored(self, outputs: ModelOutputs, threads: int) -> MixtureRows:
        """The rows as the kernels read them."""
        scores, space = self._base(outputs, threads), self.fitted_.space
        places = np.empty((len(outputs), 0)) if space is None else space.coordinates(outputs)
        return MixtureRows(outputs.logits, -self.fitted_.scale(scores), places)

    def _derive(self) -> None:
        self._base = scorer_of(self.scorer)

    def _start(self) -> Mixture:
        space = self.fitted_.space
        return Mixture.empty(self.fitted_.profiles.median.size, 0 if space is None else space.centre.size)

    def _score_at(self, state: Mixture, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        rows = self._scored(outputs, threads)
        if not kernel.score_mixture(rows, self.fitted_.profiles, self._mixture_settings, state, scores, threads):
            raise _validate.invalid_row_error(outputs.logits, LOGITS, can_skip=True)
        return scores

    def _prepare(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        rows = self._scored(outputs, threads)
        return ModelOutputs._trusted({LOGITS: rows.logits, _CONFIDENCE: rows.confidence[:, None], _PLACES: rows.places})

    def _step(self, state: Mixture | RowGroups, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, Any]:
        scores = np.empty(len(prepared))
        confidence = np.ascontiguousarray(prepared.array(_CONFIDENCE)[:, 0])
        rows = MixtureRows(prepared.logits, confidence, prepared.array(_PLACES))
        if not kernel.stream_mixture(rows, self.fitted_.profiles, self._mixture_settings, state, scores):
            raise _validate.invalid_row_error(rows.logits, LOGITS, can_skip=True)
        return scores, state

    def _step_table(
        self, table: FloatArray, places: IntArray, edges: IntArray, prepared: ModelOutputs, threads: int
    ) -> FloatArray:
        return self._step(RowGroups(table, places, edges), prepared, threads)[0]

    def _checked_state(self, state: Mixture) -> Mixture:
        for name, part, empty in zip(Mixture._fields, state, self._start(), strict=True):
            if part.shape != empty.shape:
                raise InvalidInput(f"state.{name} must have shape {empty.shape}; got {part.shape}.")
            if not name.endswith("_mean") and (part < 0.0).any():
                raise InvalidInput(f"state.{name} must be finite and not negative.")
        return state

    def set_threshold(self, outputs: OutputsLike, keep: float = 0.95, **options: Any) -> Self:
        """Set the threshold, and learn how in-distribution rows that training has not seen are counted.

        On a network that knows its training rows too well, new rows look unlike training, and their classes would be
        suspected without any OoD.
        """
        self._require_fitted()
        learner = copy.copy(self)
        learner._learn_count_factors(learner._read(outputs))
        super(StreamAware, learner).set_threshold(outputs, keep, **options)
        with self._lock:
            self.fitted_, self.threshold_ = learner.fitted_, learner.threshold_
        return self

    def _learn_count_factors(self, outputs: ModelOutputs) -> None:
        """Let in-distribution rows count 1 on average; the last call is what holds."""
        profiles, before, state = self.fitted_.profiles, self.fitted_.count_factors, self._start()
        never_forgets = self._mixture_settings._replace(class_decay=1.0, recent_decay=1.0, long_decay=1.0)
        kernel.stream_mixture(self._scored(outputs, 1), profiles, never_forgets, state, np.empty(len(outputs)))
        counts = state.totals[[kernel.RECENT_ID, kernel.LONG_ID, kernel.LONG_TOP]] / before
        count_factors = (_COUNT_PRIOR + state.totals[kernel.ROWS]) / (_COUNT_PRIOR + counts)
        factors = zip(("similarity_scale", "count_scale", "top_scale"), count_factors / before, strict=True)
        profiles = profiles._replace(**{name: getattr(profiles, name) * factor for name, factor in factors})
        self._learn(self.fitted_._replace(profiles=profiles, count_factors=count_factors))

    def _formula(self) -> SumFormula | None:
        """As the stream has left it; see :mod:`normscale._kernels.mixture_reference`."""
        inner = offered_formula(self.scorer)
        if inner is None:
            return None
        if not isinstance(inner, SumFormula):
            inner = SumFormula(((1.0, inner),), np.zeros(1))
        if inner.ood_position is not None or inner.shared_position is not None:
            return None
        mixture, settings = self._current(), self._mixture_settings
        scale, profiles = self.fitted_.scale, self.fitted_.profiles
        trusted, spread = reference.trust_in_stream(reference.covariate_shift(mixture.totals)), scale.spread
        position = None
        if mixture.ood_weight.any():
            trust = mixture.ood_weight / (mixture.ood_weight + settings.prior)
            variance = 1.0 + trust[:, None] * (mixture.ood_variance - 1.0)
            position = OodPosition(
                mean=profiles.mean,
                inverse_deviation=profiles.inverse_deviation,
                ood_mean=trust[:, None] * mixture.ood_mean,
                inverse_variance=1.0 / variance,
                log_variance=np.log(variance).mean(axis=1),
                trust=trusted * trust,
            )
        shared, space = None, self.fitted_.space
        weight = reference.shared_weight(profiles, mixture.totals)
        if space is not None and weight > 0.0:
            trust = weight / (weight + kernel.SHARED_PRIOR * settings.prior)
            variance = 1.0 + trust * (mixture.shared_variance[0] - 1.0)
            shared = SharedPosition(
                directions=space.directions,
                centre=space.centre,
                mean=trust * mixture.shared_mean[0],
                inverse_variance=1.0 / variance,
                log_variance=np.log(variance).mean(keepdims=True),
                trust=np.array([trust]),
                trusted=np.array([trusted]),
            )
        terms = tuple((weight / spread, term) for weight, term in inner.terms)
        offset = (scale.centre + inner.class_offset) / spread + trusted * np.log(self._id_shares())
        return SumFormula(terms, offset, position, shared)

    def _id_shares(self) -> FloatArray:
        """(C,) the share of recent rows of each class that look in-distribution."""
        profiles, settings = self.fitted_.profiles, self._mixture_settings
        return np.array(
            [reference.id_share(c, profiles, settings, self._current()) for c in range(profiles.median.size)]
        )

    @property
    def n_streamed_(self) -> int:
        """Rows taken in by ``stream`` since ``fit`` or ``reset``."""
        self._require_fitted()
        return int(self._current().totals[kernel.ROWS])

    @property
    def state(self) -> StreamState:
        """What the stream has taught so far, as numbers for people; a copy."""
        self._require_fitted()
        profiles, mixture, settings = self.fitted_.profiles, self._current(), self._mixture_settings
        totals, recent = mixture.totals, max(float(mixture.recent.sum()), float(mixture.totals[kernel.GROWN]))
        overall = (totals[kernel.RECENT_ID] + settings.prior) / (totals[kernel.RECENT] + settings.prior)
        return StreamState(
            rows=self.n_streamed_,
            class_share=mixture.recent / recent,
            training_share=profiles.share.copy(),
            id_share=self._id_shares(),
            overall_id_share=min(1.0, float(overall) / settings.tolerance),
            covariate_shift=reference.covariate_shift(totals),
            trust=reference.trust_in_stream(reference.covariate_shift(totals)),
        )
