"""The contract of every detector: fit, score, stream, set a threshold, predict, save.

A detector reads some of a classifier's outputs and gives each input a number: HIGHER = MORE OoD. Its class says all
there is to say about it; nothing else in the package knows its name. Constructors only store parameters; what ``fit``
learns ends in an underscore. ``score`` never changes anything. A call that raises leaves the detector as it was.
"""

from __future__ import annotations

import copy
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscale import _validate
from normscale._kernels import BlockState
from normscale._validate import BoolArray, FloatArray
from normscale.dataframes import is_dataframe, read_dataframe
from normscale.detectors.baseline import TrainingBaseline
from normscale.detectors.formula import Formula, MomentFormula
from normscale.detectors.threshold import Threshold
from normscale.errors import FileFormatError, InvalidInput, NotFitted, NumericalWarning
from normscale.input_checks.softmaxed import Squashed, sentence, squashed
from normscale.outputs import LOGITS, ModelOutputs, as_outputs, finite_rows
from normscale.state import pack_state, save_state

OutputsLike = ModelOutputs | Mapping[str, ArrayLike] | ArrayLike


class Setting(StrEnum):
    """How a detector is measured."""

    FROZEN = "frozen"
    """As it was fitted."""
    STREAM = "stream"
    """Its running statistics take each row in before it is scored."""
    PER_CLASS = "per class"
    """One ranking for each predicted class, averaged."""


_STREAM = Setting.STREAM
_FEWEST_TO_SPLIT = 20
"""Below this many rows :meth:`Detector.fit_held_out` does not halve them."""
_LOOKED_AT, _FEWEST_TO_WARN = 1000, 20
"""Training rows that are looked at for probabilities, and how many there must be: a toy of one-hot rows means it."""


class Detector(ABC):
    """Base class; a subclass says what it is and what it reads, and how to fit, score and store itself.

    One file and the decorator :func:`~normscale.detectors.registry.register` are all that a new detector needs.
    """

    name: str
    """What one types: the key in the registry and in files; for a step with its score, ``react+energy``."""
    title: str = ""
    """The name in tables and figures."""
    paper: ClassVar[str] = ""
    """Where it was published."""
    cost: ClassVar[str] = ""
    """What a score costs, in plain words: ``one pass over the logits``."""
    reads: tuple[str, ...] = (LOGITS,)
    """Names of the arrays of :class:`ModelOutputs` that scores come from."""
    reads_in_fit: tuple[str, ...] = ()
    """Further arrays that ``fit`` needs."""
    fitted_on: ClassVar[str] = "train"
    """Which outputs ``fit`` is meant for: ``"train"`` or ``"validation"``."""
    needs_fit: bool = True
    """Whether ``score`` works only after ``fit``."""
    needs_labels: bool = False
    """Whether ``fit`` needs labels."""
    needs_head: bool = False
    """Whether ``fit`` needs the network's last layer."""
    settings: tuple[Setting, ...] = (Setting.FROZEN,)
    """The settings it can be measured in; its statistics run where STREAM is among them."""
    reads_again: bool = False
    """Whether ``fit`` reads the rows more than once."""
    parameters: ClassVar[Mapping[str, str]] = {}
    """The constructor's arguments and what each means; each is an attribute of the same name."""

    widths_: dict[str, int] | None = None
    """Columns of every array it reads, known after fit."""
    threshold_: Threshold | None = None
    """Set by :meth:`set_threshold`; None means :meth:`predict` cannot answer yet."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes, for people."""
    choice: str | None = None
    """Why it is this detector, where it was chosen for the outputs at hand and by nobody."""
    baseline_: TrainingBaseline | None = None
    _is_steady = False
    """What the training rows looked like; None where their logits were not known."""

    _lock: threading.Lock

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self._lock = threading.Lock()
        return self

    # -- what a subclass writes ------------------------------------------------------------------------------

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        """Learn from checked chunks; every chunk must be consumed.

        A detector whose fit can be put together from parts of the rows leaves this as it is and writes
        :meth:`_partial`, :meth:`_merge` and :meth:`_finish`; one that must see all rows writes this.
        """
        rows = [join(chunks)] if self.reads_again else chunks
        turn = 0
        while not self._finish(self._partial(iter(rows), turn), turn):
            turn += 1

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> Any:
        """What some of the rows tell: numbers that :meth:`_merge` can add up. ``turn`` counts readings from 0."""
        for chunk in chunks:
            for name in self.reads:
                if not np.isfinite(chunk.array(name)).all():
                    raise _validate.invalid_row_error(chunk.array(name), name)

    def _merge(self, first: Any, second: Any) -> Any:
        """What two parts of the rows tell together; neither is changed."""
        return None

    def _finish(self, total: Any, turn: int) -> bool:
        """Learn from what all rows tell; False asks for another reading of them (:attr:`reads_again`)."""
        return True

    def why_all_rows(self) -> str:
        """Why ``fit`` must see all rows at once, in words; empty where parts of them can be fitted and merged."""
        return "" if type(self)._fit is Detector._fit else "its fit takes all rows in one place"

    @abstractmethod
    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        """Scores of outputs of checked shape; must raise on rows that are not finite."""

    def _stream(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        """Take each row in and score it; must raise on a row that is not finite and then leave the state as it was."""
        return self._score(outputs, threads)

    def _fit_held_out(self, train: ModelOutputs) -> FloatArray:
        """Fit on all rows; give the scores (n,) that each would have had from a detector which has not seen it."""
        own = iter([train])
        if not self.needs_fit or len(train) < _FEWEST_TO_SPLIT:
            self._fit(own)
            self._start()
            return self._score(train.only(*self.reads), 1)
        scores = np.empty(len(train))
        for half in (slice(0, None, 2), slice(1, None, 2)):
            other = slice(1 - half.start, None, 2)
            scores[half] = copy.copy(self).fit_chunks([train[other]]).score(train[half])
        self._fit(own)
        return scores

    def _start(self) -> None:  # noqa: B027 - nothing to do is a valid answer
        """Begin a new stream from what ``fit`` learned."""

    def _steady(self) -> None:
        """Let running statistics begin so calmly that one threshold serves the first row of a stream and the last."""
        if not self._is_steady:
            self._is_steady = True
            self._add_prior()

    def _add_prior(self) -> None:  # noqa: B027
        """Add to running statistics what makes them steady."""

    def _separate(self) -> None:  # noqa: B027
        """Give a copy running statistics of its own."""

    def _tensors(self) -> dict[str, NDArray[Any]]:
        """Return the fitted arrays, by name."""
        return {}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:  # noqa: B027
        """Take the fitted arrays back in."""

    def formula(self) -> Formula | None:
        """How a graph can compute :meth:`score` with the statistics as they are now; None where it cannot."""
        return None

    def moment_formula(self) -> MomentFormula | None:
        """How :meth:`stream` scores, where its statistics are nothing but moments of the logits; else None."""
        return None

    def move_moments(self, state: BlockState) -> None:
        """Make these the running statistics; for detectors that have a :meth:`moment_formula`."""
        raise InvalidInput(f"the running statistics of {self.name} are not moments of the logits alone.")

    # -- what everyone calls ---------------------------------------------------------------------------------

    def fit(self, outputs: OutputsLike) -> Self:
        """Learn from the classifier's outputs on its training set.

        Parameters
        ----------
        outputs : ModelOutputs, or the array itself where a detector reads only one
            The names of a DataFrame's columns become :attr:`class_names`; from then on columns are matched by name.
            Probabilities in the place of logits are warned of (:class:`~normscale.errors.NumericalWarning`).

        Returns
        -------
        self
        """
        names = None
        if is_dataframe(outputs):
            record, names = read_dataframe(outputs, self.reads[0])
        else:
            record = self._as_outputs(outputs)
        if LOGITS in self.reads:
            _warn_of_probabilities(record.get(LOGITS))
        self.fit_chunks([record])
        self.class_names = names
        return self

    def fit_chunks(self, chunks: Iterable[ModelOutputs]) -> Self:
        """Learn from a training set that comes in pieces, such as ``open_table(path).chunks()``."""
        learner = self._learner()
        learner._fit(learner._checked(chunks))
        if learner.widths_ is None:
            raise InvalidInput(f"{self.name}: the training outputs are empty; at least one row is needed.")
        learner._start()
        with self._lock:
            self._take_over(learner)
        return self

    def fit_held_out(self, outputs: OutputsLike) -> FloatArray:
        """Learn as :meth:`fit` does, and give each training row's score as if it had not been among them.

        A detector that remembers its training rows finds them more familiar than any other; what is learned from their
        scores would be wrong. Every other row is scored by a copy that was fitted on the rest, and those by a second
        copy.

        Returns
        -------
        array of shape (n,), float64
        """
        record = self._as_outputs(outputs)
        learner = self._learner()
        parts = list(learner._checked([record]))
        if not parts:
            raise InvalidInput(f"{self.name}: the training outputs are empty; at least one row is needed.")
        scores = learner._fit_held_out(parts[0])
        learner._start()
        with self._lock:
            self._take_over(learner)
        return scores

    def _learner(self) -> Self:
        """A copy that has learned nothing: a failed fit must leave self as it was."""
        learner = copy.copy(self)
        learner.threshold_ = learner.widths_ = learner.baseline_ = learner.class_names = None
        learner._is_steady = False
        return learner

    def score(self, outputs: OutputsLike, *, threads: int = 1, on_invalid: str = "raise") -> FloatArray:
        """Score each input; nothing changes.

        Parameters
        ----------
        outputs : ModelOutputs, or the array itself where a detector reads only one
        threads : int
            How many threads may share the work.
        on_invalid : {"raise", "skip"}
            What to do with a row that holds NaN or infinity: refuse all rows, or give that one the score NaN.

        Returns
        -------
        array of shape (n,), float64; higher = more out-of-distribution
        """
        return self._without_bad_rows(self._score, self._read(outputs), threads, on_invalid)

    def stream(self, outputs: OutputsLike, *, threads: int = 1, on_invalid: str = "raise") -> FloatArray:
        """Score a live stream: a detector with running statistics takes each row in, then scores it.

        It goes on where the last call stopped, and any split of the rows into calls gives the same scores and state.
        Calls from several Python threads take turns. A block with a bad row is refused whole
        (``on_invalid="raise"``), or scored NaN in that row and taken in without it (``"skip"``). A detector without
        running statistics scores as :meth:`score` does.
        """
        record = self._read(outputs)
        if _STREAM not in self.settings:
            return self._without_bad_rows(self._score, record, threads, on_invalid)
        with self._lock:
            if on_invalid == "raise":  # one row at a time should cost little
                return self._stream(record, threads)
            return self._without_bad_rows(self._stream, record, threads, on_invalid)

    def prepare(self, outputs: OutputsLike) -> ModelOutputs:
        """What :meth:`stream_prepared` needs of each row, whatever stream the row comes in."""
        return self._read(outputs)

    def stream_prepared(self, prepared: ModelOutputs) -> FloatArray:
        """What :meth:`stream` gives for rows that went through :meth:`prepare`, in any order.

        Where the same rows come in many streams, what does not depend on the stream is computed once.
        """
        with self._lock:
            return self._stream_prepared(prepared)

    def _stream_prepared(self, prepared: ModelOutputs) -> FloatArray:
        """Take each prepared row in and score it."""
        return self._stream(prepared, 1)

    def reset(self) -> Self:
        """Forget the stream and start again from the training."""
        self._require_fitted()
        with self._lock:
            self._start()
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

        It serves :meth:`score` and, from the first row, :meth:`stream`: running statistics that would jump with the
        first rows of a stream are made to begin calmly, see the detector.

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
        twin = copy.copy(self) if self.has_running_statistics and self.is_fitted else self
        if twin is not self:
            twin._steady()
        scores = twin.stream(record) if stream else twin.score(record)
        predicted, n_classes = (record.predicted, record.n_classes) if per_class else (None, None)
        threshold = Threshold.at(scores, predicted, n_classes, keep=keep, conformal=conformal)
        with self._lock:
            if twin is not self:
                self._steady()
            self.threshold_ = threshold
        return self

    def predict(self, outputs: OutputsLike, *, threads: int = 1) -> BoolArray:
        """True where an input is out-of-distribution; shape (n,). Needs :meth:`set_threshold` first."""
        record = self._as_outputs(outputs)
        return self.decide(self.score(record, threads=threads), record)

    def decide(self, scores: ArrayLike, outputs: OutputsLike) -> BoolArray:
        """Apply the threshold to scores that are already there; ``outputs`` tells the predicted classes."""
        if self.threshold_ is None:
            raise NotFitted(
                f"{self.name} has no threshold; call set_threshold(validation_outputs, keep=0.95) first, "
                f"or set threshold_ = Threshold(value)."
            )
        predicted = self._as_outputs(outputs).predicted if self.threshold_.per_class is not None else None
        return self.threshold_.flags(scores, predicted)

    # -- storing ---------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the detector to a .safetensors file; :func:`normscale.load_detector` reads it back."""
        save_state(path, *self._stored())

    def pack(self) -> bytes:
        """What :meth:`save` writes, as bytes."""
        return pack_state(*self._stored())

    def _stored(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        self._require_fitted()
        with self._lock:
            return self._header_and_tensors()

    def _header_and_tensors(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        header = {
            **self.spec(),
            "widths": self.widths_,
            "threshold": None if self.threshold_ is None else self.threshold_.to_header(),
            "class_names": self.class_names,
            "choice": self.choice,
        }
        baseline = {} if self.baseline_ is None else self.baseline_.tensors()
        return header, {**baseline, **self._tensors()}

    @classmethod
    def from_state(cls, header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Self:
        """Rebuild a detector from what :meth:`save` stored."""
        try:
            detector = cls(**header["parameters"])
            widths = header["widths"]
            detector.widths_ = None if widths is None else {str(name): int(widths[name]) for name in detector.reads}
            names = header["class_names"]
            detector.class_names = None if names is None else tuple(names)
            detector.choice = None if header.get("choice") is None else str(header["choice"])
            if header["threshold"] is not None:
                detector.threshold_ = Threshold.from_header(header["threshold"])
            detector.baseline_ = TrainingBaseline.from_tensors(tensors)
            detector._restore(tensors)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise FileFormatError(f"the stored state of a {cls.name} detector is damaged: {error}") from error
        return detector

    def spec(self) -> dict[str, Any]:
        """The class's name and the parameters: plain values that make the same, unfitted detector again."""
        return {"detector": type(self).name, "parameters": self.get_params()}

    def get_params(self) -> dict[str, Any]:
        """Return the constructor's arguments, as plain values."""
        return {name: getattr(self, name) for name in self.parameters}

    @property
    def is_fitted(self) -> bool:
        """Whether it can score."""
        return self.widths_ is not None or not self.needs_fit

    @property
    def has_running_statistics(self) -> bool:
        """Whether it changes with its stream."""
        return Setting.STREAM in self.settings

    @property
    def n_classes_(self) -> int | None:
        """The number of classes, where the training outputs told it."""
        if self.baseline_ is not None:
            return int(self.baseline_.predicted.size)
        return None if self.widths_ is None else self.widths_.get(LOGITS)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.get_params().items())
        return f"{type(self).__name__}({arguments})"

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        with self._lock:
            twin._take_over(self)
            twin._separate()
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def _take_over(self, other: Detector) -> None:
        """Everything of another detector but its lock."""
        self.__dict__.update(other.__getstate__())

    # -- checks ----------------------------------------------------------------------------------------------

    def _require_fitted(self) -> None:
        if not self.is_fitted:
            raise NotFitted(f"{type(self).__name__} is not fitted; call fit(outputs) or load_detector(path) first.")

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
        reads, widths = self.reads, self.widths_ or {}
        if type(outputs) is np.ndarray and len(reads) == 1:  # one row at a time should cost little
            name, shape = reads[0], outputs.shape
            if len(shape) == 2 and shape[1] == widths.get(name) and outputs.dtype.char in "fde":
                return ModelOutputs._trusted({name: outputs})
        self._require_fitted()
        record = self._as_outputs(outputs)
        for name in self.reads:
            self._require(record, name)
            _validate.as_rows(record.array(name), name, width=widths.get(name), min_width=_validate.min_width(name))
        return record.only(*self.reads)

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
            for name in (*self.reads, *self.reads_in_fit):
                self._require(chunk, name)
                width = None if self.widths_ is None else self.widths_.get(name)
                _validate.as_rows(chunk.array(name), name, width=width, min_width=_validate.min_width(name))
            if self.needs_labels and chunk.labels is None:
                raise InvalidInput(f"{self.name} needs labels to fit; pass ModelOutputs(..., labels=...).")
            if self.needs_head and chunk.head is None:
                raise InvalidInput(
                    f"{self.name} needs the network's last layer to fit; pass ModelOutputs(..., head=(weight, bias)). "
                    "normscale.nn.extract does so by itself."
                )
            if len(chunk):
                self.widths_ = {name: chunk.array(name).shape[1] for name in self.reads}
                has_baseline = has_baseline and (counted or self._take_into_baseline(chunk))
                yield chunk
        if not has_baseline:
            self.baseline_ = None

    def _take_into_baseline(self, chunk: ModelOutputs) -> bool:
        """False where a chunk has no logits that could be compared with the others'."""
        logits = chunk.get(LOGITS)
        if logits is None:
            return False
        if self.baseline_ is None:
            self.baseline_ = TrainingBaseline(logits.shape[1])
        if logits.shape[1] != self.baseline_.predicted.size:
            return False
        try:
            self.baseline_.take_in(logits)
        except InvalidInput:
            if LOGITS in self.reads:
                raise
            return False
        for name in self.reads:
            if name != LOGITS:
                self.baseline_.take_in_other(name, chunk.array(name))
        return True

    @staticmethod
    def _without_bad_rows(
        work: Callable[[ModelOutputs, int], FloatArray], record: ModelOutputs, threads: int, on_invalid: str
    ) -> FloatArray:
        """Scores of all rows, or an error; with ``"skip"`` bad rows are left out and score NaN."""
        if on_invalid != "raise":
            _validate.one_of(on_invalid, "on_invalid", _validate.ON_INVALID)
        try:
            return work(record, threads)
        except InvalidInput:
            if on_invalid == "raise":
                raise
            good = finite_rows(record)
            if good.all():
                raise
            scores = np.full(len(record), np.nan)
            scores[good] = work(record[good], threads)
            return scores


def _warn_of_probabilities(logits: NDArray[Any] | None) -> None:
    found = None if logits is None or len(logits) < _FEWEST_TO_WARN else squashed(logits[:_LOOKED_AT])
    if found is not None and found.kind is Squashed.PROBABILITIES:
        warnings.warn(sentence(found, "the training array"), NumericalWarning, stacklevel=3)


def join(chunks: Iterable[ModelOutputs]) -> ModelOutputs:
    """All chunks as one record, without a copy when there is only one."""
    parts: Sequence[ModelOutputs] = list(chunks)
    if not parts:
        raise InvalidInput("the training outputs are empty; at least one row is needed.")
    return parts[0] if len(parts) == 1 else ModelOutputs.concatenate(parts)
