"""`NormScaling.stream` one row at a time from Python, against river's `StandardScaler`.

river's scaler keeps the same statistics and returns the scaled values; ours goes on to the score.
"""

from __future__ import annotations

import os

import harness
import numpy as np

ROWS, CLASSES = 100, 10


def ours(detector, rows):
    for row in rows:
        detector.stream(row)


def peer(scaler_class, dicts):
    scaler = scaler_class()
    for row in dicts:
        scaler.learn_one(row)
        scaler.transform_one(row)
    return scaler


def check(detector, rows, scaler_class, dicts):
    detector.reset()
    ours(detector, rows)
    scaler = peer(scaler_class, dicts)
    n = len(rows)
    training = detector.training_  # ours starts from it with the weight of one row, river from nothing
    theirs = np.array([scaler.means[j] for j in range(CLASSES)])
    np.testing.assert_allclose(detector.running_.mean, (training.mean + n * theirs) / (n + 1), rtol=1e-9)
    squares = np.array([scaler.vars[j] for j in range(CLASSES)]) * n
    squares += training.variance + (theirs - training.mean) ** 2 * (n / (n + 1))
    np.testing.assert_allclose(detector.running_.m2, squares, rtol=1e-9)


def main() -> None:
    options = harness.arguments(__doc__, kernels="numba")
    os.environ["NORMSCALE_KERNELS"] = options.kernels
    from river.preprocessing import StandardScaler

    import normscale as ns

    logits = np.random.default_rng(0).standard_normal((ROWS, CLASSES), dtype=np.float32)
    rows = [logits[i : i + 1] for i in range(ROWS)]
    dicts = [dict(enumerate(map(float, row))) for row in logits]
    detector = ns.NormScaling().fit(logits)
    check(detector, rows, StandardScaler, dicts)
    result = harness.in_turns(lambda: ours(detector, rows), lambda: peer(StandardScaler, dicts), quick=options.quick)
    per_row = {side: result[side] / ROWS for side in ("ours", "peer")}
    harness.report(result | per_row, "numpy", "numba", "river")


if __name__ == "__main__":
    main()
