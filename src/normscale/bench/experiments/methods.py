"""The methods of a comparison: a detector in one of the settings in which it can be measured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count
from typing import Any, NamedTuple, TypeVar

from normscale.detectors.base import Detector, Setting, settings_of
from normscale.detectors.choosing import AUTO, default_detector
from normscale.detectors.registry import BEFORE_PARAMETER, list_detectors, make_detector, read_spelling
from normscale.errors import InvalidInput, NormscaleError, UnknownDetector
from normscale.outputs import ModelOutputs

FROZEN_SUFFIX = "_frozen"
"""Ends the name of a method whose statistics could run and do not."""
DEFAULT = "default"
"""The name of the method that :func:`normscale.fit` chooses."""
_T = TypeVar("_T")
BLOCK_ELEMENTS = 1 << 22
"""Numbers that are fitted on, or scored, at once: outputs may be mapped from a file that is larger than memory."""


class Method(NamedTuple):
    """A line of a comparison."""

    name: str
    detector: Detector
    setting: Setting
    title: str


def find_method(name: str) -> Method:
    """Make a method as it is spelled: a detector in its :func:`main_setting`, or ``NAME_frozen`` as fitted.

    Examples
    --------
    >>> find_method("norm_scaling").setting, find_method("norm_scaling_frozen").setting, find_method("energy").setting
    (<Setting.STREAM: 'stream'>, <Setting.FROZEN: 'frozen'>, <Setting.FROZEN: 'frozen'>)
    """
    typed, *pairs = name.split(BEFORE_PARAMETER)
    base = typed.removesuffix(FROZEN_SUFFIX)
    spelled = BEFORE_PARAMETER.join([base, *pairs])
    detector = make_detector(spelled)
    parameters = [item for part in read_spelling(spelled) for item in part.parameters.items()]
    spelled_out = [f"{key.replace('_', ' ')} {parameter_text(value)}" for key, value in parameters]
    title = ", ".join([detector.about.title, *spelled_out])
    if base == typed:
        return Method(name, detector, main_setting(detector), title)
    if main_setting(detector) == Setting.FROZEN:
        raise InvalidInput(f"{base} has no running statistics, so there is no method {name!r}; use {base!r}.")
    return Method(name, detector, Setting.FROZEN, f"{title}, frozen")


def parameter_text(value: Any) -> str:
    """The value of a parameter for people; those of a list are joined by a plus."""
    if isinstance(value, (list, tuple)):
        return " + ".join(map(parameter_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def make_for(name: str, train: ModelOutputs | None) -> Detector:
    """Make a detector as it is spelled; ``auto`` and ``default`` are chosen for the training outputs."""
    if name not in (AUTO, DEFAULT):
        return make_detector(name)
    if train is None:
        raise InvalidInput(f"{name} chooses a detector for the training outputs; pass train=... (--train).")
    return default_detector(train.names, head=train.head is not None)


def why_failed(error: Exception) -> str:
    """What to say of a method that failed, whatever the reason."""
    return str(error) if isinstance(error, NormscaleError) else f"{type(error).__name__}: {error}"


def main_setting(detector: Detector) -> Setting:
    """The setting that a detector is there for: running statistics run, a ranking per class is per class."""
    return next((one for one in (Setting.STREAM, Setting.PER_CLASS) if one in settings_of(detector)), Setting.FROZEN)


def every_setting(name: str, detector: Detector) -> list[Method]:
    """A detector in every setting it can be measured in, all under one name."""
    return [Method(name, detector, setting, title_under(name, detector)) for setting in settings_of(detector)]


def title_under(name: str, detector: Detector) -> str:
    """The detector's name for people, or the one that it was given."""
    return detector.about.title if name == detector.name else name


def uniquely_named(detectors: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Detectors by name, each as :func:`unique_name` has it."""
    named: dict[str, _T] = {}
    for name, detector in detectors:
        named[unique_name(name, named)] = detector
    return named


def unique_name(name: str, taken: Iterable[str], form: Callable[[str], str] = str) -> str:
    """The name, or where that is taken ``NAME (2)`` and so on; names of one form are the same."""
    forms = {form(one) for one in taken}
    numbered = (f"{name} ({number})" for number in count(2))
    return next(one for one in chain([name], numbered) if form(one) not in forms)


def known_method(name: str) -> Method | None:
    """:func:`find_method`; None for a name of somebody's own."""
    try:
        return find_method(name)
    except (UnknownDetector, InvalidInput):
        return None


def title_of(method: str) -> str:
    """The name of a method for people; a name that no detector has stands for itself."""
    found = known_method(method)
    return method if found is None else found.title


def default_methods(
    train: ModelOutputs | None, validation: ModelOutputs | None, *, present: Iterable[ModelOutputs]
) -> list[str]:
    """Names of the registered detectors that the training outputs suffice for, and every one of the ``present``."""
    shared = set.intersection(*(set(outputs.names) for outputs in present))

    def suffices(detector: Detector) -> bool:
        fits = not detector._needs_fit or not _what_lacks(detector, _training_set(detector, train, validation))
        return fits and set(detector.reads) <= shared

    return [name for name in list_detectors() if suffices(make_detector(name))]


def _training_set(
    detector: Detector, train: ModelOutputs | None, validation: ModelOutputs | None
) -> ModelOutputs | None:
    return validation if detector.about.fitted_on == "validation" else train


def _what_lacks(detector: Detector, source: ModelOutputs | None) -> str:
    """What a training set lacks for a detector, in words; empty if nothing."""
    outputs = f"{'validation' if detector.about.fitted_on == 'validation' else 'training'} outputs"
    if source is None:
        return f"labelled {outputs}" if detector._needs_labels else outputs
    if absent := [name for name in detector._arrays_in_fit if name not in source.names]:
        return f"{outputs} with {' and '.join(absent)}"
    if detector._needs_labels and (source.labels is None or (source.labels < 0).any()):
        return f"a label for every row of the {outputs}"
    if detector._needs_head and source.head is None:
        return f"{outputs} with the network's head"
    return ""


def training_rows(
    detector: Detector, train: ModelOutputs | None, validation: ModelOutputs | None
) -> ModelOutputs | None:
    """The outputs to fit a detector on; None where it is fitted, or need not be; an error where they lack something."""
    if detector._widths is not None:
        return None
    source = _training_set(detector, train, validation)
    lacks = _what_lacks(detector, source)
    if lacks and detector._needs_fit:
        raise InvalidInput(f"{detector.name} needs {lacks} to fit on.")
    return None if lacks else source


def fit_on(detector: Detector, train: ModelOutputs | None, validation: ModelOutputs | None) -> Detector:
    """A copy of the detector, fitted on the outputs it says it is fitted on; a fitted one is returned as it is."""
    source = training_rows(detector, train, validation)
    if source is None:
        return detector
    made = copy.copy(detector)
    if made._why_all_rows():
        return made._fit_chunks([source])  # it would put the blocks together again, in a copy
    arrays = dict.fromkeys(made._arrays_in_fit)
    return made._fit_chunks(source[block] for block in row_blocks(source, arrays, len(source)))


def row_blocks(outputs: ModelOutputs, names: Iterable[str], n_rows: int) -> Iterator[slice]:
    """Cut ``n_rows`` rows of some arrays of the outputs into blocks of bounded size."""
    step = max(1, BLOCK_ELEMENTS // max(1, sum(outputs.array(name).shape[1] for name in names)))
    return (slice(start, start + step) for start in range(0, n_rows, step))
