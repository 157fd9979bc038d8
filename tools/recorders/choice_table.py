"""How well detectors can be chosen without OoD rows, as a table for docs/choosing.md, from docs/results/choice.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

Numbers = Mapping[str, float]
COLUMNS = {"frozen": "as fitted", "stream_10": "stream 10 %", "stream_50": "stream 50 %"}


def _by(*stand_ins: str) -> Callable[[dict[str, Any]], Numbers]:
    """The candidate that is best on stand-ins for OoD rows."""

    def chosen(entry: dict[str, Any]) -> Numbers:
        best: Numbers = max(entry["candidates"].values(), key=lambda one: fmean(one[name] for name in stand_ins))
        return best

    return chosen


def _always(name: str) -> Callable[[dict[str, Any]], Numbers]:
    return lambda entry: entry["candidates"][name]  # type: ignore[no-any-return]


def _in_hindsight(entry: dict[str, Any]) -> Numbers:
    return {column: max(one[column] for one in entry["candidates"].values()) for column in COLUMNS}


RULES: dict[str, Callable[[dict[str, Any]], Numbers]] = {
    "best of the fourteen in hindsight": _in_hindsight,
    "**auto**": lambda entry: entry["auto"],
    "always ensemble": _always("ensemble"),
    "always ViM": _always("vim"),
    "always KNN": _always("knn"),
    "always Energy": _always("energy"),
    "by classes left out": _by("classes"),
    "by made-up features": _by("halves"),
    "by both": _by("classes", "halves"),
    "by mistakes": _by("mistakes"),
    "by all three": _by("classes", "halves", "mistakes"),
    "auto with logits alone": lambda entry: entry["auto_logits_alone"],
}


def choice_table(results: Path) -> str:
    """A line for every rule: as fitted on each set of outputs, then the means, as fitted and in streams."""
    record = json.loads((results / "choice.json").read_text())
    heads = ["mean AUROC", *record, *(f"mean, {title}" for title in COLUMNS.values())]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for title, rule in RULES.items():
        found = [rule(entry) for entry in record.values()]
        cells = [one["frozen"] for one in found] + [fmean(one[column] for one in found) for column in COLUMNS]
        lines.append(f"| {title} | {' | '.join(f'{cell:.3f}'.removeprefix('0') for cell in cells)} |")
    return "\n".join(lines) + "\n"
