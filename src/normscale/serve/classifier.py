"""The classifier itself, when the server runs it: inputs through onnxruntime to logits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.errors import FileFormatError, InvalidInput, MissingExtra
from normscale.onnx import classifier_output
from normscale.outputs import LOGITS

_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}


class Classifier:
    """An ONNX model with one input, and an output for every array that the guard reads.

    ``shape`` and ``dtype`` are those of its input; None where any length will do.
    """

    def __init__(self, path: str, widths: Mapping[str, int], logits: str | None = None) -> None:
        """Load the model and find the arrays that are wanted; ``logits`` names their tensor, also one inside the model.

        Without it logits are the only output of that width or, where that comes out of a softmax, what goes into it.
        """
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtra(f"--model needs onnxruntime ({error}). Run: pip install 'normscale[onnx]'") from error
        if not os.path.isfile(path):
            raise FileFormatError(f"no model at {path!r}.")
        found = classifier_output(path, widths[LOGITS], name=logits)
        self.note = found.note
        """What a person should know about the logits that were found; empty if nothing."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # requests are answered side by side anyway
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                path if found.model is None else found.model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's errors have no common class
            line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise FileFormatError(f"{path!r} is not a model that onnxruntime can load ({line[:200]}).") from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in _DTYPES:
            names = ", ".join(f"{one.name} {one.type}" for one in inputs)
            raise InvalidInput(f"the model must have one input of numbers; {path!r} has {names or 'none'}.")
        self._input = inputs[0].name
        self._outputs = {name: self._named(name, width, path) for name, width in widths.items() if name != LOGITS}
        self._outputs[LOGITS] = found.tensor
        self.dtype = np.dtype(_DTYPES[inputs[0].type])
        self.shape: tuple[int | None, ...] = tuple(n if isinstance(n, int) else None for n in inputs[0].shape)

    def _named(self, name: str, width: int, path: str) -> str:
        """The output of that name: a guess by width would take one output for two arrays."""
        there = {one.name: one.shape for one in self._session.get_outputs()}
        if len(there.get(name, ())) != 2 or there[name][1] not in (width, None):
            raise InvalidInput(
                f"the detector reads {name}, so the model needs an output of {width} columns with that name; {path!r} "
                f"has {', '.join(there)}. Rename it, or send {name} to /v1/score."
            )
        return name

    def outputs(self, inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run some inputs (n, ...) through the model, to arrays (n, width) by name."""
        arrays = self._session.run(list(self._outputs.values()), {self._input: inputs})
        return dict(zip(self._outputs, arrays, strict=True))
