"""What the scripts share: one thread unless asked otherwise, fair timing, and one line of JSON as the result.

Import it before numpy: the number of threads of BLAS is read when numpy is loaded. Timing follows three rules.
Both sides run in turns in one process, so that a busy minute of the machine hits both. The smallest time counts:
other programs can only ever add to it. The first call of each side (compilation, page faults) is not counted.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

MIN_REPEATS, MAX_REPEATS = 5, 1000


def arguments(description: str | None, **defaults: int | float | str) -> argparse.Namespace:
    """Options of a script, each named with its default, and ``--quick``."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, one second of repetitions")
    return parser.parse_args()


def stand_in_for_torchvision() -> None:
    """Make ``import pytorch_ood`` work where torchvision is not installed, or was built for another torch."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        sys.path.insert(0, str(Path(__file__).parent / "stubs"))


def seconds(work: Callable[[], Any]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(
    ours: Callable[[], Any], peer: Callable[[], Any], *, quick: bool, peer_repeats: int = MAX_REPEATS
) -> dict[str, Any]:
    """Smallest time of each side over repetitions ours, peer, ours, peer, ...

    Repeats for ten seconds (one if quick), at least 5 times and at most 1000. A peer that takes seconds per call may
    be given fewer ``peer_repeats``; then its first call counts.
    """
    budget = 1.0 if quick else 10.0
    ours()
    if peer_repeats >= MIN_REPEATS:
        peer()
    ours_times: list[float] = []
    peer_times: list[float] = []
    gc.collect()
    gc.disable()
    end = time.perf_counter() + budget
    while len(ours_times) < MIN_REPEATS or (len(ours_times) < MAX_REPEATS and time.perf_counter() < end):
        ours_times.append(seconds(ours))
        if len(peer_times) < peer_repeats:
            peer_times.append(seconds(peer))
    gc.enable()
    return {
        "ours": min(ours_times),
        "peer": min(peer_times),
        "ratio": min(ours_times) / min(peer_times),
        "repeats": len(ours_times),
        "peer_repeats": len(peer_times),
    }


def report(result: dict[str, Any], *packages: str) -> None:
    """Print the result, with the versions of the packages it depends on, as one line of JSON."""
    from importlib.metadata import version

    print(json.dumps(result | {"versions": {name: version(name) for name in packages}}))
