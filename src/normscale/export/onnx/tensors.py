"""Where in a model the logits, or the features, are."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from normscale.errors import InvalidInput
from normscale.export.onnx.before_softmax import BeforeSoftmax, before_softmax
from normscale.export.onnx.nodes import names_in

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

_SHOWN = 4


class FoundTensor(NamedTuple):
    """A tensor of a model."""

    name: str
    rows: int | str | None
    """Its first dimension: a number, a name, or unknown."""
    width: int | None
    is_output: bool
    note: str = ""
    """What a person should know about the choice."""
    is_asked_for: bool = False
    """Whether somebody named it."""


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

    Without a name it is the only output of that shape or, if that comes out of a softmax, the tensor that goes into
    it; a name may also be that of a tensor inside the model.
    """
    graph = with_shapes(model).graph
    outputs = [_tensor(info) for info in graph.output]
    columns = "n_classes" if width is None else str(width)
    if wanted is not None:
        return _noted(_named(graph, role, width, wanted, outputs), graph, role)
    fitting = [tensor for tensor in outputs if tensor.fits(width)]
    fitting = fitting or [tensor for tensor in outputs if tensor.may_fit(width)]
    if role == "logits":  # a model that gives its probabilities, too, is not in doubt
        fitting = [tensor for tensor in fitting if before_softmax(graph, tensor.name) is None] or fitting
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
    made_by = before_softmax(graph, fitting[0].name) if role == "logits" else None
    return _found(fitting[0], graph) if made_by is None else _inside(graph, width, fitting[0], made_by, outputs)


def _inside(
    graph: GraphProto, width: int | None, output: GraphTensor, made_by: BeforeSoftmax, outputs: list[GraphTensor]
) -> FoundTensor:
    """The tensor that went into a softmax, taken instead of the output that came out of it."""
    what = f"the output {output} comes out of a {made_by.operator}, so it is no longer logits"
    try:
        found = _named(graph, "logits", width, made_by.tensor, outputs)
    except InvalidInput as error:
        raise InvalidInput(
            f"{what}, and {made_by.tensor!r}, which goes into it, cannot be taken ({error}) Pass logits=NAME "
            f"(--logits NAME); logits={output.name!r}, if the detector was fitted on such numbers."
        ) from None
    note = (
        f"{what}: the detector reads {made_by.tensor!r}, which goes into it. If it was fitted on such numbers, pass "
        f"logits={output.name!r} (--logits {output.name})."
    )
    return found._replace(note=note, is_asked_for=False)


def _noted(found: FoundTensor, graph: GraphProto, role: str) -> FoundTensor:
    """A tensor that was asked for, with a note where it comes out of a softmax."""
    made_by = before_softmax(graph, found.name) if role == "logits" else None
    if made_by is None:
        return found
    note = (
        f"{found.name!r} comes out of a {made_by.operator}, so it is no longer logits: right only where the detector "
        f"was fitted on such numbers; else pass logits={made_by.tensor!r} (--logits {made_by.tensor})."
    )
    return found._replace(note=note)


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
    return _found(tensor, graph)._replace(is_asked_for=True)


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


def require_free(graph: GraphProto, names: tuple[str, ...]) -> None:
    """Raise when the model already uses a name that the detector needs."""
    taken = sorted(set(names) & names_in(graph))
    if taken:
        raise InvalidInput(
            f"the model already has {', '.join(map(repr, taken))}, which would be added. Does it carry a detector "
            "already? Then export from the model without one; otherwise rename that tensor."
        )
