"""`evaluate` against pytorch-ood's `OODMetrics` (which adds AUTC, and leaves out FPR95 with ID positive)."""

from __future__ import annotations

import harness
import numpy as np


def ours(id_scores, ood_scores):
    import normscale as ns

    return ns.evaluate(id_scores, ood_scores)


def peer(scores, labels):
    from pytorch_ood.metrics import OODMetrics

    return OODMetrics().update(scores, labels).compute()


def check(id_scores, ood_scores, scores, labels):
    mine, theirs = ours(id_scores, ood_scores), peer(scores, labels)
    np.testing.assert_allclose(mine.auroc, theirs["AUROC"], rtol=1e-9)
    np.testing.assert_allclose(mine.fpr95_out, theirs["FPR95TPR"], rtol=1e-9)
    np.testing.assert_allclose(mine.aupr_out, theirs["AUPR-OUT"], rtol=1e-3)  # theirs takes trapezoids
    np.testing.assert_allclose(mine.aupr_in, theirs["AUPR-IN"], rtol=1e-3)


def main() -> None:
    options = harness.arguments(__doc__, scores=10_000_000, peer_threads=1)
    harness.stand_in_for_torchvision()
    import torch

    torch.set_num_threads(options.peer_threads)
    n = options.scores // (20 if options.quick else 2)
    rng = np.random.default_rng(0)
    id_scores = rng.standard_normal(n, dtype=np.float32)
    ood_scores = rng.standard_normal(n, dtype=np.float32) + np.float32(1.0)
    scores = torch.from_numpy(np.concatenate([id_scores, ood_scores]))
    labels = torch.cat([torch.zeros(n, dtype=torch.int64), torch.full((n,), -1)])
    few = slice(n - 50_000, n + 50_000)  # the last of one side and the first of the other
    check(id_scores[-50_000:], ood_scores[:50_000], scores[few], labels[few])
    result = harness.in_turns(
        lambda: ours(id_scores, ood_scores), lambda: peer(scores, labels), quick=options.quick, peer_repeats=2
    )
    harness.report(result, "numpy", "torch", "pytorch-ood")


if __name__ == "__main__":
    main()
