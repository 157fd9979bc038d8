"""Nodes added to a graph, under names of their own, at whatever opset the model has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from onnx import GraphProto

_AXES_ARE_INPUTS_FROM = {"ReduceSum": 13}
_AXES_OF_OTHERS_FROM = 18


class Nodes:
    """Writes nodes at the end of a graph; a value is the name of the tensor that holds it.

    Calling it appends one node, ``nodes("Add", a, b)``, and returns its output; what is not a name becomes a constant.
    The same call again returns the same value. Constants are nodes rather than initializers, which older formats
    (IR 3) want listed among the inputs.

    Parameters
    ----------
    graph : GraphProto
    opset : int
        Of the default domain.
    """

    def __init__(self, graph: GraphProto, opset: int) -> None:
        self.graph = graph
        self.opset = opset
        self._made: dict[tuple[Any, ...], str] = {}
        taken = names_in(graph)
        self.prefix = "normscale/"
        while any(name.startswith(self.prefix) for name in taken):
            self.prefix = "_" + self.prefix

    def __call__(self, op: str, *inputs: str | ArrayLike, **attributes: Any) -> str:
        """Append one node and return the name of its output."""
        from onnx import helper

        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        call = (op, *names, *sorted((key, str(value)) for key, value in attributes.items()))
        if call not in self._made:
            output = self._made[call] = f"{self.prefix}{op}_{len(self._made)}"
            self.graph.node.append(helper.make_node(op, names, [output], name=output, **attributes))
        return self._made[call]

    def constant(self, value: ArrayLike) -> str:
        """A tensor that never changes, of float64 unless it holds whole numbers."""
        from onnx import helper, numpy_helper

        array: NDArray[Any] = np.asarray(value)
        call = ("Constant", array.dtype.char, array.shape, array.tobytes())
        if call not in self._made:
            output = self._made[call] = f"{self.prefix}Constant_{len(self._made)}"
            tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
            self.graph.node.append(helper.make_node("Constant", [], [output], name=output, value=tensor))
        return self._made[call]

    def cast(self, value: str, dtype: type[np.generic]) -> str:
        """The same numbers in another type."""
        from onnx import helper

        return self("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reduce(self, op: str, value: str, axis: int, *, keepdims: bool = False) -> str:
        """``ReduceMax`` and its like over one axis, which became an input in the course of time."""
        if self.opset >= _AXES_ARE_INPUTS_FROM.get(op, _AXES_OF_OTHERS_FROM):
            return self(op, value, np.array([axis]), keepdims=int(keepdims))
        return self(op, value, axes=[axis], keepdims=int(keepdims))

    def rename(self, value: str, name: str) -> None:
        """Give a value the name under which the model offers it."""
        from onnx import helper

        self.graph.node.append(helper.make_node("Identity", [value], [name], name=f"{self.prefix}{name}"))


def names_in(graph: GraphProto) -> set[str]:
    """Every name of a tensor or node of a graph."""
    named = [*graph.input, *graph.output, *graph.value_info, *graph.initializer, *graph.node]
    return {item.name for item in named} | {name for node in graph.node for name in (*node.input, *node.output)}
