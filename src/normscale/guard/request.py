"""The rows of one request to a guard, which rows and which detectors are refused, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from normscale import _validate
from normscale._validate import BoolArray, FloatArray, IntArray, Rows
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput, MissingOutput, NotFitted
from normscale.input_checks.logits import TOLERANCE, Squashed, sentence, squashed
from normscale.outputs import LOGITS, ModelOutputs, as_outputs
from normscale.state import Kind, pack_state, unpack_state

LARGEST = 1e100  # no number may be larger: its square, summed over any number of rows, must stay finite
STORED = Kind("normscale_verdict", "verdict", "", "it is of no use any more.")
_FACTS = ("mode", "taken_in", "alarms", "rows")
_ARRAYS = ("scores", "is_ood", "predicted")


class Mode(StrEnum):
    """By which statistics rows are scored."""

    RUNNING = "running"
    FROZEN = "frozen"
    """The detector file's, while nothing is taken in."""
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one request, row by row in its order."""

    scores: FloatArray
    """(n,) higher = more out-of-distribution."""
    is_ood: BoolArray
    predicted: IntArray
    """(n,) the class with the largest logit."""
    mode: str
    taken_in: int
    """How many of the rows are in the running statistics now; the others were kept out."""
    alarms: tuple[str, ...] = ()
    rows: int = 0
    """How many rows are in the statistics after this request's group of requests."""
    repeated: bool = False
    """Whether this was the answer to an earlier request with the same key."""

    def pack(self) -> bytes:
        """Write it as bytes, for a retry of the same request."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return pack_state({name: getattr(self, name) for name in _FACTS}, arrays, STORED)

    @classmethod
    def unpack(cls, data: bytes) -> Verdict:
        """Read the verdict of an earlier request, marked as repeated."""
        header, tensors = unpack_state(data, STORED)
        fields: dict[str, Any] = {name: header[name] for name in _FACTS} | tensors
        fields |= {"is_ood": tensors["is_ood"].astype(np.bool_, copy=False), "alarms": tuple(header["alarms"])}
        return cls(**fields, repeated=True)


@dataclass(frozen=True, slots=True)
class Request:
    """Rows of one client, to be taken in together."""

    outputs: ModelOutputs
    """At least one row; :meth:`Guard.acceptable` says what else."""
    client: str = "local"
    key: str | None = None
    """A retry with the same key is answered as the first time, and counted once."""
    digest: bytes = b""
    """Of what the client sent: the same key with other rows is an error."""

    @property
    def owner(self) -> str:
        """Whose caps and keys they count in: a client's own, whatever sources it names (``client/source``)."""
        return owner_of(self.client)


def owner_of(client: str) -> str:
    """The client without the source that it names."""
    return client.partition("/")[0]


def required_widths(detector: Detector) -> dict[str, int]:
    """Columns of every array that a guard needs of this detector, logits first, or what the detector lacks."""
    n_classes = detector._n_classes
    if n_classes is None:
        if detector._widths is not None:
            raise InvalidInput(
                f"{detector.name} was fitted without logits, and a guard needs them for the predicted classes; fit it "
                f"again with ModelOutputs(logits, {', '.join(f'{name}=...' for name in detector.reads)})."
            )
        raise NotFitted(f"{detector.name} is not fitted, so the number of classes is not known; fit it first.")
    if detector._runs and not detector._holds_threshold_in_stream:
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
    return {LOGITS: n_classes, **(detector._widths or {})}


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
