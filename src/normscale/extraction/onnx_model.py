"""An ONNX classifier that is being run: logits before a softmax, and what goes into its last matrix product."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale.errors import InvalidInput, first_line
from normscale.export.onnx.files import read_model, require, with_outputs
from normscale.export.onnx.running import INPUT_TYPES
from normscale.export.onnx.tensors import Makers, find
from normscale.extraction.batch_reader import Inputs, finite
from normscale.outputs import FEATURES, LOGITS, Head, array_name

if TYPE_CHECKING:
    from onnx import GraphProto


class OnnxNetwork:
    """Runs an ONNX file on onnxruntime; ``layers`` are names of tensors inside it."""

    class_names = None
    running = nullcontext

    def __init__(self, path: str, options: Any) -> None:
        """Find the tensors, and load the file; options are those of :func:`normscale.extraction.extract`."""
        require("onnx", "onnxruntime")
        import onnxruntime

        model = read_model(path)
        logits = find(model, LOGITS, None, None)
        if not logits.is_output:
            options.say(f"the model's output comes out of a softmax: logits are {logits.name!r}, which goes into it.")
        entered, head = _last_product(model.graph, logits.name, os.path.dirname(os.path.realpath(path)))
        self.head = head if options.feature_layer in (None, entered) else None
        if options.features and options.feature_layer is None and head is None:
            raise InvalidInput(
                f"no Gemm or MatMul with weights of its own gives the logits {logits.name!r}, so the features are not "
                "known; pass the name of their tensor, feature_layer='NAME', or features=False."
            )
        self._tensors = {LOGITS: logits.name}
        if options.features:
            self._tensors[FEATURES] = options.feature_layer or entered
        self._tensors |= {array_name(name): name for name in options.layers or ()}
        made = {name for node in model.graph.node for name in node.output} | {i.name for i in model.graph.input}
        for name in self._tensors.values():
            if name not in made:
                raise InvalidInput(f"the model has no tensor {name!r}; the last are {', '.join(sorted(made)[-6:])}.")
        device = str(options.device or "cpu")
        provider = "CUDAExecutionProvider" if device.startswith("cuda") else "CPUExecutionProvider"
        if provider not in onnxruntime.get_available_providers():
            raise InvalidInput(f"this onnxruntime cannot run on the device {device!r}. Leave device out.")
        opened = with_outputs(path, model, self._tensors.values())
        self._session = onnxruntime.InferenceSession(opened, providers=[provider])
        self._inputs = {item.name: item.type for item in self._session.get_inputs()}

    def read(self, inputs: Inputs, first_row: int) -> dict[str, NDArray[np.float32]]:
        """The arrays of a batch, float32; an error names the row that is not finite."""
        given = inputs if isinstance(inputs, dict) else {next(iter(self._inputs)): inputs}
        fed = {
            name: np.ascontiguousarray(_validate.to_numpy(given[name], name), dtype=INPUT_TYPES.get(kind, np.float32))
            for name, kind in self._inputs.items()
            if name in given
        }
        names = list(set(self._tensors.values()))
        try:
            ran = dict(zip(names, self._session.run(names, fed), strict=True))
        except Exception as error:  # onnxruntime's errors have no common base but this
            shapes = {name: array.shape for name, array in fed.items()}
            raise InvalidInput(f"the model fails on inputs {shapes}: {first_line(error)}") from error
        arrays = {}
        for name, tensor in self._tensors.items():
            array = np.asarray(ran[tensor], dtype=np.float32)
            if array.ndim != 2 and array.ndim < 4:
                raise InvalidInput(f"the tensor {tensor!r} must be (n, d) or maps (n, d, h, w); it is {array.shape}.")
            arrays[name] = array.mean(axis=tuple(range(2, array.ndim)), dtype=np.float32) if array.ndim > 2 else array
        return finite(arrays, first_row)


def _last_product(graph: GraphProto, logits: str, folder: str) -> tuple[str, Head | None]:
    """What goes into the Gemm, or the MatMul with its Add, that makes the logits; and its weights.

    Weights in files of their own are in ``folder``.
    """
    from onnx import helper, numpy_helper

    makers = Makers(graph)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    weights |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant" and n.attribute}

    def array(name: str) -> NDArray[np.float32]:
        return numpy_helper.to_array(weights[name], folder).astype(np.float32)

    node, bias = makers.maker(logits), np.zeros(1, np.float32)
    if node is not None and node.op_type == "Add":
        own = [name for name in node.input if name in weights]
        other = [name for name in node.input if name not in weights]
        if len(own) != 1:
            return "", None
        node, bias = makers.maker(other[0]), array(own[0]).reshape(-1)
    if node is None or node.op_type not in ("Gemm", "MatMul") or not weights.keys() >= {*node.input[1:]} - {""}:
        return "", None
    options = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    weight = array(node.input[1]) if options.get("transB") else array(node.input[1]).T
    if len(node.input) > 2 and node.input[2]:
        bias = bias + array(node.input[2]).reshape(-1) * np.float32(options.get("beta", 1.0))
    if options.get("transA") or weight.ndim != 2 or bias.size not in (1, len(weight)):
        return "", None
    weight = np.ascontiguousarray(weight * np.float32(options.get("alpha", 1.0)))
    return str(node.input[0]), Head(weight, np.broadcast_to(bias, len(weight)).copy())
