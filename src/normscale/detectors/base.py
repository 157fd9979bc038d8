"""The contract of every detector: fit, score, stream, set a threshold, predict, save.

A detector reads some of a classifier's outputs and gives each input a number: HIGHER = MORE OoD. Constructors only
store parameters. What ``fit`` learns is a record, :attr:`Detector.fitted_`, and what a stream moves is another,
:attr:`Detector.state_`. ``score`` never changes anything. A call that raises leaves the detector as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscale import _kernels, _validate
from normscale._kernels import BlockState
from normscale._validate import BoolArray, FloatArray
from normscale.dataframes import read_dataframe
from normscale.detectors.baseline import (
    FAR_SCORE,
    TrainingBaseline,
    why_little_is_learned,
    why_nothing_is_learned,
)
from normscale.detectors.formula import Formula, FormulaScores, MomentFormula
from normscale.detectors.kept import About as About
from normscale.detectors.kept import Kept
from normscale.detectors.kept import Setting as Setting
from normscale.detectors.kept import settings_of as settings_of
from normscale.detectors.partial_fit import HeldOutFit, merged
from normscale.errors import InvalidInput, NotFitted, NumericalWarning
from normscale.input_checks import (
    ProbabilityForm,
    constant_on_log_probabilities,
    detect_probabilities,
    probabilities_message,
)
from normscale.metrics.thresholds import Threshold
from normscale.outputs import LOGITS, ModelOutputs, as_outputs, is_dataframe, mask_of_finite_rows, row_slices
from normscale.state import copied

OutputsLike = ModelOutputs | Mapping[str, ArrayLike] | ArrayLike
_LOOKED_AT, _FEWEST_TO_WARN = 1000, 20
"""Training rows that are looked at for probabilities, and how many there must be: a toy of one-hot rows means it."""


class Detector(Kept):
    """Base class; a subclass says what it is and what it reads, and how to fit and score.

    One file and the decorator :func:`~normscale.detectors.registry.register` are all that a new detector needs.
    """

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        """Learn from checked chunks; every chunk must be consumed.

        A detector whose fit can be put together from parts of the rows leaves this as it is and writes
        :meth:`_partial` and :meth:`_finish`; one that must see all rows writes this, and ends with :meth:`_learn`.
        """
        rows = [join(chunks)] if self._reads_again else chunks
        found, turn = None, 0
        while found is None:
            total, n = self._sum_of_parts(rows, turn)
            if not n:
                return  # fit_chunks says so
            found, turn = self._finish(total, turn), turn + 1
        self._learn(found)

    def _partial(self, rows: ModelOutputs, turn: int) -> Any:
        """What some of the rows tell: numbers, arrays, or tuples and dicts of them, that add up; else with ``merge``.

        ``turn`` counts readings of all rows from 0.
        """
        for name in self.reads:
            if not np.isfinite(rows.array(name)).all():
                raise _validate.invalid_row_error(rows.array(name), name)

    def _finish(self, total: Any, turn: int) -> Any:
        """The record that all rows tell; None asks for another reading (:attr:`_reads_again`)."""
        return self.Fitted()

    def _sum_of_parts(self, chunks: Iterable[ModelOutputs], turn: int) -> tuple[Any, int]:
        """What all rows of checked chunks tell together, and how many there are."""
        total, n = None, 0
        for chunk in chunks:
            for rows in row_slices(chunk):
                try:
                    own = self._partial(rows, turn)
                except InvalidInput:
                    if rows is not chunk:
                        self._partial(chunk, turn)  # names the row as its place among all
                    raise
                total, n = merged(total, own), n + len(rows)
        return total, n

    def _why_all_rows(self) -> str:
        """Why ``fit`` must see all rows at once, in words; empty where parts of them can be fitted and merged."""
        return "" if type(self)._fit is Detector._fit else "its fit takes all rows in one place"

    def _held_out(self) -> HeldOutFit:
        """A fit that also gives training rows the scores of copies which have not seen them."""
        return HeldOutFit(self)

    # What a subclass writes for scores: one without running statistics _score; one with them _start, _step and
    # _score_at.

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        """Scores of outputs of checked shape; must raise on rows that are not finite."""
        return self._score_at(self._current(), outputs, threads)

    def _score_at(self, state: Any, outputs: ModelOutputs, threads: int) -> FloatArray:
        """Scores of outputs of checked shape by running statistics as they are; ``state`` is left as it is."""
        return self._score(outputs, threads)

    def _prepare(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        """What :meth:`_step` needs of rows, whatever the state is; must raise on rows that are not finite."""
        return outputs

    def _step(self, state: Any, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, Any]:
        """Take each prepared row in and score it: the scores (n,), and the state after them.

        The caller gives ``state`` up: it may be changed in place (say so by :attr:`_in_place`), but not by a call that
        raises.
        """
        return self._score_at(state, prepared, threads), state

    def _stream_row(self, row: object) -> FloatArray | None:
        """Stream one row (1, C) in less time than any number of rows takes; None: it must go the usual way."""
        return None

    def _empty_state(self) -> Any:
        """A state to begin a part of a stream with that is merged into another later; it may count as no rows."""
        return self.start()

    def _moments(self, state: Any) -> BlockState | None:
        """The moments of the logits that a state is, where it is nothing else; :meth:`_of_moments` leads back."""
        return None

    def _of_moments(self, moments: BlockState) -> Any:
        """The state of a stream without training that has these moments."""
        raise InvalidInput(f"the running statistics of {self.name} are not moments of the logits alone.")

    def _formula(self) -> Formula | None:
        """How a graph can compute :meth:`score` with the statistics as they are now; None where it cannot."""
        return None

    def _moment_formula(self) -> MomentFormula | None:
        """How :meth:`stream` scores, where its statistics are nothing but moments of the logits; else None."""
        return None

    def fit(self, outputs: OutputsLike | Iterator[ModelOutputs]) -> Self:
        """Learn from the classifier's outputs on its training set; returns self.

        ``outputs`` may be the array itself where a detector reads only one, or an iterator over parts of the rows, such
        as ``open_table(path).chunks()``. The names of a DataFrame's columns become
        :attr:`class_names`; from then on columns are matched by name. Probabilities in the place of logits, equal rows
        and too few rows a class are warned of, unless there are fewer than 20 rows.
        """
        if isinstance(outputs, Iterator):
            return self._fit_chunks(outputs)
        is_frame = is_dataframe(outputs)
        record, names = read_dataframe(outputs, self.reads[0]) if is_frame else (self._as_outputs(outputs), None)
        some = record[:_LOOKED_AT]
        found = detect_probabilities(some.logits) if LOGITS in self.reads and len(record) >= _FEWEST_TO_WARN else None
        if found is not None and found.form is ProbabilityForm.PROBABILITIES:
            warnings.warn(probabilities_message(found, "the training array"), NumericalWarning, stacklevel=2)
        self._fit_chunks([record])
        if found is not None and found.form is ProbabilityForm.LOG_PROBABILITIES:
            self._warn_of_constant_scores(some, self.score(some))
        if len(record) >= _FEWEST_TO_WARN and (why := why_nothing_is_learned(self) or why_little_is_learned(self)):
            warnings.warn(why, NumericalWarning, stacklevel=2)
        self.class_names = names
        return self

    def _fit_chunks(self, chunks: Iterable[ModelOutputs]) -> Self:
        """Learn from a training set that comes in parts, without a look for what users do wrong."""
        learner = self._learner()
        learner._fit(learner._checked(chunks))
        if learner._widths is None:
            raise InvalidInput(f"{self.name}: the training outputs are empty; at least one row is needed.")
        self._take_over(learner)
        return self

    def score(
        self, outputs: OutputsLike, *, state: Any = None, threads: int = 1, on_invalid: str = "raise"
    ) -> FloatArray:
        """Score each input (n,), float64, higher = more out-of-distribution; nothing changes.

        A row whose logits lie far outside of all that training showed gets the highest score, :data:`FAR_SCORE`.

        Parameters
        ----------
        outputs : ModelOutputs, or the array itself where a detector reads only one
        state : record, optional
            Running statistics to score by, from :meth:`start` or :meth:`step`; by default those that it keeps.
        threads : int
            How many threads may share the work.
        on_invalid : {"raise", "skip"}
            What to do with a row that holds NaN or infinity: refuse all rows, or give that one the score NaN.
        """
        record = self._read(outputs)
        far = self._far_rows(record)
        if state is not None:
            return without_bad_rows(lambda rows: self._score_at(state, rows, threads), record, on_invalid, far)
        with self._lock if self._in_place else nullcontext():
            return without_bad_rows(lambda rows: self._score(rows, threads), record, on_invalid, far)

    def stream(
        self,
        outputs: OutputsLike,
        *,
        by: Sequence[Any] | NDArray[Any] | None = None,
        threads: int = 1,
        on_invalid: str = "raise",
    ) -> FloatArray:
        """Score a live stream: a detector with running statistics takes each row in, then scores it.

        It goes on where the last call stopped, and any split of the rows into calls gives the same scores and state.
        Calls from several Python threads take turns. A block with a bad row is refused whole
        (``on_invalid="raise"``), or scored NaN in that row and taken in without it (``"skip"``). A row far outside of
        training is not taken in. A detector without running statistics scores as :meth:`score` does. With ``by``, the
        source of every row, each source has a stream of its own, see :mod:`normscale.detectors.by_source`.
        """
        if by is None and (row_score := self._stream_row(outputs)) is not None:
            return row_score
        if not self._runs:
            return self.score(outputs, threads=threads, on_invalid=on_invalid)
        if by is not None:
            from normscale.detectors.by_source import SourceStates

            with self._lock:
                if self._sources is None:
                    self._sources = SourceStates(self)
                return self._sources.stream(outputs, by, threads=threads, on_invalid=on_invalid)

        def go_on(rows: ModelOutputs) -> FloatArray:
            state = self.start() if self.state_ is None else self.state_  # one row at a time should cost little
            scores, self.state_ = self._step(state, self._prepare(rows, threads), threads)
            return scores

        record = self._read(outputs)
        far = self._far_rows(record)
        with self._lock:
            return without_bad_rows(go_on, record, on_invalid, far)

    def step(
        self, state: Any, outputs: OutputsLike, *, threads: int = 1, on_invalid: str = "raise"
    ) -> tuple[FloatArray, Any]:
        """Take rows into a state and score them, as :meth:`stream` does with the state it keeps.

        Returns the scores (n,) and the state after the rows; the one that was given is left as it was.
        """
        after = state

        def take_in(rows: ModelOutputs) -> FloatArray:
            nonlocal after
            own = copied(state) if self._in_place else state
            scores, after = self._step(own, self._prepare(rows, threads), threads)
            return scores

        record = self._read(outputs)
        return without_bad_rows(take_in, record, on_invalid, self._far_rows(record)), after

    def merge(self, first: Any, second: Any) -> Any:
        """The state of a stream that has the rows of two streams, both begun by :meth:`start`; training counts once.

        Where what is learned depends on the order of the rows, it raises.
        """
        raise InvalidInput(
            f"two streams of {self.name} have no common state: what it learns depends on the order of its rows. Stream "
            "all rows through one detector, or keep one for each source."
        )

    def reset(self) -> Self:
        """Forget the stream and start again from the training."""
        state = self.start()
        with self._lock:
            self.state_, self._sources = state, None
        return self

    def set_threshold(
        self,
        outputs: OutputsLike,
        keep: float = 0.95,
        *,
        conformal: bool = False,
        per_class: bool = False,
        stream: bool = False,
    ) -> Self:
        """Set the threshold on in-distribution inputs that ``fit`` has not seen.

        It serves :meth:`score` and, from the first row, :meth:`stream`. OODD, RTL and DART, whose streamed scores are
        on another scale, need one of their own for streams: pass ``stream=True``.

        Parameters
        ----------
        outputs : ModelOutputs, or the array itself where a detector reads only one
        keep : float in (0, 1]
            Share of in-distribution inputs to accept.
        conformal : bool
            Finite-sample correction: a NEW in-distribution input is accepted with probability at least ``keep``.
        per_class : bool
            One threshold for each predicted class.
        stream : bool
            Set it on streamed scores (of a copy: no statistics move) instead of frozen ones.
        """
        record = self._as_outputs(outputs)
        self._require_fitted()
        with self._lock:
            state = copied(self._weighted_for_threshold(self._current()))
        scores = self.step(state, record)[0] if stream else self.score(record, state=state)
        self._warn_of_constant_scores(record, scores)
        predicted, n_classes = (record.predicted, record.n_classes) if per_class else (None, None)
        threshold = Threshold.at(scores, predicted, n_classes, keep=keep, conformal=conformal)
        with self._lock:
            if self._runs:
                self.state_ = self._weighted_for_threshold(self._current())
            self.threshold_ = threshold
        return self

    def _warn_of_constant_scores(self, rows: ModelOutputs, scores: FloatArray) -> None:
        """Warn where the rows are log-probabilities and this detector gives all of them one score."""
        if self.reads == (LOGITS,) and len(rows) >= _FEWEST_TO_WARN:
            said = constant_on_log_probabilities(self.name, scores, rows.logits)
            if said is not None:
                warnings.warn(said, NumericalWarning, stacklevel=3)

    def predict(
        self,
        outputs: OutputsLike,
        *,
        scores: ArrayLike | None = None,
        threshold: Threshold | None = None,
        threads: int = 1,
    ) -> BoolArray:
        """True where an input is out-of-distribution; shape (n,). Needs :meth:`set_threshold` first.

        ``scores`` of the same rows that are already there, such as those of a stream, are not computed again.
        ``threshold`` serves in the place of the one that was set.
        """
        threshold = threshold or self.threshold_
        if threshold is None:
            raise NotFitted(
                f"{self.name} has no threshold; call set_threshold(validation_outputs, keep=0.95) first, "
                f"or set threshold_ = Threshold(value)."
            )
        record = self._as_outputs(outputs)
        scores = self.score(record, threads=threads) if scores is None else scores
        return threshold.flags(scores, record.predicted if threshold.per_class is not None else None)

    # How a detector reads what it is given.

    def _as_outputs(self, outputs: OutputsLike) -> ModelOutputs:
        """A record; a plain array is the one array that is read."""
        if isinstance(outputs, (ModelOutputs, Mapping)):
            return as_outputs(outputs)
        if is_dataframe(outputs):
            return read_dataframe(outputs, self.reads[0], self.class_names)[0]
        if len(self.reads) > 1:
            raise InvalidInput(
                f"{self.name} reads {' and '.join(self.reads)}; got one array. "
                f"Pass ModelOutputs({', '.join(f'{name}=...' for name in self.reads)})."
            )
        return as_outputs(outputs, self.reads[0])

    def _read(self, outputs: OutputsLike) -> ModelOutputs:
        """The arrays scores come from, checked for shape."""
        self._require_fitted()
        record, widths = self._as_outputs(outputs), self._widths or {}
        for name in self.reads:
            self._require(record, name)
            _validate.as_rows(record.array(name), name, width=widths.get(name), min_width=_validate.min_width(name))
        return record.only(*self.reads)

    def _far_rows(self, record: ModelOutputs, *, warn: bool = True) -> BoolArray | None:
        """(n,) which rows have logits far outside of what training showed, with a warning; None where none has."""
        if not self._marks_far_rows or self._logit_limits == Kept._logit_limits:
            return None
        baseline, logits = self._baseline, record.logits
        if baseline is None or not _kernels.outside(logits, *self._logit_limits):
            return None
        far = baseline.far_outside(logits)
        if warn and far.any() and len(record) > 1:
            warnings.warn(baseline.far_sentence(logits), NumericalWarning, stacklevel=3)
        return far if far.any() else None

    def _require(self, record: ModelOutputs, name: str) -> None:
        if record.get(name) is None:
            raise InvalidInput(
                f"{self.name} reads {name}; got outputs with {' and '.join(record.names)}. "
                f"Pass ModelOutputs({name}=...)."
            )

    def _checked(self, chunks: Iterable[ModelOutputs], *, counted: bool = False) -> Iterator[ModelOutputs]:
        """Pass non-empty chunks on, checked for what this detector reads and, unless they were, counted in."""
        has_baseline = True
        for chunk in chunks:
            for name in self._arrays_in_fit:
                self._require(chunk, name)
                width = None if self._widths is None else self._widths.get(name)
                _validate.as_rows(chunk.array(name), name, width=width, min_width=_validate.min_width(name))
            if self._needs_labels and chunk.labels is None:
                raise InvalidInput(f"{self.name} needs labels to fit; pass ModelOutputs(..., labels=...).")
            if self._needs_head and chunk.head is None:
                raise InvalidInput(
                    f"{self.name} needs the network's last layer to fit; pass ModelOutputs(..., head=(weight, bias)). "
                    "normscale.extraction.extract does so by itself."
                )
            if len(chunk):
                self._widths = {name: chunk.array(name).shape[1] for name in self.reads}
                has_baseline = has_baseline and (counted or self._take_into_baseline(chunk))
                yield chunk
        if not has_baseline:
            self._baseline = None

    def _take_into_baseline(self, chunk: ModelOutputs) -> bool:
        """False where a chunk has no logits that could be compared with the others'."""
        if chunk.get(LOGITS) is None:
            return False
        before = self._baseline
        if before is not None and chunk.logits.shape[1] != before.predicted.size:
            return False
        try:
            others = tuple(name for name in self.reads if name != LOGITS)
            own = TrainingBaseline.of(chunk, others, keep_rows=self._runs)
        except InvalidInput:
            if LOGITS in self.reads:
                raise
            return False
        self._baseline = own if before is None else before.merge(own)
        return True


class ByFormula(Detector):
    """Base class of detectors that are the formula which they offer."""

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scorer = FormulaScores.of(self._formula(), self.reads)
        assert scorer is not None
        return scorer(outputs, threads)


def without_bad_rows(
    work: Callable[[ModelOutputs], FloatArray],
    record: ModelOutputs,
    on_invalid: str,
    far: BoolArray | None = None,
) -> FloatArray:
    """Scores of all rows, or an error; with ``"skip"`` bad rows are left out and score NaN.

    Rows that are ``far`` outside of training are left out, too, and get :data:`FAR_SCORE`.
    """
    if on_invalid != "raise":
        _validate.one_of(on_invalid, "on_invalid", _validate.ON_INVALID)
    try:
        return work(record) if far is None else _some_scored(work, record, ~far, FAR_SCORE)
    except InvalidInput:
        good = mask_of_finite_rows(record)
        if good.all():
            raise
        if on_invalid == "raise":
            bad = next(name for name in record.names if not np.isfinite(record.array(name)).all())
            raise _validate.invalid_row_error(record.array(bad), bad, can_skip=True) from None
        scores = _some_scored(work, record, good if far is None else good & ~far, np.nan)
        if far is not None:
            scores[far & good] = FAR_SCORE
        return scores


def _some_scored(
    work: Callable[[ModelOutputs], FloatArray], record: ModelOutputs, rows: BoolArray, others: float
) -> FloatArray:
    """Scores of some rows by ``work``, and one score for the others."""
    scores = np.full(len(record), others)
    if rows.any():
        scores[rows] = work(record[rows])
    return scores


def join(chunks: Iterable[ModelOutputs]) -> ModelOutputs:
    """All chunks as one record, without a copy when there is only one."""
    parts: Sequence[ModelOutputs] = list(chunks)
    if not parts:
        raise InvalidInput("the training outputs are empty; at least one row is needed.")
    return parts[0] if len(parts) == 1 else ModelOutputs.concatenate(parts)
