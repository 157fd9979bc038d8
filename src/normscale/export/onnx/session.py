"""A model with a detector at work: an onnxruntime session that carries the moments from call to call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray
from normscale.export.onnx.files import read_model
from normscale.export.onnx.packages import require
from normscale.export.onnx.stream import NEXT, STATE, read_state

if TYPE_CHECKING:
    from onnx import ModelProto


def initial_state(model: ModelProto | str | os.PathLike[str]) -> dict[str, FloatArray]:
    """The moments that a stateful model starts from, as the inputs it wants.

    Feed them with the first batch, then ``detector_weight_next`` as ``detector_weight`` and so on, in any runtime.
    """
    require("onnx")
    return read_state(read_model(model) if isinstance(model, (str, os.PathLike)) else model)


class DetectorSession:
    """An onnxruntime session for a model with a detector; a stateful one goes on where the last call stopped.

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

    Notes
    -----
    Calls from several threads follow each other where there is a state. A call that raises moves nothing.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, options: Any = None, providers: Sequence[str] = ("CPUExecutionProvider",)
    ) -> None:
        """Load the model."""
        require("onnx", "onnxruntime")
        import onnxruntime

        self.session = onnxruntime.InferenceSession(os.fspath(path), options, providers=list(providers))
        inputs = {item.name for item in self.session.get_inputs()}
        self._outputs = [item.name for item in self.session.get_outputs()]
        self._initial = initial_state(path) if inputs.issuperset(STATE) else {}
        self._lock = Lock()
        self.reset()

    def reset(self) -> None:
        """Go back to the state that the model was exported with."""
        self.state: dict[str, NDArray[np.float64]] = {name: value.copy() for name, value in self._initial.items()}

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """All outputs by name but the state's: the model's own, ``ood_score`` and ``is_ood``."""
        if not self._initial:
            return dict(zip(self._outputs, self.session.run(None, dict(inputs)), strict=True))
        with self._lock:
            found = dict(zip(self._outputs, self.session.run(None, {**inputs, **self.state}), strict=True))
            self.state = {name: found.pop(after) for name, after in zip(STATE, NEXT, strict=True)}
        return found
