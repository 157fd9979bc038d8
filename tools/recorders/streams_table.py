"""What streams teach every detector, as tables for docs/robust.md, from docs/results/streams-*.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

AWARE = "stream_aware+"
SHOWN = {
    "energy": "Energy",
    "centred": "centred Energy",
    "msp": "MSP",
    "present_classes": "frozen norm-scaling",
    "knn": "KNN",
    "vim": "ViM",
    "relative_mahalanobis": "relative Mahalanobis",
    "fdbd": "fDBD",
    "ensemble": "ensemble",
}
OTHERS = {
    "robust_norm_scaling": "robust norm-scaling",
    "norm_scaling": "running norm-scaling",
    "rtl": "RTL (Energy)",
    "oodd": "OODD",
}


def _by_name(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in record["methods"]}


def _three(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1)


def streams_tables(results: Path) -> str:
    """Both tables, for every network that was measured."""
    records = {
        path.stem.removeprefix("streams-"): json.loads(path.read_text())
        for path in sorted(results.glob("streams-*.json"))
    }
    if not records:
        return ""
    lines = [f"| mean AUROC over the kinds of streams | {' | '.join(records)} |", "|---" * (len(records) + 1) + "|"]
    for name, title in SHOWN.items():
        cells = []
        for record in records.values():
            rows = _by_name(record)
            aware = rows[AWARE + name]
            cells.append(
                f"{_three(rows[name]['mean_auroc'])} -> {_three(aware['mean_auroc'])} ({aware['worst_gain']:+.3f})"
            )
        lines.append(f"| {title} -> stream-aware (worst cell) | {' | '.join(cells)} |")
    for name, title in OTHERS.items():
        cells = [_three(_by_name(record)[name]["mean_auroc"]) for record in records.values()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    kinds = list(next(iter(next(iter(records.values()))["false_alarms"].values())))
    lines += ["", f"| flagged of ID streams in %, nominal 5 | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for network, record in records.items():
        for name, found in record["false_alarms"].items():
            title = f"stream-aware {SHOWN[name.removeprefix(AWARE)]}" if name.startswith(AWARE) else OTHERS[name]
            lines.append(f"| {network}: {title} | {' | '.join(f'{100 * found[kind]:.1f}' for kind in kinds)} |")
    return "\n".join(lines) + "\n"
