"""Wrappers, which build on the score of another detector, and steps, which change the outputs that it scores."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector, join
from normscale.detectors.formula import Formula, offered_formula
from normscale.detectors.partial_fit import PartialFit
from normscale.detectors.registry import JOIN, as_detector, detector_class
from normscale.detectors.row_blocks import block_rows, blocks_of
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, HEAD, LOGITS, Head, ModelOutputs, row_slices
from normscale.state import Numbers

Score = str | Mapping[str, Any] | Detector
"""What ``score`` may be: a detector's name, its :meth:`Detector._spec`, or a detector."""


class Wrapper(Detector):
    """Base class of detectors with the parameter ``score``; a subclass calls :meth:`_score_by` in its constructor.

    On the command line ``a+b`` is the wrapper ``a`` around the scorer ``b``, which may be a wrapper again.
    """

    default_score: ClassVar[str]
    """Which detector scores where nothing else is said."""
    own_reads: ClassVar[tuple[str, ...]]
    """What the wrapper itself reads, besides its scorer."""

    scorer: Detector

    def _score_by(self, score: Score) -> None:
        """Keep the detector that scores; name, arrays and needs follow from it."""
        self.scorer = scorer = as_detector(score)
        cls = type(self)
        if scorer.name != cls.default_score:
            self.name = f"{cls.name}{JOIN}{scorer.name}"
            self.about = cls.about._replace(title=f"{cls.about.title} + {scorer.about.title or scorer.name}")
        self.reads = tuple(dict.fromkeys((*self.own_reads, *scorer.reads)))
        self.reads_in_fit = tuple(dict.fromkeys((*(cls.reads_in_fit or ()), *(scorer.reads_in_fit or ()))))

    def _require_one_fit(self) -> None:
        """Refuse a scorer that is fitted on other rows than the wrapper."""
        own, other = self.about.fitted_on, self.scorer.about.fitted_on
        if self.scorer._needs_fit and other != own:
            raise InvalidInput(
                f"{self.name}: {type(self).name} is fitted on {own} outputs and {self.scorer.name} on {other} outputs, "
                "so one fit cannot serve both. Choose another score."
            )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.about.parameters if name != "score"}
        return {"score": short_spec(self.scorer), **own}

    def _inner(self) -> dict[str, Detector]:
        return {"scorer": self.scorer}

    def _set_inner(self, inner: dict[str, Detector]) -> None:
        self.scorer = inner["scorer"]


def short_spec(detector: Detector) -> str | dict[str, Any]:
    """What makes the same, unfitted detector again: its name where that is enough, else its spec."""
    spec = detector._spec()
    plain = spec["parameters"] == detector_class(spec["detector"])().get_params()
    return detector.name if plain else spec


class Step(Wrapper):
    """Base class of the steps; a subclass says how outputs are changed (:meth:`_transform`).

    ``react+energy`` is the step ``react`` whose outputs ``energy`` scores. A step's state is that of its scorer.
    """

    writes: ClassVar[tuple[str, ...]] = (LOGITS,)
    """The arrays that :meth:`_transform` puts in."""
    removes: ClassVar[tuple[str, ...]] = ()
    """The arrays that are not there any more after it."""
    learns_nothing: ClassVar[bool] = False
    """Whether training rows say nothing to the step itself; its scorer is then fitted as by itself."""
    logits_alone: ClassVar[bool] = False
    """Whether the scorer must read logits and nothing else."""

    def _score_by(self, score: Score) -> None:
        super()._score_by(score)
        cls, scorer = type(self), self.scorer
        passed = (name for name in scorer.reads if name not in self.writes)
        self.reads = tuple(dict.fromkeys((*self.own_reads, *passed)))
        self._runs, self._in_place, self._ranks_per_class = scorer._runs, scorer._in_place, scorer._ranks_per_class
        self._reads_again = self.learns_nothing and scorer._reads_again
        if self.learns_nothing and not scorer._needs_fit:
            self.reads_in_fit = None
        if not set(self.writes) & set(scorer.reads) or set(self.removes) & set(scorer.reads):
            raise InvalidInput(
                f"{cls.name} passes {' and '.join(self.writes)} on, so its score must read that; {scorer.name} reads "
                f"{' and '.join(scorer.reads)}. Try {cls.name}{JOIN}{cls.default_score}."
            )
        if self.logits_alone and scorer.reads != (LOGITS,):
            raise InvalidInput(
                f"{cls.__name__} passes scaled logits on, so its score must read logits alone; {scorer.name} reads "
                f"{' and '.join(scorer.reads)}."
            )

    @abstractmethod
    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        """The outputs that the scorer reads; must raise on rows that are not finite."""

    @property
    def _in_parts(self) -> bool:
        """Whether parts of the rows tell all: there is one thing to learn, by the step or by its scorer."""
        return not self.scorer._needs_fit or (self.learns_nothing and not self.scorer._why_all_rows())

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        if self._in_parts:
            self._fit_step(chunks)
            return
        self._require_one_fit()
        train = join(chunks)
        if not self.learns_nothing:
            self._fit_step(iter([train]))
        self.scorer._fit_chunks(self._transform(rows, 1) for rows in row_slices(train))

    def _fit_step(self, chunks: Iterator[ModelOutputs]) -> None:
        """The fit of the step itself, and of its scorer where parts of the rows tell all."""
        super()._fit(chunks)

    def _why_all_rows(self) -> str:
        if self._in_parts:
            return ""
        said = f"{self.scorer.name} is fitted on what {type(self).name} makes of all rows"
        return self.scorer._why_all_rows() if self.learns_nothing else said

    def _begin(self) -> PartialFit | None:
        learns = self.learns_nothing and self.scorer._needs_fit and self._in_parts
        return PartialFit(self.scorer) if learns else None

    def _partial(self, rows: ModelOutputs, turn: int) -> Any:
        if not isinstance(self._fitting, PartialFit):
            return super()._partial(rows, turn)
        self._require_one_fit()
        return self._fitting.partial([self._transform(rows, 1)])

    def _finish(self, total: Any, turn: int) -> Any:
        done = not isinstance(self._fitting, PartialFit) or self._fitting.finish(total)
        return self.Fitted() if done else None

    def _score_at(self, state: Any, outputs: ModelOutputs, threads: int) -> FloatArray:
        size = block_rows(max(self._width, *(outputs.array(name).shape[1] for name in self.own_reads)))
        if len(outputs) <= size:
            return self.scorer._score_at(state, self._transform(outputs, threads), threads)
        scores = np.empty(len(outputs))
        for a in range(0, len(outputs), size):  # so that what is passed on is never held as a whole
            try:
                part = self._transform(outputs[a : a + size], threads)
                scores[a : a + size] = self.scorer._score_at(state, part, threads)
            except InvalidInput:
                self._transform(outputs, threads)  # names the row as its place among all
                raise
        return scores

    @property
    def _width(self) -> int:
        """Numbers per row of what is passed on, where that is more than what is read."""
        return 0

    def _start(self) -> Any:
        return self.scorer._start()

    def _weighted_for_threshold(self, state: Any) -> Any:
        return self.scorer._weighted_for_threshold(state)

    def _prepare(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        return self.scorer._prepare(self._transform(outputs, threads), threads)

    def _step(self, state: Any, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, Any]:
        return self.scorer._step(state, prepared, threads)

    def merge(self, first: Any, second: Any) -> Any:
        return self.scorer.merge(first, second)

    def _empty_state(self) -> Any:
        return self.scorer._empty_state()

    def _read_state(self, arrays: Mapping[str, NDArray[Any]], name: str = "state") -> Any:
        return self.scorer._read_state(arrays, name)

    def _scorer_formula(self) -> Formula | None:
        """The formula that the scorer offers, by the running statistics that this step keeps for it."""
        scorer = self.scorer
        if self._runs:
            scorer = copy.copy(scorer)
            scorer.state_ = self._current()
        return offered_formula(scorer)


def replaced(outputs: ModelOutputs, name: str, rows: NDArray[Any], head: Head | None = None) -> ModelOutputs:
    """Outputs with other rows in the place of one array, and another head where one is given."""
    arrays = {one: outputs.array(one) for one in outputs.names}
    return ModelOutputs._trusted(arrays | {name: rows}, outputs.labels, head or outputs.head)


DECLARED_HEAD = {"weight": Numbers("classes", FEATURES), "bias": Numbers("classes")}
"""What the parts of a head in a record must be."""


class HeadStep(Step):
    """Base class; a subclass says how features are changed (:meth:`_shaped`), and what it learns for that.

    Scores are computed in blocks, so that the logits are never held as a whole.
    """

    default_score = "energy"
    own_reads: ClassVar[tuple[str, ...]] = (FEATURES,)
    removes: ClassVar[tuple[str, ...]] = (FEATURES,)
    reads_in_fit: tuple[str, ...] | None = (HEAD,)

    class Fitted(NamedTuple):
        head: Annotated[Head, DECLARED_HEAD]

    fitted_: Any

    def _shaped(self, features: FloatArray, *others: FloatArray) -> FloatArray:
        """What the last layer reads in the place of finite features (n, d), which may be overwritten.

        ``others`` are rows of the other arrays of :attr:`own_reads`.
        """
        return features

    def _feature_totals(self, rows: ModelOutputs) -> Any:
        """What the features of some rows tell, besides the head."""
        Step._partial(self, rows, 0)  # looks for rows that are not finite

    def _learned(self, head: Head, totals: Any) -> Any:
        """The record :attr:`fitted_`, by the head and what the features of all rows tell."""
        return self.Fitted(head)

    def _partial(self, rows: ModelOutputs, turn: int) -> tuple[Head | None, Any]:
        return rows.head, self._feature_totals(rows)

    def _finish(self, total: Any, turn: int) -> Any:
        return self._learned(*total)

    @property
    def _width(self) -> int:
        return int(self.fitted_.head.n_classes)

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        logits = np.empty((len(outputs), self._width))
        for place, *blocks in blocks_of(outputs, self.own_reads, self._width):
            logits[place] = self.fitted_.head.logits(self._shaped(*blocks))
        others = {name: outputs.array(name) for name in outputs.names if name not in (*self.removes, LOGITS)}
        return ModelOutputs._trusted({LOGITS: logits, **others}, outputs.labels)


class PercentileStep(HeadStep):
    """Base class of those that learn percentiles of all training activations together."""

    def _fit_step(self, chunks: Iterator[ModelOutputs]) -> None:
        train = join(chunks)
        assert train.head is not None  # the contract checked it
        if not np.isfinite(train.features).all():
            raise _validate.invalid_row_error(train.features, FEATURES)
        self._learn(self._learned(train.head, train.features))

    def _why_all_rows(self) -> str:
        return "it learns percentiles of all training activations"


def percentile_of(value: float) -> float:
    """A percentile strictly between 0 and 100."""
    return 100.0 * _validate.fraction(_validate.real(value, "percentile") / 100.0, "percentile/100")
