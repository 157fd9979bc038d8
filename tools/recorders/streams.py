"""Write what streams teach every detector, on one network's outputs, to docs/results/, with the command and commit.

    python tools/record.py streams docs/results/streams-NAME.json --train T --id I --ood O [--ood O ...]

A part of the stress grid (18 kinds of streams) for several detectors as fitted, for each of them made stream-aware, and
for the published rivals in kind. Every detector scores every row once: what its stream-aware form adds needs only the
scores and the outputs. Also the false alarms on in-distribution streams, with a threshold set for 5 % on the other half
of the test set. Paths are recorded by their last two parts.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import normscale as ns
from normscale.bench.experiments.stress import stress
from normscale.jobs import read, read_named
from recorders.provenance import commit, rounded, short
from recorders.robust import SWEEP_GRID, false_alarms

BASES = ("energy", "centred", "msp", "present_classes", "knn", "vim", "relative_mahalanobis", "fdbd", "ensemble")
RIVALS = ("norm_scaling", "rtl", "oodd")
AWARE = "stream_aware+"
ROBUST = "robust_norm_scaling"


@ns.register
class KnownScore(ns.Detector):
    """Scores that were computed before, as an array of the outputs."""

    name, title, needs_fit = "known_score", "known score", False
    parameters = {"of": "the detector that gave the scores"}  # noqa: RUF012 - never changed

    def __init__(self, of: str = "energy") -> None:
        self.of = of
        self.reads = (of,)

    def _score(self, outputs: ns.ModelOutputs, threads: int) -> Any:
        return outputs.array(self.of)[:, 0].copy()


def column(name: str) -> str:
    """The array that holds the scores of a detector."""
    return f"score_of_{name}"


def with_scores(train: ns.ModelOutputs, sets: dict[str, ns.ModelOutputs]) -> tuple[ns.ModelOutputs, dict[str, Any]]:
    """Outputs with the scores of every base as arrays; those of training rows by copies that have not seen them."""
    for name in BASES:
        detector = ns.make_detector(name)
        train = train.replace(**{column(name): detector._fit_held_out(train)[:, None]})
        for key, rows in sets.items():
            found = detector.score(rows.only(*detector.reads))[:, None]
            sets[key] = rows.replace(**{column(name): found})
        print(f"scored by {name}", file=sys.stderr, flush=True)
    return train, sets


def detectors(train: ns.ModelOutputs) -> dict[str, ns.Detector]:
    """Every method, fitted, by name."""
    found: dict[str, ns.Detector] = {}
    for name in BASES:
        known = KnownScore(column(name))
        found[name] = known
        found[AWARE + name] = ns.StreamAware(known).fit(train)
    return found | {name: ns.make_detector(name).fit(train) for name in (ROBUST, *RIVALS)}


def summary(cells: dict[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    """Per method: its mean AUROC, and beside its base the worst cell and the gain where a tenth or more is OoD."""
    rows = []
    for name in next(iter(cells.values())):
        means = {cell: numbers[name].auroc for cell, numbers in cells.items()}
        row: dict[str, Any] = {"method": name, "mean_auroc": fmean(means.values())}
        base = name.removeprefix(AWARE)
        if base != name:
            gains = {cell: means[cell] - numbers[base].auroc for cell, numbers in cells.items()}
            worst = min(gains, key=lambda cell: gains[cell])
            row |= {"worst_gain": gains[worst], "worst_cell": list(worst)}
            row["below_-0.005"] = sum(gain < -0.005 for gain in gains.values())
            row["gain_from_10_%"] = fmean(gain for cell, gain in gains.items() if cell.share >= 0.1)
        rows.append({key: rounded(value) for key, value in row.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--train", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--ood", action="append", required=True)
    parser.add_argument("--head", help="An .npz with weight and bias, where the training table has none.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    arrays = ["logits", "features"]
    train, test = read(options.train, arrays), read(options.id, arrays)
    if options.head:
        head = np.load(options.head)
        train = ns.ModelOutputs(train.logits, train.features, train.labels, head=(head["weight"], head["bias"]))
    ood = {name: rows.only(*arrays) for name, rows in read_named(options.ood).items()}
    train, sets = with_scores(train, {"": test, **ood})
    test = sets.pop("")
    methods = detectors(train)
    result = stress(test, sets, methods, grid=SWEEP_GRID, seed=options.seed)
    cells = result.means()
    record = {
        "command": "python tools/record.py streams " + " ".join(map(short, sys.argv[1:])),
        "commit": commit(),
        "date": date.today().isoformat(),
        "rows": {"train": len(train), "test": len(test), **{name: len(rows) for name, rows in sets.items()}},
        "methods": summary(cells),
        "false_alarms": {
            name: false_alarms(detector, test)
            for name, detector in methods.items()
            if name == ROBUST or name in (AWARE + "centred", AWARE + "knn", AWARE + "ensemble")
        },
        "cells": [
            [*cell, {name: rounded(found.auroc) for name, found in numbers.items()}] for cell, numbers in cells.items()
        ],
    }
    options.target.write_text(json.dumps(record, indent=1) + "\n")
