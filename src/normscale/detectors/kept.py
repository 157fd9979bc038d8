"""A detector as a value: its parameters, the records that it learned, and how they are stored, copied and read back."""

from __future__ import annotations

import copy
import inspect
import math
import os
import re
import threading
from abc import ABC
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from numpy.typing import NDArray

from normscale.detectors.baseline import TrainingBaseline
from normscale.errors import FileFormatError, InvalidInput, NotFitted
from normscale.metrics.thresholds import Threshold
from normscale.outputs import HEAD, LABELS, LOGITS
from normscale.state import copied, pack_state, record_arrays, record_of, save_state

if TYPE_CHECKING:
    from normscale.detectors.by_source import SourceStates


class Setting(StrEnum):
    """How a detector is measured; :func:`settings_of` says which apply."""

    FROZEN = "frozen"
    """As it was fitted."""
    STREAM = "stream"
    """Its running statistics take each row in before it is scored."""
    PER_CLASS = "per class"
    """One ranking for each predicted class, averaged."""


class _Lock:
    """A lock for each object, made when it is first needed."""

    def __get__(self, detector: Kept | None, _: type[Kept]) -> threading.Lock:
        return detector.__dict__.setdefault("_lock", threading.Lock())


class NoRecord(NamedTuple):
    """A record of a detector that learns nothing."""


class About(NamedTuple):
    """What a detector says of itself to people; what a class leaves out is as in its base class."""

    title: str = ""
    """The name in tables and figures."""
    paper: str = ""
    """Where it was published: authors and year, a colon and the title in quotes; any of it may be missing."""
    cost: str = ""
    """What a score costs, in plain words: ``one pass over the logits``."""
    parameters: Mapping[str, str] = MappingProxyType({})
    """The constructor's arguments and what each means; most are attributes of the detector."""
    fitted_on: str = ""
    """Which outputs ``fit`` is meant for: ``"train"`` or ``"validation"``."""
    reason: str = ""
    """Why it is this detector, where it was chosen for the outputs at hand and by nobody."""


def _with_sections(doc: str, about: About) -> str:
    """A docstring with the sections that a class says elsewhere, before those that it has."""
    lines = (f"{name}\n    {meaning[:1].upper()}{meaning[1:]}." for name, meaning in about.parameters.items())
    made = {"Parameters": "\n".join(lines), "References": f"{about.paper}." if '"' in about.paper else ""}
    before, *others = re.split(r"^(?=\w+\n---)", inspect.cleandoc(doc), flags=re.MULTILINE)
    added = [f"{title}\n----------\n{text}" for title, text in made.items() if text and f"{title}\n---" not in doc]
    return "\n\n".join(part.rstrip() for part in (before, *added, *others))


class Kept(ABC):
    """What a detector says of itself, keeps and stores; :class:`~normscale.detectors.base.Detector` works with it."""

    name: str
    """What one types: the key in the registry and in files; for a step with its score, ``react+energy``."""
    about: About = About(fitted_on="train")
    """Title, paper, cost, parameters and what else people want to know."""
    reads: tuple[str, ...] = (LOGITS,)
    """Names of the arrays of :class:`ModelOutputs` that scores come from."""
    reads_in_fit: tuple[str, ...] | None = ()
    """What ``fit`` needs besides: further arrays, ``"labels"``, ``"head"``. None: scores need no fit."""

    Fitted: ClassVar[type[Any]] = NoRecord
    """The type of :attr:`fitted_`: a NamedTuple of arrays, numbers, None and other records, whose fields say what they
    must be by :class:`normscale.state.Numbers`."""

    fitted_: Any = None
    """The record that ``fit`` learned; its field ``mean`` is also the attribute ``mean_``."""
    state_: Any = None
    """The record of running statistics that :meth:`stream` moves; None where there are none."""
    threshold_: Threshold | None = None
    """Set by :meth:`set_threshold`; None means :meth:`predict` cannot answer yet."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes, for people."""

    # The rest is for this package.
    _widths: dict[str, int] | None = None
    """Columns of every array it reads, known after fit."""
    _logit_limits: tuple[float, float] = (-math.inf, math.inf)
    """The logits beyond which a row is far outside of training."""
    _sources: SourceStates | None = None
    """A state for every source, where streams were told apart by ``by``."""
    _marks_far_rows: bool = True
    """Whether rows with logits far outside of what training showed get :data:`FAR_SCORE` and are not taken in."""
    _holds_threshold_in_stream: bool = True
    """Whether a threshold set on frozen scores holds for in-distribution rows of its stream; a guard refuses others."""
    _survives_unbalanced_stream: bool = False
    """Whether its running statistics flag no more in-distribution rows where one class dominates the stream."""
    _ranks_per_class: bool = False
    """Whether it can also be measured by one ranking for each predicted class."""
    _runs: bool = False
    """Whether it has running statistics, which its stream moves: its class writes :meth:`_start`."""
    _reads_again: bool = False
    """Whether ``fit`` reads the rows more than once."""
    _in_place: bool = False
    """Whether a step changes the arrays of the state that it is given, so that others must wait."""
    _fitting: Any = None
    """What a fit that is under way keeps between its readings; see :meth:`_begin`."""
    _lock = _Lock()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._runs = cls._start is not Kept._start
        own, base = cls.about, cls.__mro__[1].about  # type: ignore[attr-defined]
        left_out = (name for name, default in About._field_defaults.items() if getattr(own, name) is default)
        cls.about = own._replace(**{name: getattr(base, name) for name in left_out})
        if doc := cls.__dict__.get("__doc__"):
            cls.__doc__ = _with_sections(doc, cls.about)

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

    def _weighted_for_threshold(self, state: Any) -> Any:
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
        return self._start() if self.threshold_ is None else self._weighted_for_threshold(self._start())

    def _require_fitted(self) -> None:
        if not self._is_fitted:
            raise NotFitted(f"{type(self).__name__} is not fitted; call fit(outputs) or load_detector(path) first.")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the detector to a .safetensors file; :func:`normscale.load_detector` reads it back."""
        save_state(path, *self._stored())

    def _pack(self) -> bytes:
        """What :meth:`save` writes, as bytes."""
        return pack_state(*self._stored())

    def _stored(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        self._require_fitted()
        header = {
            **self._spec(),
            "widths": self._all_widths(),
            "threshold": None if self.threshold_ is None else self.threshold_._asdict(),
            "class_names": self.class_names,
            "reason": self.about.reason,
        }
        with self._lock:
            arrays = {name: array.copy() for name, array in self._arrays().items()}
            if self._sources:
                header["sources"], own = self._sources.pack()
                arrays |= {f"sources.{name}": array for name, array in own.items()}
            return header, arrays

    def _all_widths(self, dot: str = "") -> dict[str, dict[str, int] | None]:
        """The widths of this detector, called "", and of those that it is made of."""
        found = {dot: self._widths}
        for name, one in self._inner().items():
            found |= one._all_widths(f"{dot}{name}.")
        return found

    def _arrays(self, *, moving: bool = True) -> dict[str, NDArray[Any]]:
        """All that was learned, by dotted name; with ``moving`` also by the stream."""
        own = {"baseline": self._baseline, "fitted": self.fitted_, "state": self.state_ if moving else None}
        arrays = record_arrays(own)
        for name, one in self._inner().items():
            arrays |= {f"{name}.{key}": array for key, array in one._arrays(moving=False).items()}
        return arrays

    @classmethod
    def _from_state(cls, header: dict[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild a detector from what :meth:`save` stored."""
        try:
            detector = cls(**header["parameters"])
            names = header["class_names"]
            detector.class_names = None if names is None else tuple(names)
            detector.about = detector.about._replace(reason=str(header["reason"]))
            if header["threshold"] is not None:
                detector.threshold_ = Threshold.from_header(header["threshold"])
            detector._restore(header["widths"], tensors)
            if header.get("sources"):
                from normscale.detectors.by_source import SourceStates

                own = {name[8:]: array for name, array in tensors.items() if name.startswith("sources.")}
                detector._sources = SourceStates.unpack(detector, header["sources"], own)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise FileFormatError(f"the stored state of a {cls.name} detector is damaged: {error}") from error
        return detector

    def _restore(
        self, widths: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], dot: str = "", *, moving: bool = True
    ) -> None:
        """Take back in what :meth:`_arrays` gave; InvalidInput where it is not what it was."""
        own = widths[dot]
        self._widths = None if own is None else {str(name): int(own[name]) for name in self.reads}
        if not self._is_fitted:
            raise InvalidInput(f"the state of {self.name} is missing.")
        if f"{dot}baseline.predicted" in arrays:
            self._baseline = record_of(TrainingBaseline, arrays, f"{dot}baseline")
        for name, one in self._inner().items():
            one._restore(widths, arrays, f"{dot}{name}.", moving=False)
        if self._widths is None:
            return
        self._learn(record_of(self.Fitted, arrays, f"{dot}fitted", self._size_of))
        if self._runs:
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
        size = (self._widths or {}).get(name, getattr(self, name, None))
        return size if isinstance(size, int) else None

    def _spec(self) -> dict[str, Any]:
        """The class's name and the parameters: plain values that make the same, unfitted detector again."""
        return {"detector": type(self).name, "parameters": self.get_params()}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments, as plain values; so there is nothing ``deep`` in them."""
        return {name: getattr(self, name) for name in self.about.parameters}

    def set_params(self, **parameters: Any) -> Self:
        """Change constructor's arguments; what was learned is forgotten."""
        unknown = sorted(set(parameters) - set(self.about.parameters))
        if unknown:
            known = ", ".join(self.about.parameters) or "none"
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
    def _baseline(self) -> TrainingBaseline | None:
        """What the training rows looked like; None where their logits were not known."""
        return self.__dict__.get("_training")

    @_baseline.setter
    def _baseline(self, baseline: TrainingBaseline | None) -> None:
        self.__dict__["_training"] = baseline
        self._logit_limits = Kept._logit_limits
        if baseline is not None and LOGITS in self.reads:
            self._logit_limits = baseline.logit_limits()

    @property
    def _is_fitted(self) -> bool:
        """Whether it can score."""
        return self._widths is not None or not self._needs_fit

    @property
    def _needs_fit(self) -> bool:
        """Whether ``score`` works only after ``fit``."""
        return self.reads_in_fit is not None

    @property
    def _needs_labels(self) -> bool:
        """Whether ``fit`` needs labels."""
        return LABELS in (self.reads_in_fit or ())

    @property
    def _needs_head(self) -> bool:
        """Whether ``fit`` needs the network's last layer."""
        return HEAD in (self.reads_in_fit or ())

    @property
    def _arrays_in_fit(self) -> tuple[str, ...]:
        """All arrays that ``fit`` reads."""
        return *self.reads, *(name for name in self.reads_in_fit or () if name not in (LABELS, HEAD))

    @property
    def _n_classes(self) -> int | None:
        """The number of classes, where the training outputs told it."""
        if self._baseline is not None:
            return int(self._baseline.predicted.size)
        return None if self._widths is None else self._widths.get(LOGITS)

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
            twin._sources = None if self._sources is None else self._sources.copy_for(twin)
        twin._set_inner({name: copy.copy(one) for name, one in twin._inner().items()})
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def _learner(self) -> Self:
        """A copy that has learned nothing: a failed fit must leave self as it was."""
        learner = copy.copy(self)
        learner.threshold_ = learner._widths = learner._baseline = learner.class_names = None
        learner.fitted_ = learner.state_ = learner._sources = None
        learner._fitting = learner._begin()
        return learner

    def _take_over(self, learner: Self) -> None:
        """Become what a copy of self has learned; a new stream begins."""
        learner._fitting = None
        learner.state_ = learner.start() if learner._runs else None
        with self._lock:
            self.__dict__.update(learner.__getstate__())


def settings_of(detector: Kept) -> tuple[Setting, ...]:
    """The settings that a detector can be measured in."""
    stream = (Setting.STREAM,) if detector._runs else ()
    return Setting.FROZEN, *stream, *((Setting.PER_CLASS,) if detector._ranks_per_class else ())
