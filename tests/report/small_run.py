"""A benchmark's folder made in a moment from the embedded sample, under the names of the paper's sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from normscale import ModelOutputs, load_sample, write_table
from normscale.experiments.methods import find_method
from normscale.experiments.presets import Plan
from normscale.experiments.protocol import score_pair
from normscale.experiments.run_folder import Cell, RunFolder, write_missing

SETS = {"svhn": "unseen_digits", "textures": "photo_patches", "uniform": "uniform_noise", "own set": "gaussian_noise"}
METHODS = ("msp", "multi_threshold", "energy", "norm_scaling", "norm_scaling_frozen")
METRICS = ("auroc", "aupr_out", "aupr_in", "fpr95_out", "fpr95_in")
COMMAND = "normscale bench --preset cifar10 --seeds 3"


def blurred(outputs: ModelOutputs, seed: int) -> ModelOutputs:
    """What another network would say: the same logits with noise of its own."""
    noise = np.random.default_rng(seed).normal(scale=1.5, size=outputs.logits.shape)
    return ModelOutputs(outputs.logits + noise.astype(np.float32), labels=outputs.labels)


def make_run(
    path: Path,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    sets: dict[str, str] = SETS,
    methods: Sequence[str] = METHODS,
    data: str = "cifar10",
    leave_out: Sequence[tuple[int, str, str]] = (),
    missing: dict[str, str] | None = None,
) -> RunFolder:
    """Write a run; ``leave_out`` names cells (seed, OoD set, method) that are not finished."""
    sample = load_sample()
    ood = {**dict.fromkeys(sets, "sample"), **dict.fromkeys(missing or {}, "nowhere")}
    plan = Plan("small", data, ood, width=8, recipe="fast", epochs=2, seeds=tuple(seeds), methods=tuple(methods))
    run = RunFolder.create(path, plan, COMMAND)
    for seed in seeds:
        outputs = {
            "train": blurred(sample.train, 100 + seed),
            "test": blurred(sample.test, 200 + seed),
            **{name: blurred(sample.ood[source], 300 + seed) for name, source in sets.items()},
        }
        (run.network(seed) / "outputs").mkdir(parents=True)
        for name, one in outputs.items():
            path_of = run.outputs_path(seed, name)
            path_of.parent.mkdir(parents=True, exist_ok=True)
            write_table(path_of, one)
        if missing:
            write_missing(run.network(seed), missing)
        log = [{"epoch": epoch, "validation_accuracy": 0.5 + 0.1 * epoch + 0.01 * seed} for epoch in (1, 2)]
        result = {"test_accuracy": outputs["test"].accuracy, "log": log}
        (run.network(seed) / "result.json").write_text(json.dumps(result))
        for name in methods:
            method = find_method(name)
            detector = method.make().fit(outputs["train"])
            for ood_set in sets:
                if (seed, ood_set, name) in leave_out:
                    continue
                pair = score_pair(detector, method.setting, outputs["test"], outputs[ood_set], seed=seed)
                found = pair.evaluate()
                cell = Cell(
                    seed, plan.in_set, ood_set, name, method.setting, detector.get_params(),
                    {metric: float(getattr(found, metric)) for metric in METRICS},
                    len(pair.id_scores), len(pair.ood_scores), 0.1, "0.0", None,
                )  # fmt: skip
                run.save_cell(cell, pair)
    return run
