"""The stress grids on the networks of the paper's sets, as a table for docs/stress.md, from docs/results/."""

from __future__ import annotations

import json
from pathlib import Path

NAMES = {
    "stream_aware+ensemble": "stream-aware ensemble",
    "stream_aware+energy": "stream-aware Energy",
    "robust_norm_scaling": "robust norm-scaling",
    "norm_scaling msp w=1": "running norm-scaling (the paper's)",
    "norm_scaling msp w=1000": "running, training counts as 1000 rows",
    "norm_scaling msp frozen": "frozen norm-scaling",
    "ensemble": "ensemble, as fitted",
    "energy": "Energy",
    "max_logit": "MaxLogit",
    "msp": "MSP",
}


def stress_table(results: Path) -> str:
    """Mean AUROC over all kinds of streams, and the worst kind against the best of the plain static detectors."""
    networks = {}
    for path in sorted(results.glob("*-small-stress.json")):
        record = json.loads(path.read_text())
        networks[path.stem.removesuffix("-stress")] = {row["method"]: row for row in record["summary"]}
    if not networks:
        return ""
    lines = [f"| mean AUROC (worst kind of stream) | {' | '.join(networks)} |", "|---" * (len(networks) + 1) + "|"]
    for method, title in NAMES.items():
        cells = [
            f"{rows[method]['mean_auroc']:.3f} ({rows[method]['worst']:+.3f})".removeprefix("0")
            if method in rows
            else ""
            for rows in networks.values()
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
