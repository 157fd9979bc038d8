"""`expected_calibration_error` against torchmetrics' `binary_calibration_error`, fifteen bins."""

from __future__ import annotations

import harness
import numpy as np

BINS = 15


def ours(confidence, correct):
    import normscale as ns

    return ns.expected_calibration_error(confidence, correct, bins=BINS)


def peer(confidence, correct):
    from torchmetrics.functional.classification import binary_calibration_error

    return float(binary_calibration_error(confidence, correct, n_bins=BINS, norm="l1"))


def main() -> None:
    options = harness.arguments(__doc__, rows=1_000_000)
    import torch

    torch.set_num_threads(1)
    n = options.rows // (10 if options.quick else 1)
    rng = np.random.default_rng(0)
    confidence = rng.random(n, dtype=np.float32)
    correct = rng.random(n, dtype=np.float32) < confidence**2
    tensors = torch.from_numpy(confidence), torch.from_numpy(correct.astype(np.int64))
    np.testing.assert_allclose(ours(confidence, correct), peer(*tensors), rtol=1e-3)
    result = harness.in_turns(lambda: ours(confidence, correct), lambda: peer(*tensors), quick=options.quick)
    harness.report(result, "numpy", "torch", "torchmetrics")


if __name__ == "__main__":
    main()
