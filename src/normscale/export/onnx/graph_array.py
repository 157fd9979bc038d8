"""Tensors of an ONNX graph that are computed with like torch tensors: each operation appends a node."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from onnx import GraphProto

_AXES_ARE_INPUTS_FROM = {"ReduceSum": 13}
_AXES_OF_OTHERS_FROM = 18


class GraphWriter:
    """Appends nodes to a graph under names of their own, at whatever opset the model has.

    ``write("Add", a, b)`` appends one node and returns its output; numbers become constants. The same call again
    returns the same array. Constants are nodes: older formats (IR 3) want initializers listed among the inputs.
    """

    def __init__(self, graph: GraphProto, opset: int) -> None:
        self.graph, self.opset = graph, opset
        self._made: dict[tuple[Any, ...], str] = {}
        taken = names_in(graph)
        self.prefix = "normscale/"
        while any(name.startswith(self.prefix) for name in taken):
            self.prefix = "_" + self.prefix

    def __call__(self, op: str, *inputs: _GraphArray | ArrayLike, **attributes: Any) -> _GraphArray:
        """Append one node and return its output."""
        names = [one.name if isinstance(one, _GraphArray) else self.constant(one).name for one in inputs]
        key = (op, *names, *sorted((name, str(value)) for name, value in attributes.items()))
        return _GraphArray(self, self._node(key, op, names, attributes))

    def tensor(self, name: str) -> _GraphArray:
        """A tensor that the graph has already."""
        return _GraphArray(self, name)

    def constant(self, value: ArrayLike) -> _GraphArray:
        """A tensor that never changes, of float64 unless it holds whole numbers."""
        from onnx import numpy_helper

        array: NDArray[Any] = np.array(value, order="C")
        key = ("Constant", array.dtype.char, array.shape, array.tobytes())
        name = self._node(key, "Constant", [], {"value": numpy_helper.from_array(array)})
        return _GraphArray(self, name, array.shape)

    def _node(self, key: tuple[Any, ...], op: str, inputs: list[str], attributes: dict[str, Any]) -> str:
        from onnx import helper

        if key not in self._made:
            output = self._made[key] = f"{self.prefix}{op}_{len(self._made)}"
            self.graph.node.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return self._made[key]

    def rename(self, array: _GraphArray, name: str) -> None:
        """Give an array the name under which the model offers it."""
        from onnx import helper

        self.graph.node.append(helper.make_node("Identity", [array.name], [name], name=f"{self.prefix}{name}"))


def _operation(op: str) -> Callable[..., _GraphArray]:
    return lambda self, *others: self.write(op, self, *others)


def _reduction(op: str) -> Callable[..., _GraphArray]:
    def reduce(self: _GraphArray, dim: int, keepdim: bool = False) -> _GraphArray:
        if self.write.opset >= _AXES_ARE_INPUTS_FROM.get(op, _AXES_OF_OTHERS_FROM):
            return self.write(op, self, np.array([dim]), keepdims=int(keepdim))
        return self.write(op, self, axes=[dim], keepdims=int(keepdim))

    return reduce


class _GraphArray:
    """A tensor of a graph, with those methods of a torch tensor that :mod:`normscale.export.scoring` needs.

    ``shape`` is known for constants only.
    """

    def __init__(self, write: GraphWriter, name: str, shape: tuple[int, ...] = ()) -> None:
        self.write, self.name, self.shape = write, name, shape

    __add__, __sub__, __mul__, __truediv__ = map(_operation, ("Add", "Sub", "Mul", "Div"))
    __matmul__, __gt__, __lt__, __and__, __or__ = map(_operation, ("MatMul", "Greater", "Less", "And", "Or"))
    __neg__, __invert__, exp, log, sqrt, abs, isnan = map(
        _operation, ("Neg", "Not", "Exp", "Log", "Sqrt", "Abs", "IsNaN")
    )
    amax, amin, sum, mean = map(_reduction, ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean"))

    @property
    def T(self) -> _GraphArray:  # noqa: N802 - as torch calls it
        return self.write("Transpose", self)

    def __getitem__(self, rows: _GraphArray | int | slice) -> _GraphArray:
        if isinstance(rows, slice):
            return self.write("Slice", self, np.array([rows.start]), np.array([np.iinfo(np.int64).max]))
        return self.write("Gather", self, rows)

    def double(self) -> _GraphArray:
        return self.write("Cast", self, to=11)  # TensorProto.DOUBLE

    def where(self, condition: _GraphArray, other: _GraphArray | float) -> _GraphArray:
        return self.write("Where", condition, self, other)

    def masked_fill(self, mask: _GraphArray, value: float) -> _GraphArray:
        return self.write("Where", mask, value, self)

    def clamp_min(self, least: _GraphArray | float) -> _GraphArray:
        return self.write("Where", self < least, least, self)  # NaN stays NaN, which Max need not respect

    def clamp_max(self, most: _GraphArray | float) -> _GraphArray:
        return self.write("Where", self > most, most, self)

    def isfinite(self) -> _GraphArray:
        return self.abs() < math.inf

    def all(self, dim: int) -> _GraphArray:
        return self.double().amin(dim) > 0.5

    def argmax(self, dim: int, keepdim: bool = False) -> _GraphArray:
        return self.write("ArgMax", self, axis=dim, keepdims=int(keepdim))

    def cumsum(self, dim: int) -> _GraphArray:
        return self.write("CumSum", self, dim)

    def reshape(self, *shape: int) -> _GraphArray:
        return self.write("Reshape", self, np.array(shape))

    def scatter(self, dim: int, index: _GraphArray, value: float) -> _GraphArray:
        return self.write("ScatterElements", self, index, index.double() * 0.0 + value, axis=dim)


def names_in(graph: GraphProto) -> set[str]:
    """Every name of a tensor or node of a graph."""
    named = [*graph.input, *graph.output, *graph.value_info, *graph.initializer, *graph.node]
    return {item.name for item in named} | {name for node in graph.node for name in (*node.input, *node.output)}
