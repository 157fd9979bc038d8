"""Which detectors can stand guard, and which rows a guard takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from normscale import _validate
from normscale._validate import Rows
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput, MissingOutput, NotFitted
from normscale.input_checks.logits import TOLERANCE, Squashed, sentence, squashed
from normscale.outputs import LOGITS, ModelOutputs, as_outputs

LARGEST = 1e100  # no number may be larger: its square, summed over any number of rows, must stay finite


def required_widths(detector: Detector) -> dict[str, int]:
    """Columns of every array that a guard needs of this detector, logits first, or what the detector lacks."""
    n_classes = detector.n_classes_
    if n_classes is None:
        if detector.widths_ is not None:
            raise InvalidInput(
                f"{detector.name} was fitted without logits, and a guard needs them for the predicted classes; fit it "
                f"again with ModelOutputs(logits, {', '.join(f'{name}=...' for name in detector.reads)})."
            )
        raise NotFitted(f"{detector.name} is not fitted, so the number of classes is not known; fit it first.")
    if detector.has_running_statistics and not detector.holds_threshold_in_stream:
        raise InvalidInput(
            f"{detector.name} cannot stand guard: its running statistics move in-distribution rows past the threshold, "
            "so that every stream would look like an attack. Use robust_norm_scaling, or another detector."
        )
    if detector.threshold_ is None:
        raise NotFitted(
            f"{detector.name} has no threshold, so the guard could not say yes or no; fit it with "
            "--threshold-on VALIDATION, or give a --threshold."
        )
    if not np.isfinite(detector.threshold_.value):
        raise InvalidInput(f"threshold must be finite; got {detector.threshold_.value!r}.")
    return {LOGITS: n_classes, **(detector.widths_ or {})}


def checked_outputs(outputs: ModelOutputs | Any, widths: Mapping[str, int], detector: str) -> ModelOutputs:
    """Choose arrays by their names, logits first, and check their shapes; ``detector`` is for the message."""
    outputs = as_outputs(outputs)
    arrays: dict[str, Rows] = {}
    for name, width in widths.items():
        array = outputs.get(name)
        if array is None:
            found = " and ".join(outputs.names)
            raise MissingOutput(f"{name} is missing: {detector} needs {' and '.join(widths)}; got {found}.")
        if array.ndim != 2 or array.shape[1] != width or not len(array) or array.dtype.char not in "fd":
            array = _validate.as_rows(array, name, width=width)
            _validate.require_rows(array, name)
        if array.dtype.char not in "fd" or not array.flags.c_contiguous or not array.dtype.isnative:
            array = np.ascontiguousarray(array, np.float32 if array.dtype.char == "e" else np.float64)
        arrays[name] = array
    return ModelOutputs._trusted(arrays)


def require_numbers(outputs: ModelOutputs, *, are_logits: bool) -> None:
    """Refuse numbers that are not finite or too large, and probabilities in the place of logits."""
    for name in outputs.names:
        rows = outputs.array(name)
        largest = float(rows.max())
        if not max(-float(rows.min()), largest) <= LARGEST:  # NaN fails too
            raise _validate.invalid_row_error(rows, name)
        if name == LOGITS and are_logits and largest <= 1.0 + TOLERANCE:  # most logits are told by their largest number
            found = squashed(rows)
            if found is not None and found.kind is Squashed.PROBABILITIES:
                raise InvalidInput(sentence(found, "the request"))
