"""The classifier itself, when the server runs it: inputs through onnxruntime to its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.errors import FileFormatError, InvalidInput
from normscale.export.onnx.files import require
from normscale.export.onnx.running import (
    INPUT_TYPES,
    CannotRunError,
    classifier_output,
    open_session,
    refuse_probabilities,
    run_session,
    try_out,
)
from normscale.guard.server.tensors import DATATYPES, TensorSpec
from normscale.outputs import LOGITS

_NAMES = {f"tensor({type})": name for type, name in (("float", "FP32"), ("double", "FP64"), ("float16", "FP16"))}
_NAMES |= {f"tensor({dtype.name})": name for name, dtype in DATATYPES.items() if not name.startswith("FP")}


class Classifier:
    """An ONNX model with an output for every array that the guard reads.

    ``inputs`` and ``outputs`` are its tensors as clients see them, ``note`` what an operator should know of the logits.
    """

    def __init__(self, path: str, widths: Mapping[str, int], logits: str | None = None) -> None:
        """Load the model and find the arrays that are wanted; ``logits`` names their tensor, also one inside the model.

        Without it logits are the only output of that width or, where that comes out of a softmax, what goes into it.
        """
        require("onnxruntime")
        found, model = classifier_output(path, widths[LOGITS], name=logits)
        self.note = found.note
        try:  # of one thread: requests are answered side by side anyway
            self._session = open_session(model)
        except Exception as error:  # onnxruntime's errors have no common class
            line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise FileFormatError(f"{path!r} is not a model that onnxruntime can load ({line[:200]}).") from error
        inputs = self._session.get_inputs()
        if not inputs or any(one.type not in INPUT_TYPES or not one.shape for one in inputs):
            names = ", ".join(f"{one.name} {one.type}" for one in inputs)
            raise InvalidInput(f"the model's inputs must be arrays of numbers; {path!r} has {names or 'none'}.")
        self.inputs = [_spec(one) for one in inputs]
        self.outputs = [_spec(one) for one in self._session.get_outputs() if one.type in _NAMES]
        self._arrays = {name: self._named(name, width, path) for name, width in widths.items() if name != LOGITS}
        self._arrays[LOGITS] = found.name
        if not found.is_asked_for:
            with suppress(CannotRunError):  # then the rows of its clients tell
                refuse_probabilities(try_out(self._session)[found.name], found.name)

    def _named(self, name: str, width: int, path: str) -> str:
        """The output of that name: a guess by width would take one output for two arrays."""
        there = {one.name: one.shape for one in self._session.get_outputs()}
        if len(there.get(name, ())) != 2 or there[name][1] not in (width, None):
            raise InvalidInput(
                f"the detector reads {name}, so the model needs an output of {width} columns with that name; {path!r} "
                f"has {', '.join(there)}. Rename it, or serve without --model and send {name}."
            )
        return name

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """The arrays (n, width) that the guard reads of some inputs (n, ...), and all outputs of the model."""
        outputs = run_session(self._session, inputs)
        own = {spec.name: np.asarray(outputs[spec.name]) for spec in self.outputs}
        return {name: outputs[tensor] for name, tensor in self._arrays.items()}, own


def _spec(one: Any) -> TensorSpec:
    shape = tuple(length if isinstance(length, int) else None for length in one.shape)
    return TensorSpec(one.name, _NAMES[one.type], shape, is_exact=True)
