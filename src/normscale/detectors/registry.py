"""Detectors by name: those of this folder, of other packages and of plugin files, and how they are typed.

A class joins by the decorator :func:`register`. Another package names its modules under the entry-point group
``normscale.detectors``; ``normscale --plugin mydet.py`` loads a file. One grammar serves every place that takes a
detector as text: a name, ``:parameter=value`` for each parameter, then ``+`` and the detector that scores what a step
made: ``knn:k=20``, ``react:percentile=90+energy:temperature=2``, ``mahalanobis:layers=stage1,features``.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, signature
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from normscale.errors import FileFormatError, InvalidInput, UnknownDetector
from normscale.state import load_state

if TYPE_CHECKING:
    from normscale.detectors.base import Detector

GROUP = "normscale.detectors"
DEFAULT = "robust_norm_scaling"
"""The detector where nobody chose one and there are logits alone."""
VARIABLE = "NORMSCALE_PLUGINS"
"""The environment variable that tells processes which this one starts of the same plugins."""
JOIN, BEFORE_PARAMETER = "+", ":"
_WORDS = {"true": True, "false": False, "none": None}
_TABLES = (".npz", ".npy", ".parquet", ".csv", ".tsv", ".jsonl", ".gz")
"""Suffixes of files that hold no detector."""

_classes: dict[str, type[Detector]] = {}
_failed: dict[str, str] = {}
_searched = False

DetectorClass = TypeVar("DetectorClass", bound="type[Detector]")


def register(cls: DetectorClass) -> DetectorClass:
    """Make a detector class known under its ``name``."""
    known = _classes.get(cls.name)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InvalidInput(
            f"a detector named {cls.name!r} is there already ({known.__module__}.{known.__qualname__}); choose "
            "another name."
        )
    if not re.fullmatch(r"[a-z][a-z0-9_]*", cls.name) or cls.name.endswith("_frozen"):
        raise InvalidInput(
            f"a detector's name has small letters, digits and underscores only, and does not end in _frozen; "
            f"got {cls.name!r}."
        )
    given = list(signature(cls.__init__).parameters.values())[1:]
    required = [one for one in given if one.default is Parameter.empty and one.kind is Parameter.POSITIONAL_OR_KEYWORD]
    if required:
        raise InvalidInput(
            f"{cls.__name__} needs a default for every parameter, so that its name makes one; {required[0].name!r} "
            "has none."
        )
    _classes[cls.name] = cls
    return cls


def unregister(name: str) -> type[Detector] | None:
    """Forget a detector class, for tests; returns it."""
    return _classes.pop(name, None)


def list_detectors() -> list[str]:
    """Names of all detectors, in alphabetical order."""
    _search()
    return sorted(_classes)


def detector_class(name: str) -> type[Detector]:
    """The class registered under a name; hyphens and capitals do not matter."""
    _search()
    key = str(name).strip().lower().replace("-", "_")
    if key in _classes:
        return _classes[key]
    from difflib import get_close_matches

    close = get_close_matches(key, _classes, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    broken = "".join(f" The package {package!r} could not be loaded: {why}." for package, why in _failed.items())
    raise UnknownDetector(f"unknown detector {name!r}.{hint} ns.list_detectors() names all {len(_classes)}.{broken}")


def make_detector(name: str, **parameters: Any) -> Detector:
    """Make a detector as it is spelled: ``knn:k=20``, or ``react:percentile=90+energy``, a step and what scores for it.

    A parameter given by keyword goes to the first of them that has it.

    Examples
    --------
    >>> make_detector("energy", temperature=2.0)
    Energy(temperature=2.0)
    >>> make_detector("react:percentile=85+max_logit")
    ReAct(score='max_logit', percentile=85.0)
    """
    return _make(read_spelling(name), parameters, str(name))


def _make(parts: list[SpelledDetector], given: Mapping[str, Any], text: str) -> Detector:
    """The first of the parts, with the others as its score."""
    first, rest = parts[0], parts[1:]
    cls = detector_class(first.name)
    taken = set(cls.about.parameters) - ({"score"} if rest else set())  # in a+b, b is the score
    own = {key: value for key, value in given.items() if key in taken} | first.parameters
    others = {key: value for key, value in given.items() if key not in taken}
    unknown = [key for key in (*first.parameters, *(() if rest else others)) if key not in taken]
    if unknown:
        known = ", ".join(cls.about.parameters) or "none"
        raise InvalidInput(f"{cls.name} has no parameter {min(unknown)!r}; its parameters: {known}.")
    if rest:
        if "score" not in cls.about.parameters:
            steps = ", ".join(one for one in list_detectors() if "score" in _classes[one].about.parameters)
            raise InvalidInput(f"{cls.name} is not a step, so nothing can follow it in {text!r}; steps: {steps}.")
        own["score"] = _make(rest, others, text)
    return cls(**own)


def as_detector(value: str | Mapping[str, Any] | Detector) -> Detector:
    """A detector of one's own from a name, from what :meth:`Detector._spec` gave, or from a detector."""
    if isinstance(value, str):
        return make_detector(value)
    if isinstance(value, Mapping) and set(value) == {"detector", "parameters"}:
        return make_detector(value["detector"], **value["parameters"])
    if isinstance(value, (type, Mapping)) or not hasattr(value, "_spec"):
        raise InvalidInput(f"score must be a detector or a detector's name; got {type(value).__name__}.")
    return copy.copy(value)


def load_detector(path: str | os.PathLike[str]) -> Detector:
    """Read a detector that :meth:`Detector.save` wrote, with its statistics and threshold."""
    name = os.fspath(path)
    if os.path.isdir(name) or os.path.splitext(name)[1] in _TABLES or name == "-" or name.startswith("sample:"):
        raise FileFormatError(
            f"{name!r} is a table of outputs, and a detector is expected here: the .safetensors file that "
            "`normscale fit` saved. A detector comes before the tables: normscale score DETECTOR TABLE."
        )
    header, tensors = load_state(path)
    try:
        cls = detector_class(header["detector"])
    except (KeyError, UnknownDetector) as error:
        raise FileFormatError(f"{name!r} holds a detector this version does not know: {error}") from error
    return cls._from_state(header, tensors)


class SpelledDetector(NamedTuple):
    """One detector of a spelling."""

    name: str
    parameters: dict[str, Any]


def read_spelling(text: str) -> list[SpelledDetector]:
    """The detectors that a text names, the first step first.

    Values that look like numbers are numbers (``inf`` too); ``true``, ``false`` and ``none`` are what Python has for
    them; several values with commas between them are a list; all else is a word.

    Examples
    --------
    >>> read_spelling("react:percentile=90+energy")
    [SpelledDetector(name='react', parameters={'percentile': 90}), SpelledDetector(name='energy', parameters={})]
    >>> read_spelling("mahalanobis:layers=stage1,features:shrinkage=1e-3")[0].parameters
    {'layers': ['stage1', 'features'], 'shrinkage': 0.001}
    """
    parts = []
    for typed in str(text).split(JOIN):
        name, *pairs = typed.split(BEFORE_PARAMETER)
        if not name.strip():
            raise InvalidInput(f"a detector's name is missing in {text!r}; write NAME, NAME:parameter=value or A+B.")
        parts.append(SpelledDetector(name.strip(), dict(_read_pair(pair, text) for pair in pairs)))
    return parts


def _read_pair(pair: str, text: str) -> tuple[str, Any]:
    name, _, value = pair.partition("=")
    if not name or not value:
        raise InvalidInput(
            f"parameters look like NAME:parameter=value; got {pair!r} in {text!r}. For example knn:k=20."
        )
    values = [_read_value(one) for one in value.split(",")]
    return name, values if len(values) > 1 else values[0]


def _read_value(text: str) -> Any:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return _WORDS.get(text.lower(), text)


def add_plugins(paths: Iterable[str]) -> None:
    """Load Python files that register detectors, here and in the processes that are started later."""
    for path in map(os.path.abspath, paths):
        _load(path)
        if path not in (known := plugin_paths()):
            os.environ[VARIABLE] = os.pathsep.join([*known, path])


def load_plugins() -> None:
    """Load the files that this process was told of by its environment."""
    for path in plugin_paths():
        _load(path)


def plugin_paths() -> list[str]:
    """The absolute paths of all plugins."""
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def plugin_modules() -> list[ModuleType]:
    """The modules that the files became."""
    return [sys.modules[name] for name in map(_module_name, plugin_paths()) if name in sys.modules]


def _module_name(path: str) -> str:
    """The name of a file's module, the same in every process."""
    stem = os.path.splitext(os.path.basename(path))[0]
    return f"normscale_plugin_{stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def _load(path: str) -> None:
    """Run a file, once."""
    name = _module_name(path)
    if name in sys.modules:
        return
    if not os.path.isfile(path):
        raise InvalidInput(f"no such plugin: {path}; --plugin takes a Python file that registers a detector.")
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is no Python file; a plugin's name ends in .py.")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a stranger's file raises
        del sys.modules[name]
        raise InvalidInput(f"the plugin {path} could not be loaded: {type(error).__name__}: {error}") from error


def _search() -> None:
    """Import every module of this folder and of the packages that the entry points name, once."""
    global _searched
    if _searched:
        return
    _searched = True
    from importlib.metadata import entry_points
    from pkgutil import iter_modules

    import normscale.detectors

    for module in iter_modules(normscale.detectors.__path__):
        import_module(f"normscale.detectors.{module.name}")
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:  # a broken package must not take the others with it
            _failed[point.name] = f"{type(error).__name__}: {error}"
    load_plugins()
