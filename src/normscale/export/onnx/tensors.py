"""Where in a model the logits, or the features, are; of a model that ends in a softmax, the tensor before it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from normscale.errors import InvalidInput
from normscale.outputs import LOGITS

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

_LISTED = 4
"""Tensors that a message names."""
_ENDINGS = ("Softmax", "LogSoftmax", "Sigmoid")
"""What comes out of these is no longer a logit."""
_SAME = ("Identity", "Cast", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Dropout", "Clip")
"""What comes out of these still is what went in, for telling what made it."""


class GraphTensor(NamedTuple):
    """A tensor of a model; ``dims`` is None when not even its rank is known."""

    name: str
    is_float: bool = True
    dims: tuple[int | str | None, ...] | None = None
    is_output: bool = False
    note: str = ""
    """What a person should know about the choice."""
    is_asked_for: bool = False
    """Whether somebody named it."""

    @property
    def rows(self) -> int | str | None:
        """Its first dimension: a number, a name, or unknown."""
        return self.dims[0] if self.dims is not None and len(self.dims) == 2 else None

    @property
    def width(self) -> int | None:
        """How many columns it has, where that is known."""
        columns = self.dims[1] if self.dims is not None and len(self.dims) == 2 else None
        return columns if isinstance(columns, int) else None

    def fits(self, width: int | None) -> bool:
        """Whether it is known to have the shape (n, width) of real numbers."""
        own = self.width if self.is_float else None
        return own is not None and (own == width if width is not None else own >= 2)

    def may_fit(self, width: int | None) -> bool:
        """Whether nothing known speaks against it."""
        unknown = self.dims is None or (len(self.dims) == 2 and self.width is None)
        return self.fits(width) or (self.is_float and unknown)

    def __str__(self) -> str:
        """Name and shape, for people."""
        sizes = None if self.dims is None else ", ".join("?" if size is None else str(size) for size in self.dims)
        shape = "of unknown shape" if sizes is None else f"({sizes})"
        return f"{self.name!r} {shape}{'' if self.is_float else ', not of real numbers'}"


def find(model: ModelProto, role: str, width: int | None, name: str | None) -> GraphTensor:
    """The tensor of shape (n, width) that plays the ``role`` of "logits" or "features".

    Without a name it is the only output of that shape or, if that comes out of a softmax, the tensor that goes into
    it; a name may also be that of a tensor inside the model.
    """
    graph = _with_shapes(model).graph
    makers = Makers(graph if role == LOGITS else None)
    outputs = [_tensor(info)._replace(is_output=True) for info in graph.output]
    if name is not None:
        found = _named(graph, role, width, name, outputs)._replace(is_asked_for=True)
        ending = makers.softmax(name)
        if ending is None:
            return found
        before = ending.input[0]
        return found._replace(
            note=f"{name!r} comes out of a {ending.op_type}, so it is no longer logits: right only where the detector "
            f"was fitted on such numbers; else pass logits={before!r} (--logits {before})."
        )
    fitting = [tensor for tensor in outputs if tensor.fits(width)]
    fitting = fitting or [tensor for tensor in outputs if tensor.may_fit(width)]
    # a model that gives its probabilities, too, is not in doubt
    fitting = [tensor for tensor in fitting if makers.softmax(tensor.name) is None] or fitting
    option = f"pass {role}=NAME (--{role} NAME)"
    if len(fitting) > 1:
        candidates = ", ".join(map(str, fitting))
        raise InvalidInput(f"several outputs of the model could be its {role}: {candidates}; {option}.")
    if not fitting:
        inside = [str(tensor) for tensor in _inner(graph) if tensor.fits(width)][-_LISTED:]
        hint = f" Tensors of that shape inside it: {', '.join(inside)}; {option}." if inside else ""
        raise InvalidInput(
            f"no output of the model has the shape (n, {width or 'n_classes'}) of the detector's {role}; it has "
            f"{', '.join(map(str, outputs)) or 'none'}.{hint}"
        )
    output, ending = fitting[0], makers.softmax(fitting[0].name)
    if ending is None:
        return output
    before, what = ending.input[0], f"the output {output} comes out of a {ending.op_type}, so it is no longer logits"
    try:
        found = _named(graph, role, width, before, outputs)
    except InvalidInput as error:
        raise InvalidInput(
            f"{what}, and {before!r}, which goes into it, cannot be taken ({error}) Pass logits=NAME "
            f"(--logits NAME); logits={output.name!r}, if the detector was fitted on such numbers."
        ) from None
    return found._replace(
        note=f"{what}: the detector reads {before!r}, which goes into it. If it was fitted on such numbers, "
        f"pass logits={output.name!r} (--logits {output.name})."
    )


class Makers(dict[str, "NodeProto"]):
    """The node that made each tensor of a graph."""

    def __init__(self, graph: GraphProto | None) -> None:
        super().__init__((output, node) for node in (graph.node if graph else ()) for output in node.output)

    def maker(self, name: str) -> NodeProto | None:
        """The node that made a tensor, seen through nodes that only carry it on."""
        node = self.get(name)
        while node is not None and node.op_type in _SAME:
            node = self.get(node.input[0])
        return node

    def softmax(self, name: str) -> NodeProto | None:
        """The softmax or sigmoid that made a tensor, or of which the tensor is the logarithm; None without one."""
        node = self.maker(name)
        if node is not None and node.op_type == "Log":
            node = self.maker(node.input[0])
        return node if node is not None and node.op_type in _ENDINGS else None


def _with_shapes(model: ModelProto) -> ModelProto:
    """The model with the shapes that can be inferred; as it is, when none can."""
    import onnx

    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # what it raises has no common base; the declared shapes serve as well
        return model


def _named(graph: GraphProto, role: str, width: int | None, name: str, outputs: list[GraphTensor]) -> GraphTensor:
    known = {tensor.name: tensor for tensor in (*_inner(graph), *outputs)}
    made = {one for node in graph.node for one in node.output if one} | {info.name for info in graph.input}
    made -= _weights(graph)
    if name not in made:
        close = get_close_matches(name, made, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InvalidInput(
            f"the model has no tensor called {name!r}; its outputs are {', '.join(map(str, outputs))}.{hint}"
        )
    tensor = known.get(name, GraphTensor(name))
    if not tensor.may_fit(width):
        raise InvalidInput(f"the detector's {role} must have the shape (n, {width or 'n_classes'}); got {tensor}.")
    return tensor


def _inner(graph: GraphProto) -> list[GraphTensor]:
    """Inputs and inner tensors whose shape is known, in the order of the graph."""
    weights = _weights(graph)
    return [_tensor(info) for info in (*graph.input, *graph.value_info) if info.name not in weights]


def _weights(graph: GraphProto) -> set[str]:
    """Names of what is the same for every input; some writers list them among the inputs, or with their shape."""
    return {tensor.name for tensor in graph.initializer}


def _tensor(info: ValueInfoProto) -> GraphTensor:
    from onnx import TensorProto

    kinds = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    kind = info.type.tensor_type
    if not info.type.HasField("tensor_type") or not kind.HasField("shape"):
        return GraphTensor(info.name, kind.elem_type in (*kinds, TensorProto.UNDEFINED), None)
    dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim)
    return GraphTensor(info.name, kind.elem_type in kinds, dims)
