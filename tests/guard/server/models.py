"""A linear classifier in ONNX, and a guard of three classes that fits the examples of the OpenAPI document."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import normscale as ns
from normscale._validate import FloatArray

Weights = NDArray[np.float32]
CLASSES = 3


def linear_model(path: Path, features: int, classes: int, *tail: str) -> tuple[Weights, Weights]:
    """Write it; its weights (features, classes) and bias.

    ``tail`` are operators that follow, each of the tensors before: ``Exp logits -> powers``.
    """
    helper = pytest.importorskip("onnx.helper", reason="the extra [onnx] is not installed")
    checker = pytest.importorskip("onnx.checker")
    random = np.random.default_rng(5)
    weights = random.normal(size=(features, classes)).astype(np.float32)
    bias = random.normal(size=classes).astype(np.float32)
    steps = [step.replace("->", " ").split() for step in tail]
    nodes = [helper.make_node(operator, inputs, [made]) for operator, *inputs, made in steps]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["inputs", "weights", "bias"], ["logits"]), *nodes],
        "linear",
        [helper.make_tensor_value_info("inputs", 1, ["n", features])],
        [helper.make_tensor_value_info(nodes[-1].output[0] if nodes else "logits", 1, ["n", classes])],
        [
            helper.make_tensor("weights", 1, weights.shape, weights.tobytes(), raw=True),
            helper.make_tensor("axes", 7, [1], [1]),
            helper.make_tensor("bias", 1, bias.shape, bias.tobytes(), raw=True),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return weights, bias


def three_classes(n: int = 500, seed: int = 3) -> FloatArray:
    """Logits of a made-up classifier: one class stands out in every row."""
    random = np.random.default_rng(seed)
    rows = random.normal(0.0, 2.0, (n, CLASSES))
    rows[np.arange(n), random.integers(0, CLASSES, n)] += 5.0
    return rows


def three_class_guard(path: Path) -> ns.NormScaling:
    """Write it; the detector itself."""
    detector = ns.NormScaling().fit(three_classes()).set_threshold(three_classes(seed=4))
    detector.save(path)
    return detector
