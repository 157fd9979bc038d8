"""The tensor before a softmax: where in a graph the logits were before they became probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_SQUASHING = ("Softmax", "LogSoftmax", "Sigmoid")
"""What comes out of these is no longer a logit."""
_SAME = ("Identity", "Cast", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Dropout", "Clip")
"""What comes out of these still is what went in, for telling what made it."""
_STEPS = 5
"""Nodes between exp(z) and what it is divided by: its sum, a small number added to it, a change of shape."""


class BeforeSoftmax(NamedTuple):
    """What squashed the logits, and the tensor that went into it."""

    operator: str
    tensor: str


def before_softmax(graph: GraphProto, name: str) -> BeforeSoftmax | None:
    """The softmax or its like that made a tensor, seen through nodes that only carry it on; None if there was none.

    A softmax that is written out counts, too: exp(z) over something made of exp(z), such as its sum in any spelling, or
    z less the logarithm of such a sum and the exponential of that; with or without the largest z taken off first.
    """
    return _Makers(graph).before_softmax(name)


class _Makers(dict[str, "NodeProto"]):
    """The node that made each tensor."""

    def __init__(self, graph: GraphProto) -> None:
        super().__init__((output, node) for node in graph.node for output in node.output)

    def before_softmax(self, name: str) -> BeforeSoftmax | None:
        node = self._maker(name)
        if node is None:
            return None
        if node.op_type in _SQUASHING:
            return BeforeSoftmax(node.op_type, node.input[0])
        if node.op_type in ("Log", "Exp"):
            inner = self.before_softmax(node.input[0])
            operator = (
                f"Log of a {inner.operator}" if inner and node.op_type == "Log" else "softmax that is written out"
            )
            return inner and inner._replace(operator=operator)
        if node.op_type == "Sub" and self._has_logarithm_of_sum(node.input[1]):
            return BeforeSoftmax("log-softmax that is written out", self._less_largest(node.input[0]))
        if node.op_type not in ("Div", "Mul"):
            return None
        for above, below in (node.input, reversed(node.input)):
            power = self._maker(above)
            if power is not None and power.op_type == "Exp" and any(one is power for one in self._before(below)):
                return BeforeSoftmax("softmax that is written out", self._less_largest(power.input[0]))
        return None

    def _maker(self, name: str) -> NodeProto | None:
        node = self.get(name)
        while node is not None and node.op_type in _SAME:
            node = self.get(node.input[0])
        return node

    def _before(self, name: str, steps: int = _STEPS) -> Iterator[NodeProto]:
        """The nodes that a tensor is made by, a few steps back."""
        node = self._maker(name)
        if node is not None and steps:
            yield node
            for one in node.input:
                yield from self._before(one, steps - 1)

    def _has_logarithm_of_sum(self, name: str) -> bool:
        made_by = {node.op_type for node in self._before(name)}
        return "ReduceLogSumExp" in made_by or {"Log", "Exp"} <= made_by

    def _less_largest(self, name: str) -> str:
        """The tensor before its largest number was taken off."""
        node = self._maker(name)
        if node is None or node.op_type != "Sub":
            return name
        takes_off_largest = any(one.op_type in ("ReduceMax", "TopK") for one in self._before(node.input[1], 3))
        return str(node.input[0]) if takes_off_largest else name
