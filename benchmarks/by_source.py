"""A stream for every source: CPU time of a row against one stream's, in one run.

    python benchmarks/by_source.py

One row at a time, and in one block of 40 rows a source, with all states in memory or four of five on disk.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import numpy as np

import normscale as ns
from normscale.detectors.by_source import SourceStates, stream_by_source


def seconds(work: Callable[[], object], rounds: int = 3) -> float:
    """The least CPU time of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def measure(name: str, width: int, n_sources: int) -> None:
    """Print the ratios of one detector."""
    rng = np.random.default_rng(0)
    n = 40 * n_sources
    train = rng.normal(size=(5000, width)) + 4 * np.eye(width)[rng.integers(0, width, 5000)]
    rows, ids = rng.normal(size=(n, width)), rng.integers(0, n_sources, n)
    detector = ns.make_detector(name).fit(train)
    single, states, small = copy.copy(detector), SourceStates(detector), SourceStates(detector, n_sources // 5)
    stream_by_source(detector, states, rows, ids)
    pairs = [(rows[i : i + 1], [str(ids[i])]) for i in range(3000)]
    one = seconds(lambda: [single.stream(row) for row, _ in pairs])
    own = seconds(lambda: [stream_by_source(detector, states, row, by) for row, by in pairs])
    whole = seconds(lambda: copy.copy(detector).stream(rows))
    blocks = seconds(lambda: stream_by_source(detector, states, rows, ids), 2)
    disk = seconds(lambda: stream_by_source(detector, small, rows, ids), 2)
    ratios = f"{own / one:>8.2f} {blocks / whole:>17.2f} {disk / whole:>17.2f}"
    print(f"{name:<22} {width:>7} {n_sources:>7} {ratios}", flush=True)


if __name__ == "__main__":
    print(f"{'detector':<22} classes sources {'one row':>8} {'40 rows a source':>17} {'of these on disk':>17}")
    measure("norm_scaling", 10, 10_000)
    measure("norm_scaling", 1000, 1000)
    measure("stream_aware+energy", 10, 10_000)
