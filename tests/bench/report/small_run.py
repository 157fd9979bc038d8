"""A benchmark's folder made in a moment from the embedded sample, under the names of the paper's sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from normscale import ModelOutputs, load_sample, write_table
from normscale.bench.experiments.measuring import measure
from normscale.bench.experiments.methods import find_method, fit_on
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.network_folder import write_document

SETS = {"svhn": "unseen_digits", "textures": "photo_patches", "uniform": "uniform_noise", "own set": "gaussian_noise"}
METHODS = ("msp", "multi_threshold", "energy", "norm_scaling", "norm_scaling_frozen")
TWO = {name: SETS[name] for name in ("svhn", "own set")}
EVIL = "<b>x</b> & 'q' $y"
"""What a page must escape."""
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
    name: str = "cifar10-small",
) -> RunFolder:
    """Write a run; ``leave_out`` names cells (seed, OoD set, method) that are not finished.

    With the name of a preset and one of the paper's sets, the paper's numbers stand beside it.
    """
    sample = load_sample()
    ood = {**dict.fromkeys(sets, "sample"), **dict.fromkeys(missing or {}, "nowhere")}
    plan = Plan(name, data, ood, width=8, recipe="fast", epochs=2, seeds=tuple(seeds), methods=tuple(methods))
    run = RunFolder.create(path, plan, COMMAND)
    for seed in seeds:
        outputs = {
            "train": blurred(sample.train, 100 + seed),
            "test": blurred(sample.test, 200 + seed),
            **{ood_set: blurred(sample.ood[source], 300 + seed) for ood_set, source in sets.items()},
        }
        files = run.network(seed)
        files.make()
        for part, one in outputs.items():
            files.outputs(part).parent.mkdir(parents=True, exist_ok=True)
            write_table(files.outputs(part), one)
        if missing:
            write_document(files.missing, missing)
        log = [{"epoch": epoch, "validation_accuracy": 0.5 + 0.1 * epoch + 0.01 * seed} for epoch in (1, 2)]
        result = {"test_accuracy": outputs["test"].accuracy, "log": log}
        files.result.write_text(json.dumps(result))
        for method_name in methods:
            method = find_method(method_name)
            method = method._replace(detector=fit_on(method.detector, outputs["train"], None))
            wanted = {one: outputs[one] for one in sets if (seed, one, method_name) not in leave_out}
            if wanted:
                for cell, pair in measure([method], outputs["test"], wanted, in_set=plan.in_set, seed=seed):
                    assert pair is not None
                    run.save_cell(cell, pair)
    return run
