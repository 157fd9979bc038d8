"""How the networks of a run learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from normscale.bench.report.figures.style import one_axes

_SEED_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7b61c4")


def draw_training(logs: Mapping[int, Sequence[Mapping[str, Any]]], in_set: str) -> Figure:
    """Draw the accuracy on the validation part after every epoch, a line for every seed."""
    figure, axes = one_axes(f"Validation accuracy while training on {in_set}", height=2.9)
    for i, (seed, log) in enumerate(logs.items()):
        epochs, values = [line["epoch"] for line in log], [line["validation_accuracy"] for line in log]
        axes.plot(epochs, values, marker="o", markersize=3, color=_SEED_COLOURS[i % 7], label=f"seed {seed}")
    axes.set_xlabel("epoch")
    axes.set_ylabel("accuracy")
    axes.legend(loc="lower right")
    return figure
