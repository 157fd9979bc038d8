"""A block of rows: which arrays and numbers are accepted, and what is known of them before they are scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from normscale import _kernels, _validate
from normscale._kernels import BlockState
from normscale._validate import BoolArray, IntArray, Rows
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput, MissingOutput, NotFitted
from normscale.guard.drift import DriftMonitor
from normscale.input_checks.logits import TOLERANCE, Squashed, sentence, squashed
from normscale.outputs import LOGITS, ModelOutputs, as_outputs

LARGEST = 1e100
"""No number may be larger: its square, summed over any number of rows, must stay finite."""


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
        array = _validate.as_rows(array, name, width=width)
        if array.dtype.char not in "fd" or not array.flags.c_contiguous or not array.dtype.isnative:
            array = np.ascontiguousarray(array, np.float32 if array.dtype.char == "e" else np.float64)
        arrays[name] = array
    _validate.require_rows(arrays[LOGITS], LOGITS)
    return ModelOutputs._trusted(arrays)


def block_moments(logits: Rows) -> BlockState:
    """Moments of a block of logits, or :class:`InvalidInput` for numbers that are not finite or too large."""
    width = logits.shape[1]
    if logits.shape[0] == 1:
        row = logits[0].astype(np.float64)
        if not np.abs(row).max() <= LARGEST:  # NaN fails too
            raise _validate.invalid_row_error(logits, "logits")
        return BlockState(1.0, row, np.zeros(width))
    state = _kernels.absorb(logits, 0.0, np.zeros(width), np.zeros(width))
    # No number lies farther from the mean than sqrt(M2): only where that is much, the numbers themselves are looked at.
    if state is None or (
        np.abs(state.mean).max() + np.sqrt(state.m2.max()) > LARGEST and np.abs(logits).max() > LARGEST
    ):
        raise _validate.invalid_row_error(logits, "logits")
    return state


def require_numbers(rows: Rows, name: str) -> None:
    """Refuse an array with numbers that are not finite or too large (:class:`InvalidInput`)."""
    if not max(-float(rows.min()), float(rows.max())) <= LARGEST:  # NaN fails too
        raise _validate.invalid_row_error(rows, name)


def require_logits(rows: Rows) -> None:
    """Refuse probabilities that were sent as logits (:class:`InvalidInput`)."""
    if float(rows.max()) > 1.0 + TOLERANCE:  # most rows of logits are told by their largest number
        return
    found = squashed(rows)
    if found is not None and found.kind is Squashed.PROBABILITIES:
        raise InvalidInput(sentence(found, "the request"))


class Block(NamedTuple):
    """Some rows."""

    outputs: ModelOutputs
    moments: BlockState
    predicted: IntArray
    far: BoolArray
    """(n,) too far from training to be taken in ..."""
    outliers: BoolArray
    """(n,) ... or so far that they are flagged, whatever their score."""

    @classmethod
    def of(cls, outputs: ModelOutputs, drift: DriftMonitor) -> Block:
        """Look at rows, or refuse their numbers (:class:`InvalidInput`)."""
        moments, predicted = block_moments(outputs.logits), _kernels.predicted(outputs.logits)
        distances = drift.distances(outputs)
        if distances is None:
            none = np.zeros(len(outputs), np.bool_)
            return cls(outputs, moments, predicted, none, none)
        return cls(outputs, moments, predicted, distances > drift.far, distances > drift.policy.outlier)

    def may_be_taken_in(self, room: int | None) -> BoolArray:
        """Which rows are near enough, and the first of them for whom there is room."""
        may = ~self.far
        if room is not None:
            may[np.flatnonzero(may)[room:]] = False
        return may

    def part(self, mask: BoolArray) -> Block:
        """Some of the rows."""
        if mask.all():
            return self
        outputs = self.outputs[mask]
        moments = block_moments(outputs.logits)
        return Block(outputs, moments, self.predicted[mask], self.far[mask], self.outliers[mask])
