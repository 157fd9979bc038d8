"""An ONNX classifier that is being run: logits before a softmax, and what goes into its last matrix product."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale.errors import InvalidInput
from normscale.export.onnx.files import read_model, weight_files
from normscale.export.onnx.packages import require
from normscale.export.onnx.tensors import find
from normscale.extraction.batch_reader import Inputs
from normscale.outputs import FEATURES, LOGITS, Head

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_CARRIES = ("Identity", "Cast", "Flatten", "Reshape", "Squeeze", "Dropout")


class OnnxNetwork:
    """Runs an ONNX file on onnxruntime; ``layers`` are names of tensors inside it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        layers: Any = None,
        features: bool = True,
        feature_layer: str | None = None,
        device: Any = None,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Find the tensors, and load the file."""
        require("onnx", "onnxruntime")
        import onnx
        import onnxruntime

        model = read_model(path)
        if weight_files(model):
            onnx.load_external_data_for_model(model, os.path.dirname(os.path.realpath(path)))
        logits = find(model, LOGITS, None, None)
        if not logits.is_output:
            say(f"the model's output comes out of a softmax: logits are {logits.name!r}, which goes into it.")
        last = _last_product(model.graph, logits.name)
        self.head = None if last is None or feature_layer not in (None, last[0]) else last[1]
        if features and feature_layer is None and last is None:
            raise InvalidInput(
                f"no Gemm or MatMul with weights of its own gives the logits {logits.name!r}, so the features are not "
                "known; pass the name of their tensor, feature_layer='NAME', or features=False."
            )
        self._tensors = {LOGITS: logits.name}
        if features:
            self._tensors[FEATURES] = feature_layer or (last[0] if last is not None else "")
        self._tensors |= {_array_name(name): name for name in layers or ()}
        made = {name for node in model.graph.node for name in node.output} | {i.name for i in model.graph.input}
        outputs = {info.name for info in model.graph.output}
        for name in self._tensors.values():
            if name not in made:
                raise InvalidInput(f"the model has no tensor {name!r}; the last are {', '.join(sorted(made)[-6:])}.")
            if name not in outputs:
                model.graph.output.append(onnx.ValueInfoProto(name=name))
                outputs.add(name)
        given = "CUDAExecutionProvider" if str(device or "cpu").startswith("cuda") else "CPUExecutionProvider"
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[given])
        self._inputs = {item.name: item.type for item in self._session.get_inputs()}
        self.class_names: dict[str, int] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Nothing needs to be put back."""
        yield

    def read(self, inputs: Inputs, first_row: int) -> dict[str, NDArray[np.float32]]:
        """The arrays of a batch, float32; an error names the row that is not finite."""
        given = inputs if isinstance(inputs, dict) else {next(iter(self._inputs)): inputs}
        kinds = {"tensor(float16)": np.float16, "tensor(double)": np.float64, "tensor(int64)": np.int64}
        fed = {
            name: np.ascontiguousarray(_validate.to_numpy(given[name], name), dtype=kinds.get(kind, np.float32))
            for name, kind in self._inputs.items()
            if name in given
        }
        names = list(dict.fromkeys(self._tensors.values()))
        try:
            ran = dict(zip(names, self._session.run(names, fed), strict=True))
        except Exception as error:  # onnxruntime's errors have no common base but this
            shapes = {name: array.shape for name, array in fed.items()}
            raise InvalidInput(f"the model fails on inputs {shapes}: {str(error).splitlines()[0]}") from error
        found = {}
        for name, tensor in self._tensors.items():
            array = np.asarray(ran[tensor], dtype=np.float32)
            if array.ndim >= 4:
                array = array.mean(axis=tuple(range(2, array.ndim)), dtype=np.float32)
            if array.ndim != 2:
                raise InvalidInput(f"the tensor {tensor!r} must be (n, d) or maps (n, d, h, w); it is {array.shape}.")
            if not np.isfinite(array).all():
                raise _validate.invalid_row_error(array, name, first_row=first_row)
            found[name] = array
        return found


def _last_product(graph: GraphProto, logits: str) -> tuple[str, Head] | None:
    """What goes into the Gemm, or the MatMul with its Add, that makes the logits; and its weights."""
    from onnx import numpy_helper

    makers = {output: node for node in graph.node for output in node.output}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    weights |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant" and n.attribute}

    def array(name: str) -> NDArray[np.float32]:
        return numpy_helper.to_array(weights[name]).astype(np.float32)

    node = _maker(makers, logits)
    bias: NDArray[np.float32] | None = None
    if node is not None and node.op_type == "Add":
        own = [name for name in node.input if name in weights]
        other = [name for name in node.input if name not in weights]
        if len(own) != 1 or len(other) != 1:
            return None
        bias, node = array(own[0]).reshape(-1), _maker(makers, other[0])
    if node is None or node.op_type not in ("Gemm", "MatMul") or node.input[1] not in weights:
        return None
    options = {one.name: one.f if one.type == 1 else one.i for one in node.attribute}
    if options.get("transA"):
        return None
    weight = array(node.input[1]) if options.get("transB") else array(node.input[1]).T
    weight = weight * np.float32(options.get("alpha", 1.0))
    if len(node.input) > 2 and node.input[2]:
        if node.input[2] not in weights:
            return None
        added = array(node.input[2]).reshape(-1) * np.float32(options.get("beta", 1.0))
        bias = added if bias is None else bias + added
    if weight.ndim != 2 or (bias is not None and bias.size not in (1, len(weight))):
        return None
    whole = np.zeros(len(weight), np.float32) if bias is None else np.broadcast_to(bias, len(weight)).copy()
    return str(node.input[0]), Head(np.ascontiguousarray(weight), whole)


def _maker(makers: dict[str, NodeProto], name: str) -> NodeProto | None:
    """The node that made a tensor, seen through nodes that only carry it on."""
    node = makers.get(name)
    while node is not None and node.op_type in _CARRIES:
        node = makers.get(node.input[0])
    return node


def _array_name(tensor: str) -> str:
    """What a tensor is called in the outputs.

    Examples
    --------
    >>> _array_name("/layer1/relu_out.0")
    'layer1_relu_out_0'
    """
    name = "".join(letter if letter.isalnum() else "_" for letter in tensor).strip("_")
    return name if name.isidentifier() and name not in (LOGITS, FEATURES) else f"layer_{name}"
