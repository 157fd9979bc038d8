"""A detector as a value: its parameters, the records that it learned, and how they are stored, copied and read back."""

from __future__ import annotations

import copy
import inspect
import os
import re
import threading
from abc import ABC
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from numpy.typing import NDArray

from normscale.detectors.baseline import TrainingBaseline
from normscale.detectors.threshold import Threshold
from normscale.errors import FileFormatError, InvalidInput, NotFitted
from normscale.outputs import LOGITS
from normscale.state import copied, pack_state, record_arrays, record_of, save_state

if TYPE_CHECKING:
    from normscale.detectors.by_source import SourceStates


class Setting(StrEnum):
    """How a detector is measured."""

    FROZEN = "frozen"
    """As it was fitted."""
    STREAM = "stream"
    """Its running statistics take each row in before it is scored."""
    PER_CLASS = "per class"
    """One ranking for each predicted class, averaged."""


_STREAM = Setting.STREAM


class _Lock:
    """A lock for each object, made when it is first needed."""

    def __get__(self, detector: Kept | None, _: type[Kept]) -> threading.Lock:
        return detector.__dict__.setdefault("_lock", threading.Lock())


class NoRecord(NamedTuple):
    """A record of a detector that learns nothing."""


def _with_sections(doc: str, parameters: Mapping[str, str], paper: str) -> str:
    """A docstring with the sections that a class says elsewhere, before those that it has."""
    meanings = "\n".join(f"{name}\n    {meaning[:1].upper()}{meaning[1:]}." for name, meaning in parameters.items())
    made = {"Parameters": meanings, "References": f"{paper}." if '"' in paper else ""}
    before, *others = re.split(r"^(?=\w+\n---)", inspect.cleandoc(doc), flags=re.MULTILINE)
    added = [f"{title}\n----------\n{text}" for title, text in made.items() if text and f"{title}\n---" not in doc]
    return "\n\n".join(part.rstrip() for part in (before, *added, *others))


class Kept(ABC):
    """What a detector says of itself, keeps and stores; :class:`~normscale.detectors.base.Detector` works with it."""

    name: str
    """What one types: the key in the registry and in files; for a step with its score, ``react+energy``."""
    title: str = ""
    """The name in tables and figures."""
    paper: ClassVar[str] = ""
    """Where it was published: authors and year, a colon and the title in quotes; any of it may be missing."""
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
    holds_threshold_in_stream: bool = True
    """Whether a threshold set on frozen scores holds for in-distribution rows of its stream; a guard refuses others."""
    survives_unbalanced_stream: bool = False
    """Whether its running statistics flag no more in-distribution rows where one class dominates the stream."""
    parameters: ClassVar[Mapping[str, str]] = {}
    """The constructor's arguments and what each means, for the docstring and the card; most are attributes."""

    Fitted: ClassVar[type[Any]] = NoRecord
    """The type of :attr:`fitted_`: a NamedTuple of arrays, numbers, None and other records, whose fields say what they
    must be by :class:`normscale.state.Numbers`."""

    fitted_: Any = None
    """The record that ``fit`` learned; its field ``mean`` is also the attribute ``mean_``."""
    state_: Any = None
    """The record of running statistics that :meth:`stream` moves; None where there are none."""
    sources_: SourceStates | None = None
    """The same for every source, where streams were told apart by ``by``."""
    widths_: dict[str, int] | None = None
    """Columns of every array it reads, known after fit."""
    threshold_: Threshold | None = None
    """Set by :meth:`set_threshold`; None means :meth:`predict` cannot answer yet."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes, for people."""
    warns_of_far_rows: bool = True
    """Whether :meth:`score` and :meth:`stream` warn of logits far outside of what training showed."""
    baseline_: TrainingBaseline | None = None
    """What the training rows looked like; None where their logits were not known."""

    reason: str | None = None
    """Why it is this detector, where it was chosen for the outputs at hand and by nobody."""
    _reads_again: bool = False
    """Whether ``fit`` reads the rows more than once."""
    _in_place: bool = False
    """Whether a step changes the arrays of the state that it is given, so that others must wait."""
    _fitting: Any = None
    """What a fit that is under way keeps between its readings; see :meth:`_begin`."""
    _lock = _Lock()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if doc := cls.__dict__.get("__doc__"):
            cls.__doc__ = _with_sections(doc, cls.parameters, cls.paper)

    def _begin(self) -> Any:
        """What a fit keeps between its readings, where it begins with anything: :attr:`_fitting`."""
        return None

    def _learn(self, fitted: Any) -> None:
        """Keep what was learned; every fit and every file ends here."""
        self.fitted_ = fitted
        self._derive()

    def _derive(self) -> None:  # noqa: B027 - nothing to do is a valid answer
        """Compute what scores need from :attr:`fitted_` once; raise where its fields do not fit together."""

    def _start(self) -> Any:
        """The running statistics that a new stream begins with, by what ``fit`` learned."""
        return None

    def _calmed(self, state: Any) -> Any:
        """The same, with training counting for so much that one threshold serves a stream's first row and its last."""
        return state

    def _inner(self) -> dict[str, Any]:
        """The detectors that this one is made of, by a name for each; they are fitted with it and stored with it."""
        return {}

    def _set_inner(self, inner: dict[str, Any]) -> None:  # noqa: B027
        """Replace them."""

    def _current(self) -> Any:
        """The state that is kept; where no fit began one, that of a new stream."""
        return self.start() if self.state_ is None else self.state_

    def start(self) -> Any:
        """The state of a new stream: a record of arrays. Once a threshold is set, training counts for more in it."""
        self._require_fitted()
        return self._start() if self.threshold_ is None else self._calmed(self._start())

    def _require_fitted(self) -> None:
        if not self.is_fitted:
            raise NotFitted(f"{type(self).__name__} is not fitted; call fit(outputs) or load_detector(path) first.")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the detector to a .safetensors file; :func:`normscale.load_detector` reads it back."""
        save_state(path, *self._stored())

    def pack(self) -> bytes:
        """What :meth:`save` writes, as bytes."""
        return pack_state(*self._stored())

    def _stored(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        self._require_fitted()
        header = {
            **self.spec(),
            "widths": self._all_widths(),
            "threshold": None if self.threshold_ is None else self.threshold_._asdict(),
            "class_names": self.class_names,
            "reason": self.reason,
        }
        with self._lock:
            arrays = {name: array.copy() for name, array in self._arrays().items()}
            if self.sources_:
                header["sources"], own = self.sources_.pack()
                arrays |= {f"sources.{name}": array for name, array in own.items()}
            return header, arrays

    def _all_widths(self, dot: str = "") -> dict[str, dict[str, int] | None]:
        """The widths of this detector, called "", and of those that it is made of."""
        found = {dot: self.widths_}
        for name, one in self._inner().items():
            found |= one._all_widths(f"{dot}{name}.")
        return found

    def _arrays(self, *, moving: bool = True) -> dict[str, NDArray[Any]]:
        """All that was learned, by dotted name; with ``moving`` also by the stream."""
        own = {"baseline": self.baseline_, "fitted": self.fitted_, "state": self.state_ if moving else None}
        arrays = record_arrays(own)
        for name, one in self._inner().items():
            arrays |= {f"{name}.{key}": array for key, array in one._arrays(moving=False).items()}
        return arrays

    @classmethod
    def from_state(cls, header: dict[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild a detector from what :meth:`save` stored."""
        try:
            detector = cls(**header["parameters"])
            names = header["class_names"]
            detector.class_names = None if names is None else tuple(names)
            detector.reason = None if header.get("reason") is None else str(header["reason"])
            if header["threshold"] is not None:
                detector.threshold_ = Threshold.from_header(header["threshold"])
            detector._restore(header["widths"], tensors)
            if header.get("sources"):
                from normscale.detectors.by_source import SourceStates

                own = {name[8:]: array for name, array in tensors.items() if name.startswith("sources.")}
                detector.sources_ = SourceStates.unpack(detector, header["sources"], own)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise FileFormatError(f"the stored state of a {cls.name} detector is damaged: {error}") from error
        return detector

    def _restore(
        self, widths: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], dot: str = "", *, moving: bool = True
    ) -> None:
        """Take back in what :meth:`_arrays` gave; InvalidInput where it is not what it was."""
        own = widths[dot]
        self.widths_ = None if own is None else {str(name): int(own[name]) for name in self.reads}
        if not self.is_fitted:
            raise InvalidInput(f"the state of {self.name} is missing.")
        if f"{dot}baseline.predicted" in arrays:
            self.baseline_ = record_of(TrainingBaseline, arrays, f"{dot}baseline")
        for name, one in self._inner().items():
            one._restore(widths, arrays, f"{dot}{name}.", moving=False)
        if self.widths_ is None:
            return
        self._learn(record_of(self.Fitted, arrays, f"{dot}fitted", self._size_of))
        if self.has_running_statistics:
            self.state_ = self.start()
            if moving:
                self.state_ = copied(self._read_state(arrays, f"{dot}state"))  # a stream may change it in place

    def _read_state(self, arrays: Mapping[str, NDArray[Any]], name: str = "state") -> Any:
        """Running statistics from arrays by dotted name, checked."""
        like = self.start()
        return self._checked_state(record_of(type(like), arrays, name, self._size_of, like))

    def _checked_state(self, state: Any) -> Any:
        """A state that was read back; InvalidInput where it cannot be one of this detector."""
        return state

    def _size_of(self, name: str) -> int | None:
        """The size that a name in a record's declaration stands for: columns of an array, or a parameter."""
        size = (self.widths_ or {}).get(name, getattr(self, name, None))
        return size if isinstance(size, int) else None

    def spec(self) -> dict[str, Any]:
        """The class's name and the parameters: plain values that make the same, unfitted detector again."""
        return {"detector": type(self).name, "parameters": self.get_params()}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments, as plain values; so there is nothing ``deep`` in them."""
        return {name: getattr(self, name) for name in self.parameters}

    def set_params(self, **parameters: Any) -> Self:
        """Change constructor's arguments; what was learned is forgotten."""
        unknown = sorted(set(parameters) - set(self.parameters))
        if unknown:
            known = ", ".join(self.parameters) or "none"
            raise InvalidInput(f"{self.name} has no parameter {unknown[0]!r}; its parameters: {known}.")
        changed = type(self)(**{**self.get_params(), **parameters})
        with self._lock:
            for name in [name for name in self.__dict__ if name != "_lock"]:
                del self.__dict__[name]
            self.__dict__.update(changed.__getstate__())
        return self

    def __sklearn_clone__(self) -> Self:
        return type(self)(**self.get_params())

    @property
    def is_fitted(self) -> bool:
        """Whether it can score."""
        return self.widths_ is not None or not self.needs_fit

    @property
    def has_running_statistics(self) -> bool:
        """Whether it changes with its stream."""
        return _STREAM in self.settings

    @property
    def n_classes_(self) -> int | None:
        """The number of classes, where the training outputs told it."""
        if self.baseline_ is not None:
            return int(self.baseline_.predicted.size)
        return None if self.widths_ is None else self.widths_.get(LOGITS)

    if not TYPE_CHECKING:  # a misspelt name should not pass for a learned one

        def __getattr__(self, name: str) -> Any:
            """Give what was learned as ``detector.mean_``: the field ``mean`` of a record."""
            if name.endswith("_") and not name.startswith("_"):
                for record in (self.fitted_, self.state_):
                    if name[:-1] in getattr(record, "_fields", ()):
                        return getattr(record, name[:-1])
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.get_params().items())
        return f"{type(self).__name__}({arguments})"

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        with self._lock:
            twin.__dict__.update(self.__getstate__())
            twin.state_ = copied(self.state_)
            twin.sources_ = None if self.sources_ is None else self.sources_.copy_for(twin)
        twin._set_inner({name: copy.copy(one) for name, one in twin._inner().items()})
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def _learner(self) -> Self:
        """A copy that has learned nothing: a failed fit must leave self as it was."""
        learner = copy.copy(self)
        learner.threshold_ = learner.widths_ = learner.baseline_ = learner.class_names = None
        learner.fitted_ = learner.state_ = learner.sources_ = None
        learner._fitting = learner._begin()
        return learner

    def _take_over(self, learner: Self) -> None:
        """Become what a copy of self has learned; a new stream begins."""
        learner._fitting = None
        learner.state_ = learner.start() if learner.has_running_statistics else None
        with self._lock:
            self.__dict__.update(learner.__getstate__())
