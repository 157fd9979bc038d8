"""What a detector costs a user: scoring a row against one pass over the logits, and the size of its file.

    OMP_NUM_THREADS=1 python benchmarks/costs.py           # the table of docs/choosing.md

Detectors take turns on the same rows, in one thread. Times are the smallest of five.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

import normscale as ns

ROWS, FEATURES, CLASSES, TRAINING_ROWS = 5_000, 512, 100, 20_000
NAMES = ("energy", "norm_scaling", "robust_norm_scaling", "unit+mahalanobis", "cadref", "default", "knn")


def make_outputs() -> ns.ModelOutputs:
    """Outputs of a last layer on features around class means."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=TRAINING_ROWS)
    means = rng.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    noise = rng.standard_normal((TRAINING_ROWS, FEATURES), dtype=np.float32)
    features = np.maximum(means[labels] + noise, 0)
    weight = means / 20
    head = weight, np.zeros(CLASSES, dtype=np.float32)
    return ns.ModelOutputs(features @ weight.T, features=features, labels=labels, head=head)


def main() -> None:
    outputs = make_outputs()
    fitted = {name: ns.fit(outputs) if name == "default" else ns.make_detector(name).fit(outputs) for name in NAMES}
    seconds = dict.fromkeys(NAMES, float("inf"))
    for _ in range(5):
        for name, detector in fitted.items():
            start = time.perf_counter()
            detector.score(outputs[:ROWS], threads=1)
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    print(f"{CLASSES} classes, {FEATURES} features, {TRAINING_ROWS} training rows, one thread")
    for name, detector in fitted.items():
        with tempfile.TemporaryDirectory() as folder:
            detector.save(path := Path(folder) / "detector.safetensors")
            size = path.stat().st_size / 1e6
        us = seconds[name] / ROWS * 1e6
        print(f"{name:20s} {us:8.1f} us a row {size:8.2f} MB")


if __name__ == "__main__":
    main()
