"""Small ONNX classifiers, made by hand, and rows to fit detectors on."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

import normscale as ns

CLASSES, FEATURES = 5, 4

Array = NDArray[Any]


def elem_type(dtype: type[np.generic]) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def passing(
    dtype: type[np.generic] = np.float32,
    *,
    opset: int = 17,
    ir_version: int = 8,
    width: int = CLASSES,
    batch: int | str | None = "n",
    tail: tuple[NodeProto, ...] = (),
    outputs: tuple[str, ...] = ("logits",),
) -> ModelProto:
    """A classifier that multiplies its input by the identity: what is fed in are the logits, to the bit."""
    kind = elem_type(dtype)
    weights = numpy_helper.from_array(np.eye(width, dtype=dtype), "weights")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["image", "weights"], ["logits"]), *tail],
        "classifier",
        [helper.make_tensor_value_info("image", kind, [batch, width])],
        [helper.make_tensor_value_info(name, kind, [batch, width]) for name in outputs],
        [weights],
    )
    if ir_version < 4:  # there an initializer is also an input
        graph.input.append(helper.make_tensor_value_info("weights", kind, [width, width]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def with_features(dtype: type[np.generic] = np.float32) -> ModelProto:
    """Features in; out come features less their first, which is inside, and the logits of two layers."""
    kind = elem_type(dtype)
    rng = np.random.default_rng(3)
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["image"], ["hidden"]),
            helper.make_node("MatMul", ["hidden", "weights"], ["logits"]),
        ],
        "two layers",
        [helper.make_tensor_value_info("image", kind, ["n", FEATURES])],
        [helper.make_tensor_value_info("logits", kind, ["n", CLASSES])],
        [numpy_helper.from_array(rng.normal(size=(FEATURES, CLASSES)).astype(dtype), "weights")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: ModelProto, **inputs: Array) -> dict[str, Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def training(n: int = 400, width: int = CLASSES, seed: int = 0) -> ns.ModelOutputs:
    """Outputs of a classifier that is right most of the time, with features that tell the classes apart."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, width, n)
    logits = rng.normal(scale=2.0, size=(n, width)) + 7.0 * np.eye(width)[labels]
    features = np.abs(rng.normal(size=(n, FEATURES)) + labels[:, None])
    return taken(logits).replace(features=features, labels=labels)


def taken(rows: Array) -> ns.ModelOutputs:
    """Rows under every name that a detector of logits may read them by."""
    return ns.ModelOutputs(rows, perturbed_logits=rows)


def logits(n: int, dtype: type[np.generic] = np.float64, width: int = CLASSES, seed: int = 1) -> Array:
    """Rows to score, from hopeless to very confident."""
    rng = np.random.default_rng(seed)
    rows = (
        rng.normal(scale=2.0, size=(n, width)) + rng.uniform(0, 20, (n, 1)) * np.eye(width)[rng.integers(0, width, n)]
    )
    return rows.astype(dtype)
