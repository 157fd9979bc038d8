"""Point 3: how many maximum softmax probabilities are exactly 1 in float32, and what that does to a ranking."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._validate import Rows
from normscale.bench.paper.audit.findings import Finding, verdict_of
from normscale.bench.paper.audit.given import Given
from normscale.metrics.ranking import evaluate
from normscale.scores import msp_score

FEW = 0.01
"""A smaller share of inputs with a probability of exactly 1 hardly matters."""


def float32_msp(logits: Rows, factor: float = 1.0) -> NDArray[np.float32]:
    """The maximum softmax probability as a network computes it, in float32; shape (n,).

    Examples
    --------
    >>> float32_msp(np.array([[0.0, 0.0], [20.0, 0.0], [40.0, 0.0]])).tolist()
    [0.5, 1.0, 1.0]
    """
    rows = logits.astype(np.float32) * np.float32(factor)
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    top: NDArray[np.float32] = (powers / powers.sum(axis=1, keepdims=True)).max(axis=1)
    return top


def check_saturation(given: Given) -> list[Finding]:
    """With the logits as they are, and twice as large, as a longer training makes them."""
    return [
        _finding(given, 1.0, "Thresholding the maximum softmax probability ranks the inputs."),
        _finding(given, 2.0, "It still does when the logits are twice as large, as after longer training."),
    ]


def _finding(given: Given, factor: float, claim: str) -> Finding:
    narrow, exact = float32_msp(given.test.logits, factor), msp_score(given.test.logits, 1.0 / factor)
    share = float((narrow == np.float32(1.0)).mean())
    details: list[dict[str, Any]] = []
    for name, ood in given.ood.items():
        rounded = evaluate(-narrow, -float32_msp(ood.logits, factor))
        whole = evaluate(exact, msp_score(ood.logits, 1.0 / factor))
        details.append(
            {
                "ood_set": name,
                "auroc_float32": round(rounded.auroc, 4),
                "auroc_log": round(whole.auroc, 4),
                "fpr95_out_float32": round(rounded.fpr95_out, 4),
                "fpr95_out_log": round(whole.fpr95_out, 4),
            }
        )
    worst = max(details, key=lambda row: row["auroc_log"] - row["auroc_float32"])
    changed = any(
        row[f"{metric}_float32"] != row[f"{metric}_log"] for row in details for metric in ("auroc", "fpr95_out")
    )
    effect = (
        f"Most hurt: {worst['ood_set']}, AUROC {worst['auroc_float32']:.4f} instead of {worst['auroc_log']:.4f}, FPR95 "
        f"{worst['fpr95_out_float32']:.4f} instead of {worst['fpr95_out_log']:.4f}."
        if changed
        else "No AUROC and no FPR95 changes in its fourth digit."
    )
    return Finding(
        3,
        claim,
        f"{100 * share:.1f} % of the test inputs have a probability of exactly 1 in float32. {effect}",
        verdict_of(share < FEW),
        "Hardly an input saturates."
        if share < FEW
        else "They all tie; log-odds, log sum_{j != max} exp(z_j - z_max), rank them exactly.",
        details,
    )
