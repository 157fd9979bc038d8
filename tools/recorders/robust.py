"""Write what robust norm-scaling does on one network's outputs to docs/results/, with the command and commit.

    python tools/record.py robust docs/results/robust-NAME.json --train T --id I --ood O [--ood O ...]
        [--shifted S ...] [--sweep]

Three things: the stress grid against the methods without running statistics; false alarms on in-distribution streams
of four kinds, with a threshold set for 5 % on the other half of the test set; what ``state.covariate_shift`` says about
in-distribution streams, mixtures with every OoD set, and ``--shifted`` in-distribution outputs. ``--sweep`` also
measures a part of the grid (18 cells) for other values of every parameter. Paths are recorded by their last two parts.
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
from normscale.bench.experiments.measurement import StreamKind
from normscale.bench.experiments.stress import Grid, stress, stress_preset
from normscale.bench.experiments.stress_result import StressResult, summarise
from normscale.bench.paper.stress_presets import FROZEN, RUNNING, STATICS, STRESS_PRESETS, stress_methods
from normscale.jobs import read, read_named
from recorders.provenance import commit, rounded, short

ROBUST = ns.RobustNormScaling.name
SWEEP: dict[str, tuple[float, ...]] = {
    "memory": (12.0, 25.0, 50.0, 100.0, 200.0),
    "prior_weight": (1.0, 2.5, 10.0, 20.0),
    "tolerance": (0.6, 0.7, 0.9, 1.0),
}
SWEEP_GRID = Grid((0.01, 0.1, 0.5), ("shuffled", "bursts"), STRESS_PRESETS["robust"].grid.balances)
SEEDS = range(5)
EVEN = StreamKind(0.5, "shuffled", "balanced")
"""The stream in which half of the rows are OoD, well mixed, with balanced classes: what is published most."""


def grid_numbers(result: StressResult) -> dict[str, Any]:
    """The four numbers of every method, and robust beside the best static method in every cell."""
    methods = [{k: rounded(v) for k, v in one._asdict().items()} for one in summarise(result, STATICS)]
    cells = []
    for cell, numbers in result.means().items():
        best = max((numbers[name] for name in STATICS), key=lambda found: found.auroc)
        ours = numbers[ROBUST]
        row = (*cell, ours.auroc, ours.fpr95_out, best.auroc, best.fpr95_out)
        cells.append([rounded(value) for value in row])
    shown = (ROBUST, RUNNING, "energy", FROZEN)
    paper: dict[str, dict[str, list[float]]] = {}
    for one in result.rows:
        if one.stream == EVEN and one.method in shown:
            paper.setdefault(one.ood_set, {})[one.method] = [rounded(one.auroc), rounded(one.fpr95_out)]
    head = ["share", "order", "balance", "auroc", "fpr95_out", "best_static_auroc", "best_static_fpr95_out"]
    return {"methods": methods, "paper_setting_auroc_fpr95_out": paper, "cells": [head, *cells]}


def id_streams(test: ns.ModelOutputs, rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    """Rows to set thresholds on, and rows of four in-distribution streams from the other half."""
    order = rng.permutation(len(test))
    held, rest = np.array_split(order, 2)
    classes = (test.predicted if test.labels is None else test.labels)[rest]
    one, *two = rng.choice(test.n_classes, 3, replace=False)
    dominant, others = rest[classes == one], rest[classes != one]
    few = min(len(dominant) // 4, len(others))
    return held, {
        "balanced": rest,
        "class-sorted": rest[np.argsort(classes, kind="stable")],
        "one class 80 %": rng.permutation(np.concatenate([dominant[: 4 * few], others[:few]])),
        "two classes missing": rest[~np.isin(classes, two)],
    }


def false_alarms(detector: ns.Detector, test: ns.ModelOutputs) -> dict[str, float]:
    """Share flagged of in-distribution streams, by kind; nominal is 0.05. Mean over seeds."""
    rates: dict[str, list[float]] = {}
    for seed in SEEDS:
        held, streams = id_streams(test, np.random.default_rng(seed))
        detector.reset().set_threshold(test[held], keep=0.95)
        for kind, rows in streams.items():
            flags = detector.decide(detector.reset().stream(test[rows]), test[rows])
            rates.setdefault(kind, []).append(float(flags.mean()))
    return {kind: round(fmean(found), 4) for kind, found in rates.items()}


def robust_false_alarms(train: ns.ModelOutputs, test: ns.ModelOutputs, **parameters: float) -> dict[str, float]:
    """Those of robust norm-scaling, and of its form that never learns."""
    frozen = false_alarms(ns.RobustNormScaling(prior_weight=float("inf")).fit(train), test)
    learning = false_alarms(ns.RobustNormScaling(**parameters).fit(train), test)
    return learning | {f"frozen {kind}": rate for kind, rate in frozen.items()}


def shifts(train: Any, test: Any, ood: dict[str, Any], shifted: dict[str, Any]) -> dict[str, float]:
    """``covariate_shift`` at the end of shuffled streams."""
    detector = ns.RobustNormScaling().fit(train)
    rng = np.random.default_rng(0)

    def of(logits: Any) -> float:
        detector.reset().stream(logits[rng.permutation(len(logits))])
        return round(detector.state.covariate_shift, 3)

    found = {"in-distribution": of(test.logits)}
    for name, rows in ood.items():
        for share in (0.5, 0.75, 1.0):
            n = min(len(rows), int(len(test) * share / (1 - share)) if share < 1 else len(rows))
            parts = [test.logits[: round(n * (1 - share) / share)], rows.logits[:n]]
            found[f"{100 * share:g} % {name}"] = of(np.concatenate(parts))
    return found | {f"shifted: {name}": of(rows.logits) for name, rows in shifted.items()}


def sweep(train: Any, test: Any, ood: Any, seed: int) -> list[dict[str, Any]]:
    """The grid's numbers and the false alarms for other parameters, one changed at a time."""
    tried = [{name: value} for name, values in SWEEP.items() for value in values]
    methods = stress_methods(train, "robust")
    methods |= {json.dumps(one): ns.RobustNormScaling(**one).fit(train) for one in tried}
    found = stress(test, ood, methods, grid=SWEEP_GRID, seed=seed)
    summaries = {one.method: one for one in summarise(found, STATICS)}
    even = {name: numbers.auroc for name, numbers in found.means()[EVEN].items()}
    rows = []
    for one in tried:
        found = summaries[json.dumps(one)]
        alarms = robust_false_alarms(train, test, **one)
        numbers = {
            "worst": found.worst,
            "gain_kept": (even[found.method] - even["energy"]) / (even[RUNNING] - even["energy"]),
            "mean_auroc": found.mean_auroc,
        }
        numbers |= {"mean_fpr95_out": found.mean_fpr95_out}
        rows.append({**one, **{k: rounded(v) for k, v in numbers.items()}, "class-sorted": alarms["class-sorted"]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--train", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--ood", action="append", required=True)
    parser.add_argument("--shifted", action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    train, test, ood = read(options.train), read(options.id), read_named(options.ood)
    result = stress_preset(STRESS_PRESETS["robust"], train, test, ood, seed=options.seed)
    record: dict[str, Any] = {
        "command": " ".join(["python tools/record.py robust", *map(short, sys.argv[1:])]),
        "commit": commit(),
        "date": date.today().isoformat(),
        "version": ns.__version__,
        "positive": "OoD",
        "n_train": len(train),
        "n_test": len(test),
        "ood_sets": {name: len(rows) for name, rows in ood.items()},
        **grid_numbers(result),
        "false_alarms_at_nominal_0.05": robust_false_alarms(train, test),
        "covariate_shift": shifts(train, test, ood, read_named(options.shifted) if options.shifted else {}),
    }
    if options.sweep:
        record["sweep"] = sweep(train, test, ood, options.seed)
    lines = [f" {json.dumps(key)}: {_spread(value)}" for key, value in record.items()]
    options.target.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    shown = record["methods"], record["false_alarms_at_nominal_0.05"], record["covariate_shift"]
    print(*shown, sep="\n")


def _spread(value: Any) -> str:
    """JSON with one element of a long list to a line."""
    if isinstance(value, list):
        return "[\n  " + ",\n  ".join(json.dumps(item) for item in value) + "\n ]"
    return json.dumps(value)
