"""Models in onnxruntime: opened, tried on random inputs, and run with the moments carried from call to call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray
from normscale.errors import InvalidInput
from normscale.export.onnx.attaching import NEXT, STATE, read_state
from normscale.export.onnx.files import read_model, require, with_outputs
from normscale.export.onnx.tensors import GraphTensor, find
from normscale.input_checks import ProbabilityForm, detect_probabilities
from normscale.outputs import LOGITS

if TYPE_CHECKING:
    from onnx import ModelProto

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


def classifier_output(
    path: str | os.PathLike[str], width: int | None, *, role: str = LOGITS, name: str | None = None
) -> tuple[GraphTensor, str | bytes]:
    """Find the logits (or features) of an ONNX classifier, also before a softmax, without running it.

    ``width`` is the number of columns that the detector was fitted on, ``name`` the tensor's name. Returns the tensor
    and what a session opens to get it: the file, or a model with the tensor among its outputs.
    """
    require("onnx")
    model = read_model(path)
    found = find(model, role, width, name)
    return found, with_outputs(path, model, (found.name,))


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
    found = detect_probabilities(rows) if rows.ndim == 2 else None
    if found is not None and found.form is not ProbabilityForm.SIGMOIDS:
        raise InvalidInput(
            f"the tensor {name!r} holds {found.form}, not logits: on random inputs {found.evidence}. {outcome}"
            f"Pass logits=NAME (--logits NAME) with the tensor before the softmax; or logits={name!r}, if the "
            "detector was fitted on such numbers."
        )


def _random(item: Any, rng: np.random.Generator) -> NDArray[Any]:
    """Numbers of the shape and type that an input wants; a free first dimension is the batch."""
    shape = [TRIAL_ROWS if axis == 0 and not isinstance(size, int) else size for axis, size in enumerate(item.shape)]
    if item.type not in INPUT_TYPES or not shape or any(not isinstance(size, int) or size < 1 for size in shape):
        raise CannotRunError
    dtype = INPUT_TYPES[item.type]
    floating = np.issubdtype(dtype, np.floating)
    return (rng.normal(size=shape) if floating else rng.integers(0, 2, shape)).astype(dtype)


def initial_state(model: ModelProto | str | os.PathLike[str]) -> dict[str, FloatArray]:
    """The moments that a stateful model starts from, as the inputs it wants.

    Feed them with the first batch, then ``detector_weight_next`` as ``detector_weight`` and so on, in any runtime.
    """
    require("onnx")
    return read_state(read_model(model) if isinstance(model, (str, os.PathLike)) else model)


class DetectorSession:
    """An onnxruntime session for a model with a detector; a stateful one goes on where the last call stopped.

    Calls from several threads follow each other where there is a state. A call that raises moves nothing.

    Parameters
    ----------
    path : str or path
        What ``normscale export`` wrote.
    options, providers :
        As onnxruntime's ``InferenceSession`` takes them; by default its own options and the CPU.

    Attributes
    ----------
    state : dict of arrays
        ``detector_weight``, ``detector_mean``, ``detector_m2`` as they are now; assign a dict to go on from elsewhere.
        Empty for a model with frozen statistics.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, options: Any = None, providers: Sequence[str] = ("CPUExecutionProvider",)
    ) -> None:
        """Load the model."""
        require("onnx", "onnxruntime")
        import onnxruntime

        self.session = onnxruntime.InferenceSession(os.fspath(path), options, providers=list(providers))
        inputs = {item.name for item in self.session.get_inputs()}
        self._initial = initial_state(path) if inputs.issuperset(STATE) else {}
        self._lock = Lock()
        self.reset()

    def reset(self) -> None:
        """Go back to the state that the model was exported with."""
        self.state: dict[str, NDArray[np.float64]] = {name: value.copy() for name, value in self._initial.items()}

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """All outputs by name but the state's: the model's own, ``ood_score`` and ``is_ood``."""
        if not self._initial:
            return run_session(self.session, inputs)
        with self._lock:
            found = run_session(self.session, {**inputs, **self.state})
            self.state = {name: found.pop(after) for name, after in zip(STATE, NEXT, strict=True)}
        return found
