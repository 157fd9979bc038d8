"""`evaluate` (five metrics) against torchmetrics' `binary_auroc` (one), on scores in [0, 1] as it wants them."""

from __future__ import annotations

import harness
import numpy as np


def ours(id_scores, ood_scores):
    import normscale as ns

    return ns.evaluate(id_scores, ood_scores)


def peer(scores, is_ood):
    from torchmetrics.functional.classification import binary_auroc

    return float(binary_auroc(scores, is_ood))


def main() -> None:
    options = harness.arguments(__doc__, scores=1_000_000)
    import torch

    torch.set_num_threads(1)
    n = options.scores // (20 if options.quick else 2)
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.random(n, dtype=np.float32), rng.random(n, dtype=np.float32) ** np.float32(0.5)
    scores = torch.from_numpy(np.concatenate([id_scores, ood_scores]))
    is_ood = torch.repeat_interleave(torch.tensor([0, 1]), n)
    np.testing.assert_allclose(ours(id_scores, ood_scores).auroc, peer(scores, is_ood), rtol=1e-4)
    result = harness.in_turns(lambda: ours(id_scores, ood_scores), lambda: peer(scores, is_ood), quick=options.quick)
    harness.report(result, "numpy", "torch", "torchmetrics")


if __name__ == "__main__":
    main()
