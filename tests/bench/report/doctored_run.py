"""A run whose every AUROC is written down: what a report makes of it can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from normscale.bench.experiments.measurement import Measurement, ScoredPair
from normscale.bench.experiments.methods import find_method
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.metrics import METRICS

Aurocs = Mapping[str, Mapping[str, tuple[float, ...]]]
"""By method and OoD set, one for every seed."""

SETS = ("cifar100", "tinyimagenet", "svhn", "places365", "gaussian")
AUROCS: Aurocs = {
    "energy": dict(zip(SETS, ((0.8, 0.6), (0.6, 0.4), (0.9, 0.7), (0.7, 0.5), (1.0, 0.8)), strict=True)),
    "knn": dict(zip(SETS, ((0.9, 0.9), (0.7, 0.7), (0.8, 0.8), (0.6, 0.6), (0.6, 0.6)), strict=True)),
    "norm_scaling": dict(zip(SETS, ((0.95, 0.85),) * 5, strict=True)),
}


def doctored_run(
    path: Path, aurocs: Aurocs = AUROCS, *, failures: Mapping[str, str] | None = None, data: str = "cifar10"
) -> RunFolder:
    """Write a run with these numbers; FPR95 is 1 less the AUROC. ``failures`` are methods without any."""
    sets = list(dict.fromkeys(name for by_set in aurocs.values() for name in by_set))
    n_seeds = max(len(values) for by_set in aurocs.values() for values in by_set.values())
    methods = (*aurocs, *(failures or {}))
    plan = Plan(path.name, data, {name: name for name in sets}, seeds=tuple(range(n_seeds)), methods=methods)
    run = RunFolder.create(path, plan)
    nothing = ScoredPair(np.zeros(1), np.ones(1))
    for method, by_set in aurocs.items():
        found = find_method(method)
        for name, values in by_set.items():
            for seed, auroc in enumerate(values):
                metrics = {**dict.fromkeys(METRICS, auroc), "fpr95_out": 1.0 - auroc}
                cell = Measurement(
                    name, method, found.detector.name, found.title, found.setting.value, found.detector.get_params(),
                    metrics, 100, 200, seed, in_set=plan.in_set,
                )  # fmt: skip
                run.save_cell(cell, nothing)
    for seed in plan.seeds:
        run.save_failures(seed, dict(failures or {}))
    run.write_results()
    return run
