"""The rows of one request to a guard, and the verdict; which detectors can give one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from normscale._validate import BoolArray, FloatArray, IntArray
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput, NotFitted
from normscale.outputs import LOGITS, ModelOutputs
from normscale.state import Kind, pack_state, unpack_state

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
