"""Rows of a stress grid with made-up numbers."""

from __future__ import annotations

from typing import Any

from normscale.bench.experiments.measurement import Measurement, StreamKind
from normscale.bench.paper.presets import FROZEN, RUNNING

TITLES = {
    RUNNING: "Norm-Scaling",
    FROZEN: "Norm-Scaling, frozen",
    "norm_scaling msp w=train": "norm_scaling msp w=train",
    "msp": "MSP",
    "max_logit": "MaxLogit",
    "energy": "Energy",
}
EVEN = StreamKind(0.5, "shuffled", "balanced")


def stress_row(
    method: str, auroc: float, fpr95_out: float = 0.2, kind: StreamKind = EVEN, ood_set: str = "noise", **others: Any
) -> Measurement:
    """A row; norm-scaling with a prior weight and a detector that is not known here run, the others do not."""
    runs = "w=" in method or method == RUNNING or method not in TITLES
    values: dict[str, Any] = {"parameters": {}, "n_id": 500, "n_ood": 500, "seed": 0, **others}
    return Measurement(
        ood_set=ood_set,
        method=method,
        detector=method.split()[0].removesuffix("_frozen"),
        title=TITLES.get(method, method),
        setting="stream" if runs else "frozen",
        metrics={"auroc": auroc, "fpr95_out": fpr95_out},
        stream=kind,
        **values,
    )
