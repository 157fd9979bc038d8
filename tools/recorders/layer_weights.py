"""Write docs/results/layer-weights.json: how Mahalanobis in all layers does by where its weights come from.

    python tools/record.py layer_weights TARGET [--rows N] [--epsilon E ...] RUN ...

RUN is the folder of a run of `normscale bench` with its outputs; its first network counts. Uniform weights are those of
every recorded table; the others are regressed on FGSM attacks on training pictures, as the method's authors tune it
where no OoD inputs may be seen. Mean AUROC over all OoD sets of the run.
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
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.train import load_network
from normscale.bench.train.run import load_splits, plain_batches
from normscale.extraction import attacked_layers
from normscale.outputs import FEATURES
from recorders.provenance import commit, short

LAYERS = ("stem", "stage1", "stage2", "stage3")


def rows_of(path: Path, n_rows: int, epsilons: list[float]) -> list[dict[str, Any]]:
    """One record for every choice of weights on a run's first network."""
    run = RunFolder.open(path)
    plan, seed = run.plan, run.plan.seeds[0]
    model, info = load_network(run.network(seed).network)
    chosen = np.sort(np.random.default_rng(0).permutation(len(train := run.outputs(seed, "train")))[:n_rows])
    training = load_splits(plan.data, seed, plan.image_size).train[chosen]
    test, *ood = (run.outputs(seed, name) for name in ("test", *plan.ood))

    def measured(how: str, detector: ns.Detector, given: ns.ModelOutputs) -> dict[str, Any]:
        scores = detector.fit(given).score(test.only(*detector.reads))
        aurocs = [ns.evaluate(scores, detector.score(one.only(*detector.reads))).auroc for one in ood]
        found = {name: round(value, 4) for name, value in zip(plan.ood, aurocs, strict=True)}
        record = {"run": plan.name, "weights": how, "mean_auroc": round(fmean(aurocs), 4), "auroc": found}
        print(record, file=sys.stderr, flush=True)
        return record

    layers = (*LAYERS, FEATURES)
    records = [measured("uniform", ns.Mahalanobis(layers), train)]
    for epsilon in epsilons:
        attacked = attacked_layers(model, plain_batches(training, info), layers=LAYERS, std=info.std, epsilon=epsilon)
        both = train[chosen].replace(**{name: attacked.array(name) for name in attacked.names})
        weights = ns.Mahalanobis(layers, weights="attacks").fit(both).weights_
        records.append(measured(f"attacks of {epsilon:g}", ns.Mahalanobis(layers, weights=weights), train))
    return records


def main() -> None:
    """Measure every run and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=4000, help="training pictures that are attacked")
    parser.add_argument("--epsilon", type=float, action="append", help="step of the attack in pixels from 0 to 1")
    options = parser.parse_args()
    record = {
        "command": "python tools/record.py layer_weights " + " ".join(map(short, sys.argv[1:])),
        "commit": commit(),
        "date": date.today().isoformat(),
        "rows": options.rows,
        "results": [one for run in options.runs for one in rows_of(run, options.rows, options.epsilon or [0.05, 0.01])],
    }
    options.target.write_text(json.dumps(record, indent=1) + "\n")
