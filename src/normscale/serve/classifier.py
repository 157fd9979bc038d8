"""The classifier itself, when the server runs it: inputs through onnxruntime to logits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.errors import FileFormatError, InvalidInput, MissingExtra
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
        """Load the model and find the arrays that are wanted, by their widths; ``logits`` names their output."""
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtra(f"--model needs onnxruntime ({error}). Run: pip install 'normscale[onnx]'") from error
        if not os.path.isfile(path):
            raise FileFormatError(f"no model at {path!r}.")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # requests are answered side by side anyway
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common class
            line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise FileFormatError(f"{path!r} is not a model that onnxruntime can load ({line[:200]}).") from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in _DTYPES:
            found = ", ".join(f"{one.name} {one.type}" for one in inputs)
            raise InvalidInput(f"the model must have one input of numbers; {path!r} has {found or 'none'}.")
        self._input = inputs[0].name
        self._outputs = {name: self._find_output(name, width, path, logits) for name, width in widths.items()}
        self.dtype = np.dtype(_DTYPES[inputs[0].type])
        self.shape: tuple[int | None, ...] = tuple(n if isinstance(n, int) else None for n in inputs[0].shape)

    def _find_output(self, name: str, width: int, path: str, logits: str | None) -> str:
        """The output of that name or, for logits alone, the only one that could be it."""
        found = [
            one.name
            for one in self._session.get_outputs()
            if one.type in ("tensor(float)", "tensor(double)", "tensor(float16)")
            and len(one.shape) == 2
            and one.shape[1] in (width, None)
        ]
        if name == LOGITS and logits is not None:
            if logits not in found:
                raise InvalidInput(
                    f"--logits {logits}: {path!r} has no output of {width} columns with that name; it has "
                    f"{', '.join(found) or 'none'}."
                )
            return logits
        if name in found:
            return name
        if name != LOGITS:  # a guess by width would take one output for two arrays
            raise InvalidInput(
                f"the detector reads {name}, so the model needs an output of {width} columns with that name; {path!r} "
                f"has {', '.join(one.name for one in self._session.get_outputs())}. Rename it, or send {name} to "
                "/v1/score."
            )
        if len(found) != 1:
            raise InvalidInput(
                f"the model must have one output of {width} {name}, as the detector was fitted on; {path!r} has "
                f"{len(found)} that could be it ({', '.join(found) or 'none'}). "
                + ("--logits NAME chooses one." if found else "Was the detector fitted on another classifier?")
            )
        return str(found[0])

    def outputs(self, inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run some inputs (n, ...) through the model, to arrays (n, width) by name."""
        arrays = self._session.run(list(self._outputs.values()), {self._input: inputs})
        return dict(zip(self._outputs, arrays, strict=True))
