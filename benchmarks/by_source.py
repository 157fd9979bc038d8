"""A stream for every source: CPU time of a row against one stream's, in one run.

    python benchmarks/by_source.py

One row at a time, and in one block of 40 rows a source: sources named by whole numbers, by texts, and with four of five
states on disk. The default reads 64 features besides the logits.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import numpy as np

import normscale as ns
from normscale.detectors.by_source import SourceStates


def seconds(work: Callable[[], object], rounds: int = 3) -> float:
    """The least CPU time of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def both(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """The least CPU times of two pieces of work, one after the other."""
    times = [(seconds(first, 1), seconds(second, 1)) for _ in range(5)]
    return min(one for one, _ in times), min(two for _, two in times)


def measure(name: str, width: int, n_sources: int) -> None:
    """Print the ratios of one detector."""
    rng = np.random.default_rng(0)
    n = 40 * n_sources
    head = rng.normal(size=(width, 64))
    train = rng.normal(size=(5000, 64)) + 4 * head[rng.integers(0, width, 5000)] / 8.0
    features, ids = rng.normal(size=(n, 64)), rng.integers(0, n_sources, n)
    rows = ns.ModelOutputs(logits=features @ head.T, features=features)
    detector = ns.make_detector(name).fit(
        ns.ModelOutputs(logits=train @ head.T, features=train, head=(head, np.zeros(width)))
    )
    rows = rows.only(*detector.reads)
    single, states = copy.copy(detector), SourceStates(detector)
    small = SourceStates(detector, n_sources // 5)
    texts = np.array([f"camera {one}" for one in ids.tolist()])
    states.stream(rows, ids)
    pairs = [(rows[i : i + 1], [str(ids[i])]) for i in range(3000)]
    one = seconds(lambda: [single.stream(row) for row, _ in pairs])
    own = seconds(lambda: [states.stream(row, by) for row, by in pairs])
    whole, blocks = both(lambda: copy.copy(detector).stream(rows), lambda: states.stream(rows, ids))
    named = seconds(lambda: states.stream(rows, texts), 3)
    disk = seconds(lambda: small.stream(rows, ids), 2)
    ratios = f"{own / one:>8.2f} {blocks / whole:>17.2f} {named / whole:>17.2f} {disk / whole:>17.2f}"
    print(f"{name:<22} {width:>7} {n_sources:>7} {whole / n * 1e9:>8.0f} {ratios}", flush=True)


if __name__ == "__main__":
    titles = f"{'one row':>8} {'40 rows a source':>17} {'named by texts':>17} {'of these on disk':>17}"
    print(f"{'detector':<22} classes sources {'ns a row':>8} {titles}")
    measure("norm_scaling", 10, 10_000)
    measure("norm_scaling", 1000, 1000)
    measure("robust_norm_scaling", 10, 10_000)
    measure("stream_aware+ensemble", 10, 10_000)
