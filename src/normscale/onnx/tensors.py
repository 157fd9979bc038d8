"""Where in a model the logits, or the features, are."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from normscale.errors import InvalidInput
from normscale.onnx.nodes import names_in

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

_NO_LOGITS = ("Softmax", "LogSoftmax", "Sigmoid")
"""What comes out of these is no longer a logit."""
_SAME = ("Identity", "Cast", "Flatten", "Reshape", "Squeeze")
"""What comes out of these still is what went in, for telling what made it."""
_SHOWN = 4


class FoundTensor(NamedTuple):
    """A tensor of a model."""

    name: str
    rows: int | str | None
    """Its first dimension: a number, a name, or unknown."""
    width: int | None
    is_output: bool


class GraphTensor(NamedTuple):
    """What is known about a tensor; ``dims`` is None when not even its rank is."""

    name: str
    is_float: bool
    dims: tuple[int | str | None, ...] | None

    def fits(self, width: int | None) -> bool:
        """Whether it is known to have the shape (n, width) of real numbers."""
        if not self.is_float or self.dims is None or len(self.dims) != 2:
            return False
        columns = self.dims[1]
        return isinstance(columns, int) and (columns == width if width is not None else columns >= 2)

    def may_fit(self, width: int | None) -> bool:
        """Whether nothing known speaks against it."""
        if self.dims is None:
            return self.is_float
        return self.fits(width) or (self.is_float and len(self.dims) == 2 and not isinstance(self.dims[1], int))

    def __str__(self) -> str:
        """Name and shape, for people."""
        sizes = None if self.dims is None else ", ".join("?" if size is None else str(size) for size in self.dims)
        shape = "of unknown shape" if sizes is None else f"({sizes})"
        return f"{self.name!r} {shape}{'' if self.is_float else ', not of real numbers'}"


def find(model: ModelProto, role: str, width: int | None, wanted: str | None) -> FoundTensor:
    """The tensor of shape (n, width) that plays the ``role`` of "logits" or "features".

    Without a name it is the only output of that shape; a name may also be that of a tensor inside the model, such as
    the one before a softmax.
    """
    graph = with_shapes(model).graph
    outputs = [_tensor(info) for info in graph.output]
    columns = "n_classes" if width is None else str(width)
    if wanted is not None:
        return _named(graph, role, width, wanted, outputs)
    fitting = [tensor for tensor in outputs if tensor.fits(width)]
    fitting = fitting or [tensor for tensor in outputs if tensor.may_fit(width)]
    if role == "logits":  # a model that gives its probabilities, too, is not in doubt
        fitting = [tensor for tensor in fitting if not _squashed_by(graph, tensor.name)] or fitting
    option = f"pass {role}=NAME (--{role} NAME)"
    if len(fitting) > 1:
        candidates = ", ".join(str(tensor) for tensor in fitting)
        raise InvalidInput(f"several outputs of the model could be its {role}: {candidates}; {option}.")
    if not fitting:
        inside = [str(tensor) for tensor in _inner(graph) if tensor.fits(width)][-_SHOWN:]
        hint = f" Tensors of that shape inside it: {', '.join(inside)}; {option}." if inside else ""
        raise InvalidInput(
            f"no output of the model has the shape (n, {columns}) of the detector's {role}; it has "
            f"{', '.join(str(tensor) for tensor in outputs) or 'none'}.{hint}"
        )
    made_by = _squashed_by(graph, fitting[0].name) if role == "logits" else None
    if made_by is not None:
        before = made_by.input[0]
        raise InvalidInput(
            f"the output {fitting[0]} comes out of a {made_by.op_type}, so it is no longer logits. Pass "
            f"logits={before!r} (--logits {before}), which goes into it; or logits={fitting[0].name!r}, if the "
            "detector was fitted on such numbers."
        )
    return _found(fitting[0], graph)


def with_shapes(model: ModelProto) -> ModelProto:
    """The model with the shapes that can be inferred; as it is, when none can."""
    import onnx

    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # what it raises has no common base; the declared shapes serve as well
        return model


def _named(graph: GraphProto, role: str, width: int | None, wanted: str, outputs: list[GraphTensor]) -> FoundTensor:
    made = {name for node in graph.node for name in node.output if name}
    made |= {info.name for info in graph.input} - _weights(graph)
    if wanted not in made:
        close = get_close_matches(wanted, made, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InvalidInput(
            f"the model has no tensor called {wanted!r}; its outputs are "
            f"{', '.join(str(tensor) for tensor in outputs)}.{hint}"
        )
    known = {tensor.name: tensor for tensor in (*_inner(graph), *outputs)}
    tensor = known.get(wanted, GraphTensor(wanted, True, None))
    if not tensor.may_fit(width):
        columns = "n_classes" if width is None else str(width)
        raise InvalidInput(f"the detector's {role} must have the shape (n, {columns}); got {tensor}.")
    return _found(tensor, graph)


def _found(tensor: GraphTensor, graph: GraphProto) -> FoundTensor:
    rows, columns = tensor.dims if tensor.dims is not None and len(tensor.dims) == 2 else (None, None)
    is_output = any(info.name == tensor.name for info in graph.output)
    return FoundTensor(tensor.name, rows, columns if isinstance(columns, int) else None, is_output)


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


def _squashed_by(graph: GraphProto, name: str) -> NodeProto | None:
    """The softmax or its like that made a tensor, seen through nodes that only carry it on; None if it was none."""
    makers = {output: node for node in graph.node for output in node.output}
    node = makers.get(name)
    while node is not None and node.op_type in _SAME:
        node = makers.get(node.input[0])
    return node if node is not None and node.op_type in _NO_LOGITS else None


def require_free(graph: GraphProto, names: tuple[str, ...]) -> None:
    """Raise when the model already uses a name that the detector needs."""
    taken = sorted(set(names) & names_in(graph))
    if taken:
        raise InvalidInput(
            f"the model already has {', '.join(map(repr, taken))}, which would be added. Does it carry a detector "
            "already? Then export from the model without one; otherwise rename that tensor."
        )
