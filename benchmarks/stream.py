"""`NormScaling.stream` on a block of logits, against torch's `softmax(1).max(1)` on the same array.

The peer does less: it keeps no running statistics. Its result is the plain maximum softmax probability, which
is what our score becomes without the scaling.
"""

from __future__ import annotations

import os

import harness
import numpy as np


def make_logits(rows: int, classes: int, margin: float) -> np.ndarray:
    """Noise, with the logit of a random class raised, as a classifier raises the one it believes in."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((rows, classes), dtype=np.float32)
    logits[np.arange(rows), rng.integers(classes, size=rows)] += np.float32(margin)
    return logits


def ours(detector, logits, threads):
    return detector.reset().stream(logits, threads=threads)


def peer(tensor):
    return tensor.softmax(1).max(1)


def plain_scores(logits, training_mean, training_variance):
    """What `stream` must return, written out: running mean and variance of every row, then log-odds."""
    x = logits.astype(np.float64)
    weights = 1.0 + np.arange(1, len(x) + 1)[:, None]
    shifted = x - training_mean
    mean = np.cumsum(shifted, axis=0) / weights
    variance = (training_variance + np.cumsum(shifted**2, axis=0)) / weights - mean**2
    z = (shifted - mean) / np.sqrt(variance)
    z.sort(axis=1)
    return np.log(np.exp(z[:, :-1] - z[:, -1:]).sum(axis=1))


def check(detector, logits, tensor, threads):
    import normscale as ns

    scores = ours(detector, logits, threads)
    n = min(20_000, len(logits))
    training = detector.training_
    np.testing.assert_allclose(
        scores[:n], plain_scores(logits[:n], training.mean, training.variance), rtol=1e-6, atol=1e-9
    )
    everything = (training.mean + logits.sum(axis=0, dtype=np.float64)) / (1 + len(logits))
    np.testing.assert_allclose(detector.running_.mean, everything, rtol=1e-9, atol=1e-12)
    unscaled = 1.0 / (1.0 + np.exp(ns.MSP().score(logits[:n])))
    np.testing.assert_allclose(peer(tensor[:n]).values.numpy(), unscaled, rtol=1e-4)


def main() -> None:
    options = harness.arguments(
        __doc__, rows=1_000_000, classes=10, threads=1, peer_threads=1, kernels="numba", margin=6.0
    )
    os.environ["NORMSCALE_KERNELS"] = options.kernels
    import torch

    import normscale as ns

    torch.set_num_threads(options.peer_threads)
    logits = make_logits(options.rows // 10 if options.quick else options.rows, options.classes, options.margin)
    tensor = torch.from_numpy(logits)
    detector = ns.NormScaling().fit(logits[:1000])
    check(detector, logits, tensor, options.threads)
    result = harness.in_turns(
        lambda: ours(detector, logits, options.threads), lambda: peer(tensor), quick=options.quick
    )
    harness.report(result, "numpy", "numba", "torch")


if __name__ == "__main__":
    main()
