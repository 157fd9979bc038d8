"""Peak memory that `NormScaling.stream` takes beside its input; the scores it returns are counted.

The mark is the kernel's: the largest resident size since the mark was last wiped (`/proc/self/clear_refs`, Linux).
The peer's figure is the same measurement of torch's `softmax(1).max(1)`. `--what fit`: of `RobustNormScaling.fit`,
which needs all rows at once, beside the size of the table.
"""

from __future__ import annotations

import os
from pathlib import Path

import harness
import numpy as np

MEGABYTE = 1024.0


def resident(field: str) -> float:
    """``VmRSS`` (now) or ``VmHWM`` (largest) in MB."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field))
    return int(line.split()[1]) / MEGABYTE


def peak_extra(work) -> float:
    """Largest resident size during the call, less the size before, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    kept = work()
    peak = resident("VmHWM")
    del kept
    return peak - before


def ours(detector, logits, threads):
    return detector.stream(logits, threads=threads)


def peer(tensor):
    return tensor.softmax(1).max(1)


def main() -> None:
    options = harness.arguments(__doc__, rows=1_000_000, classes=100, threads=1, kernels="numba", what="stream")
    os.environ["NORMSCALE_KERNELS"] = options.kernels
    import torch

    import normscale as ns

    torch.set_num_threads(1)
    logits = np.empty((options.rows, options.classes), dtype=np.float32)
    np.random.default_rng(0).standard_normal(dtype=np.float32, out=logits)
    tensor = torch.from_numpy(logits)
    detector = ns.NormScaling().fit(logits[:1000])
    ours(detector, logits[:100], options.threads), peer(tensor[:100])  # load and compile everything
    if options.what == "fit":
        ns.RobustNormScaling().fit(logits[:1000])
        mine, theirs = peak_extra(lambda: ns.RobustNormScaling().fit(logits)), logits.nbytes / MEGABYTE**2
    else:
        mine, theirs = peak_extra(lambda: ours(detector, logits, options.threads)), peak_extra(lambda: peer(tensor))
    harness.report({"ours": mine, "peer": theirs, "ratio": mine / theirs, "unit": "MB"}, "numpy", "torch")


if __name__ == "__main__":
    main()
