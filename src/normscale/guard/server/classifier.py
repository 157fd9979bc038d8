"""The classifier itself, when the server runs it: inputs through onnxruntime to logits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.errors import FileFormatError, InvalidInput
from normscale.export.onnx import classifier_output
from normscale.export.onnx.packages import require
from normscale.export.onnx.trial import INPUT_TYPES, CannotRunError, open_session, refuse_probabilities, try_out
from normscale.outputs import LOGITS


class Classifier:
    """An ONNX model with one input, and an output for every array that the guard reads.

    ``shape`` and ``dtype`` are those of its input; None where any length will do.
    """

    def __init__(self, path: str, widths: Mapping[str, int], logits: str | None = None) -> None:
        """Load the model and find the arrays that are wanted; ``logits`` names their tensor, also one inside the model.

        Without it logits are the only output of that width or, where that comes out of a softmax, what goes into it.
        """
        require("onnxruntime")
        found = classifier_output(path, widths[LOGITS], name=logits)
        self.note = found.note
        """What a person should know about the logits that were found; empty if nothing."""
        try:  # of one thread: requests are answered side by side anyway
            self._session = open_session(path if found.model is None else found.model)
        except Exception as error:  # onnxruntime's errors have no common class
            line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise FileFormatError(f"{path!r} is not a model that onnxruntime can load ({line[:200]}).") from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in INPUT_TYPES:
            names = ", ".join(f"{one.name} {one.type}" for one in inputs)
            raise InvalidInput(f"the model must have one input of numbers; {path!r} has {names or 'none'}.")
        self._input = inputs[0].name
        self._outputs = {name: self._named(name, width, path) for name, width in widths.items() if name != LOGITS}
        self._outputs[LOGITS] = found.tensor
        if not found.is_asked_for:
            with suppress(CannotRunError):  # then the rows of its clients tell
                refuse_probabilities(try_out(self._session)[found.tensor], found.tensor)
        self.dtype = np.dtype(INPUT_TYPES[inputs[0].type])
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
