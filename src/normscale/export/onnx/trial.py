"""A model in onnxruntime, tried on random inputs: does it run, and are its logits logits?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.errors import InvalidInput
from normscale.input_checks.logits import Squashed, squashed

TRIAL_ROWS = 16
INPUT_TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


class CannotRunError(Exception):
    """The model as a whole cannot be run on made-up inputs."""


def open_session(model: str | bytes) -> Any:
    """A session on the CPU, of one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what it cannot do is raised, and answered by the caller
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """All outputs by name."""
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feed)), strict=True))


def try_out(session: Any, known: Mapping[str, NDArray[Any]] | None = None) -> dict[str, NDArray[Any]]:
    """All outputs for random inputs, but those that are ``known``; :class:`CannotRunError` where they cannot be had."""
    rng, known = np.random.default_rng(0), known or {}
    feed = {item.name: _random(item, rng) for item in session.get_inputs() if item.name not in known}
    try:
        return run_session(session, {**feed, **known})
    except Exception as error:  # whatever onnxruntime finds wrong with inputs that mean nothing
        raise CannotRunError from error


def refuse_probabilities(rows: NDArray[Any], name: str, outcome: str = "") -> None:
    """Raise where logits are probabilities: a model may make them in a way that no look at its nodes tells."""
    found = squashed(rows) if rows.ndim == 2 else None
    if found is not None and found.kind is not Squashed.SIGMOIDS:
        raise InvalidInput(
            f"the tensor {name!r} holds {found.kind}, not logits: on random inputs {found.sign}. {outcome}"
            f"Pass logits=NAME (--logits NAME) with the tensor before the softmax; or logits={name!r}, if the "
            "detector was fitted on such numbers."
        )


def _random(item: Any, rng: np.random.Generator) -> NDArray[Any]:
    """Numbers of the shape and type that an input wants; a free first dimension is the batch."""
    if item.type not in INPUT_TYPES or not item.shape:
        raise CannotRunError
    shape = [TRIAL_ROWS if axis == 0 and not isinstance(size, int) else size for axis, size in enumerate(item.shape)]
    if any(not isinstance(size, int) or size < 1 for size in shape):
        raise CannotRunError
    dtype = INPUT_TYPES[item.type]
    if np.issubdtype(dtype, np.floating):
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)
