"""What a guard needs of a detector, and how it tells detectors apart."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np

from normscale.detectors.base import Detector
from normscale.encoding.json_text import write_json
from normscale.errors import InvalidInput, NotFitted
from normscale.outputs import LOGITS


class Identity(NamedTuple):
    """Whose a store is."""

    fingerprint: str
    profile: dict[str, Any]
    """Its classes, and mean and deviation of their logits in training, for a detector that comes after it."""

    @classmethod
    def of(cls, detector: Detector) -> Identity:
        """That of a fitted detector."""
        moments = None if detector.baseline_ is None else detector.baseline_.moments
        profile = {
            "classes": detector.n_classes_,
            "names": None if detector.class_names is None else list(detector.class_names),
            "mean": None if moments is None else moments.mean.tolist(),
            "std": None if moments is None else moments.std.tolist(),
        }
        return cls(fingerprint(detector), profile)


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
    if detector.threshold_ is None:
        raise NotFitted(
            f"{detector.name} has no threshold, so the guard could not say yes or no; fit it with "
            "--threshold-on VALIDATION, or give a --threshold."
        )
    if not np.isfinite(detector.threshold_.value):
        raise InvalidInput(f"threshold must be finite; got {detector.threshold_.value!r}.")
    return {LOGITS: n_classes, **(detector.widths_ or {})}


def fingerprint(detector: Detector) -> str:
    """Tells detectors apart by what they learned and from which rows; the threshold may differ."""
    digest = hashlib.sha256()
    digest.update(write_json([detector.name, {k: repr(v) for k, v in detector.get_params().items()}]).encode())
    baseline = {} if detector.baseline_ is None else detector.baseline_.tensors()
    for name, array in sorted({**baseline, **detector._tensors()}.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        # In single precision: fitting the same rows with other kernels differs in the last digits of double precision.
        digest.update(array.astype(np.float32).tobytes() if array.dtype.kind == "f" else array.tobytes())
    return digest.hexdigest()
