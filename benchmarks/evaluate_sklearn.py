"""`evaluate` (five metrics) against scikit-learn's `roc_auc_score` and `average_precision_score` (two of them)."""

from __future__ import annotations

import harness
import numpy as np


def ours(id_scores, ood_scores):
    import normscale as ns

    return ns.evaluate(id_scores, ood_scores)


def peer(is_ood, scores):
    from sklearn.metrics import average_precision_score, roc_auc_score

    return roc_auc_score(is_ood, scores), average_precision_score(is_ood, scores)


def check(id_scores, ood_scores, is_ood, scores):
    mine = ours(id_scores, ood_scores)
    np.testing.assert_allclose((mine.auroc, mine.aupr_out), peer(is_ood, scores), rtol=1e-12)


def main() -> None:
    options = harness.arguments(__doc__, scores=2_000_000)
    n = options.scores // (20 if options.quick else 2)
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.standard_normal(n), rng.standard_normal(n) + 1.0
    is_ood, scores = np.repeat([0, 1], n), np.concatenate([id_scores, ood_scores])
    check(id_scores, ood_scores, is_ood, scores)
    result = harness.in_turns(lambda: ours(id_scores, ood_scores), lambda: peer(is_ood, scores), quick=options.quick)
    harness.report(result, "numpy", "scikit-learn")


if __name__ == "__main__":
    main()
