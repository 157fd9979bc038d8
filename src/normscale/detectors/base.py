"""The contract of every detector: fit, score, stream, calibrate, predict, save.

A detector reads what a classifier says (logits or penultimate features) and gives each input a number: HIGHER =
MORE OoD. Constructors only store parameters; what ``fit`` learns ends in an underscore. ``score`` never changes
anything. A call that raises leaves the detector as it was.
"""

from __future__ import annotations

import copy
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscale import _validate
from normscale._validate import BoolArray, FloatArray, Rows
from normscale.detectors.decision import Threshold
from normscale.detectors.reference import Reference, ReferenceCollector
from normscale.errors import FileFormatError, InvalidInput, NotFitted
from normscale.outputs import ModelOutputs, as_outputs
from normscale.state import pack_state, save_state

OutputsLike = ModelOutputs | Mapping[str, ArrayLike] | ArrayLike


class Detector(ABC):
    """Base class; a subclass names itself, lists its parameters, and says how to fit, score and store itself."""

    name: ClassVar[str]
    """The key in the registry and in files."""
    parameters: ClassVar[tuple[str, ...]] = ()
    """The constructor's arguments; each is an attribute of the same name."""
    reads: ClassVar[str] = "logits"
    """The field of :class:`ModelOutputs` that scores come from: ``"logits"`` or ``"features"``."""
    needs_labels: ClassVar[bool] = False
    """Whether ``fit`` needs labels."""
    needs_fit: ClassVar[bool] = True
    """Whether ``score`` works only after ``fit``."""

    width_: int | None = None
    """Columns of what it reads, known after fit."""
    threshold_: Threshold | None = None
    """Set by :meth:`calibrate`; None means :meth:`predict` cannot answer yet."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes, for people."""
    reference_: Reference | None = None
    """What the training rows looked like; None for a detector that was not fitted, or by an older version."""

    # -- what a subclass writes ------------------------------------------------------------------------------

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        """Learn from checked chunks; assign attributes only once nothing can fail any more."""
        for chunk in chunks:
            if not np.isfinite(chunk.logits).all():
                raise _validate.invalid_row_error(chunk.logits, "logits")

    @abstractmethod
    def _score(self, rows: Rows, threads: int) -> FloatArray:
        """Scores of rows of checked shape; must raise on rows that are not finite."""

    def _tensors(self) -> dict[str, NDArray[Any]]:
        """Return the fitted arrays, by name."""
        return {}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:  # noqa: B027 - nothing to do is a valid answer
        """Take the fitted arrays back in."""

    # -- what everyone calls ---------------------------------------------------------------------------------

    def fit(self, outputs: OutputsLike) -> Self:
        """Learn from the classifier's outputs on its training set.

        Parameters
        ----------
        outputs : ModelOutputs, or an array of logits (n, C) where only logits matter

        Returns
        -------
        self
        """
        return self.fit_chunks([as_outputs(outputs)])

    def fit_chunks(self, chunks: Iterable[ModelOutputs]) -> Self:
        """Learn from a training set that comes in pieces, such as ``open_table(path).chunks()``."""
        learner = copy.copy(self)  # a failed fit must leave self as it was
        learner.threshold_ = None
        learner.width_ = None
        collector = ReferenceCollector()
        learner._fit(collector.watch(learner._checked(chunks)))
        if learner.width_ is None:
            raise InvalidInput(f"{self.name}: the training outputs are empty; at least one row is needed.")
        learner.reference_ = collector.result
        self.__dict__.update(learner.__dict__)
        return self

    def score(self, outputs: OutputsLike, *, threads: int = 1, on_invalid: str = "raise") -> FloatArray:
        """Score each input; nothing changes.

        Parameters
        ----------
        outputs : ModelOutputs, or an array of logits (n, C) where only logits matter
        threads : int
            How many threads may share the work.
        on_invalid : {"raise", "skip"}
            What to do with a row that holds NaN or infinity: refuse all rows, or give that one the score NaN.

        Returns
        -------
        array of shape (n,), float64; higher = more out-of-distribution
        """
        rows = self._rows(outputs)
        if _validate.one_of(on_invalid, "on_invalid", _validate.ON_INVALID) == "raise":
            return self._score(rows, threads)
        good = _validate.finite_row_mask(rows)
        scores = np.full(rows.shape[0], np.nan)
        scores[good] = self._score(rows[good], threads)
        return scores

    def stream(self, outputs: OutputsLike, *, threads: int = 1, on_invalid: str = "raise") -> FloatArray:
        """Score a live stream: a detector with running statistics takes each row in, then scores it.

        A detector without running statistics scores as :meth:`score` does.
        """
        return self.score(outputs, threads=threads, on_invalid=on_invalid)

    def calibrate(
        self,
        outputs: OutputsLike,
        keep: float = 0.95,
        *,
        conformal: bool = False,
        per_class: bool = False,
        stream: bool = False,
    ) -> Self:
        """Set the threshold so that a share ``keep`` of in-distribution inputs is accepted.

        Parameters
        ----------
        outputs : ModelOutputs or logits
            In-distribution inputs that ``fit`` has not seen, e.g. the validation set.
        keep : float in (0, 1]
            Share to accept.
        conformal : bool
            Count one more input than there is, so that a new input is accepted with probability >= keep.
        per_class : bool
            One threshold for each predicted class.
        stream : bool
            Set it on streamed scores (of a copy: no statistics move) instead of frozen ones.
        """
        record = as_outputs(outputs)
        scores = copy.copy(self).stream(record) if stream else self.score(record)
        predicted = record.predicted if per_class else None
        self.threshold_ = Threshold.at(scores, predicted, record.n_classes, keep=keep, conformal=conformal)
        return self

    def predict(self, outputs: OutputsLike, *, threads: int = 1) -> BoolArray:
        """True where an input is out-of-distribution; shape (n,). Needs :meth:`calibrate` first."""
        record = as_outputs(outputs)
        return self.decide(self.score(record, threads=threads), record)

    def decide(self, scores: ArrayLike, outputs: OutputsLike) -> BoolArray:
        """Apply the threshold to scores that are already there; ``outputs`` tells the predicted classes."""
        if self.threshold_ is None:
            raise NotFitted(
                f"{self.name} has no threshold; call calibrate(validation_outputs, keep=0.95) first, "
                f"or set threshold_ = Threshold(value)."
            )
        predicted = as_outputs(outputs).predicted if self.threshold_.per_class is not None else None
        return self.threshold_.flags(scores, predicted)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the detector to a .safetensors file; :func:`normscale.load_detector` reads it back."""
        save_state(path, *self._stored())

    def pack(self) -> bytes:
        """What :meth:`save` writes, as bytes."""
        return pack_state(*self._stored())

    def _stored(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        self._require_fitted()
        header = {
            "detector": self.name,
            "parameters": self.get_params(),
            "width": self.width_,
            "threshold": None if self.threshold_ is None else self.threshold_.to_header(),
            "class_names": self.class_names,
        }
        reference = {} if self.reference_ is None else self.reference_.tensors()
        return header, {**reference, **self._tensors()}

    @classmethod
    def from_state(cls, header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Self:
        """Rebuild a detector from what :meth:`save` stored."""
        try:
            detector = cls(**header["parameters"])
            detector.width_ = header["width"]
            names = header["class_names"]
            detector.class_names = None if names is None else tuple(names)
            if header["threshold"] is not None:
                detector.threshold_ = Threshold.from_header(header["threshold"])
            detector.reference_ = Reference.from_tensors(tensors)
            detector._restore(tensors)
        except (KeyError, TypeError, InvalidInput) as error:
            raise FileFormatError(f"the stored state of a {cls.name} detector is damaged: {error}") from error
        return detector

    def get_params(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {name: getattr(self, name) for name in self.parameters}

    @property
    def is_fitted(self) -> bool:
        """Whether it can score."""
        return self.width_ is not None or not self.needs_fit

    @property
    def has_running_statistics(self) -> bool:
        """Whether it changes with its stream."""
        return type(self).stream is not Detector.stream and getattr(self, "prior_weight", 0.0) < math.inf

    def __repr__(self) -> str:
        """Show the constructor call."""
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.get_params().items())
        return f"{type(self).__name__}({arguments})"

    # -- checks ----------------------------------------------------------------------------------------------

    def _require_fitted(self) -> None:
        if not self.is_fitted:
            raise NotFitted(f"{type(self).__name__} is not fitted; call fit(outputs) or load_detector(path) first.")

    def _rows(self, outputs: OutputsLike) -> Rows:
        """Pick the rows scores come from, checked for shape."""
        if (
            type(outputs) is np.ndarray
            and self.reads == "logits"
            and outputs.ndim == 2
            and outputs.shape[1] == self.width_
            and outputs.dtype.char in "fde"
        ):
            return outputs  # nothing to find out: the quick way for one row at a time
        self._require_fitted()
        if self.reads == "logits" and not isinstance(outputs, (ModelOutputs, Mapping)):
            return _validate.as_rows(outputs, width=self.width_)
        record = as_outputs(outputs)
        rows = getattr(record, self.reads)
        if rows is None:
            raise InvalidInput(
                f"{self.name} reads {self.reads}; got outputs without them. "
                f"Pass ModelOutputs(logits, {self.reads}=...)."
            )
        return _validate.as_rows(rows, self.reads, width=self.width_, min_width=1 if self.reads == "features" else 2)

    def _checked(self, chunks: Iterable[ModelOutputs]) -> Iterator[ModelOutputs]:
        """Pass non-empty chunks on, checked for what this detector reads."""
        for chunk in chunks:
            if getattr(chunk, self.reads) is None:
                raise InvalidInput(
                    f"{self.name} needs {self.reads} to fit; pass ModelOutputs(logits, {self.reads}=...)."
                )
            if self.needs_labels and chunk.labels is None:
                raise InvalidInput(f"{self.name} needs labels to fit; pass ModelOutputs(logits, labels=...).")
            rows = _validate.as_rows(
                getattr(chunk, self.reads), self.reads, width=self.width_, min_width=1 if self.reads != "logits" else 2
            )
            if rows.shape[0]:
                self.width_ = rows.shape[1]
                yield chunk


def join(chunks: Iterable[ModelOutputs]) -> ModelOutputs:
    """All chunks as one record, without a copy when there is only one."""
    parts: Sequence[ModelOutputs] = list(chunks)
    if not parts:
        raise InvalidInput("the training outputs are empty; at least one row is needed.")
    return parts[0] if len(parts) == 1 else ModelOutputs.concatenate(parts)
