"""Point 4 on outputs: what the size of the OoD set does to AUPR, and which FPR95 the paper's figures resemble."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from normscale.bench.paper.audit.findings import UNCHECKED, Finding, verdict_of
from normscale.bench.paper.audit.given import Given, shuffled
from normscale.bench.paper.published import paper_value
from normscale.detectors.norm_scaling import NormScaling
from normscale.metrics.ranking import evaluate
from normscale.scores import energy_score, msp_score

COPIES = (1, 2, 4, 8)


def check_positive(given: Given) -> list[Finding]:
    """Both findings."""
    return [_growing_ood_set(given), _fpr95(given)]


def _growing_ood_set(given: Given) -> Finding:
    """Repeat every OoD row: the scores stay as they are, only the share of OoD inputs grows."""
    id_scores = msp_score(given.test.logits)
    details: list[dict[str, Any]] = []
    for name, ood in given.ood.items():
        scores = msp_score(ood.logits)
        for copies in COPIES:
            result = evaluate(id_scores, np.tile(scores, copies))
            numbers = {metric: round(getattr(result, metric), 6) for metric in ("auroc", "aupr_out", "aupr_in")}
            details.append({"ood_set": name, "copies": copies, **numbers})
    first, last = ([row for row in details if row["copies"] == copies] for copies in (COPIES[0], COPIES[-1]))
    as_said = [
        a["aupr_out"] <= b["aupr_out"] and a["aupr_in"] >= b["aupr_in"] for a, b in zip(first, last, strict=True)
    ]
    shown, grown = first[0], last[0]
    return Finding(
        4,
        "The sign by which the tables were read: a larger OoD set raises AUPR only if OoD is positive.",
        f"MSP on {shown['ood_set']}, every OoD row {COPIES[-1]} times: AUROC stays {shown['auroc']:.4f}, AUPR with OoD "
        f"positive {shown['aupr_out']:.4f} to {grown['aupr_out']:.4f}, with in-distribution positive "
        f"{shown['aupr_in']:.4f} to {grown['aupr_in']:.4f}.",
        verdict_of(all(as_said)),
        f"So on {sum(as_said)} of {len(as_said)} OoD sets.",
        details,
    )


def _fpr95(given: Given) -> Finding:
    """Which of the two FPR95 of energy and running norm-scaling is nearer to the paper's, set by set."""
    claim = "FPR95 counts OoD as positive (the paper does not say)."
    details: list[dict[str, Any]] = []
    if given.in_set is not None:
        detector = NormScaling().fit(given.train)
        for name, ood in given.ood.items():
            results = {
                "energy": evaluate(energy_score(given.test.logits), energy_score(ood.logits)),
                "norm_scaling": shuffled(given, name, lambda rows: copy.copy(detector).stream(rows)),
            }
            for method, result in results.items():
                printed = paper_value(given.in_set, name, method, "fpr95_out")
                if printed is not None:
                    numbers = {"fpr95_out": round(result.fpr95_out, 4), "fpr95_in": round(result.fpr95_in, 4)}
                    details.append({"ood_set": name, "method": method, "paper": printed.mean, **numbers})
    if not details:
        return Finding(
            4,
            claim,
            "The tables alone cannot tell: both readings fit any AUROC.",
            UNCHECKED,
            "It takes outputs on the paper's own sets; name the one the network was trained on (in_set, --in-set).",
        )
    nearer = [abs(row["fpr95_out"] - row["paper"]) < abs(row["fpr95_in"] - row["paper"]) for row in details]
    off = {
        metric: math.fsum(abs(row[metric] - row["paper"]) for row in details) / len(details)
        for metric in ("fpr95_out", "fpr95_in")
    }
    return Finding(
        4,
        claim,
        f"Measured FPR95 is nearer to the paper's with OoD as positive in {sum(nearer)} of {len(nearer)} cases; mean "
        f"distance {off['fpr95_out']:.3f}, and {off['fpr95_in']:.3f} with in-distribution.",
        verdict_of(off["fpr95_out"] < off["fpr95_in"]),
        "Energy and running norm-scaling on the sets that the paper has too.",
        details,
    )
