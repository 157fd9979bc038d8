"""The tensor before a softmax: where in a graph the logits were before they became probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_SQUASHING = ("Softmax", "LogSoftmax", "Sigmoid")
"""What comes out of these is no longer a logit."""
_SAME = ("Identity", "Cast", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Dropout")
"""What comes out of these still is what went in, for telling what made it."""
_SUMS = ("ReduceSum", "ReduceL1")


class BeforeSoftmax(NamedTuple):
    """What squashed the logits, and the tensor that went into it."""

    operator: str
    tensor: str


def before_softmax(graph: GraphProto, name: str) -> BeforeSoftmax | None:
    """The softmax or its like that made a tensor, seen through nodes that only carry it on; None if there was none.

    A softmax that was written out, exp(z) / sum exp(z) with or without the largest z taken off first, counts too.
    """
    makers = {output: node for node in graph.node for output in node.output}
    node = _through(makers, name)
    if node is None:
        return None
    if node.op_type in _SQUASHING:
        return BeforeSoftmax(node.op_type, node.input[0])
    if node.op_type == "Log":
        inner = before_softmax(graph, node.input[0])
        return None if inner is None else BeforeSoftmax(f"Log of a {inner.operator}", inner.tensor)
    if node.op_type != "Div":
        return None
    above, below = (_through(makers, one) for one in node.input)
    if above is None or below is None or above.op_type != "Exp" or below.op_type not in _SUMS:
        return None
    if _through(makers, below.input[0]) is not above:
        return None
    start = above.input[0]
    shifted = _through(makers, start)
    if shifted is not None and shifted.op_type == "Sub":
        largest = _through(makers, shifted.input[1])
        if largest is not None and largest.op_type == "ReduceMax" and largest.input[0] == shifted.input[0]:
            start = shifted.input[0]
    return BeforeSoftmax("softmax that is written out", start)


def _through(makers: dict[str, NodeProto], name: str) -> NodeProto | None:
    node = makers.get(name)
    while node is not None and node.op_type in _SAME:
        node = makers.get(node.input[0])
    return node
