"""`Mahalanobis.score` on 512 features and 100 classes, against pytorch-ood's `Mahalanobis`; one thread each."""

from __future__ import annotations

import harness
import numpy as np

FEATURES, CLASSES, TRAINING_ROWS = 512, 100, 20_000
OURS_ROWS, PEER_ROWS = 20_000, 2_000  # times are per row: the peer would take half a minute for ours


def make_features(rows, seed):
    """Features of correlated columns around the mean of each class."""
    fixed = np.random.default_rng(0)
    mixing = fixed.standard_normal((FEATURES, FEATURES), dtype=np.float32) / np.float32(FEATURES**0.5)
    means = fixed.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % CLASSES
    return rng.standard_normal((rows, FEATURES), dtype=np.float32) @ mixing + means[labels], labels


def ours(detector, outputs):
    return detector.score(outputs)


def peer(detector, tensor):
    return detector.predict_features(tensor)


def check(mine, outputs, theirs, tensor, training_rows):
    distances = ours(mine, outputs)
    # theirs is half the distance under a covariance that is not divided by the number of rows, in float32
    np.testing.assert_allclose(distances, peer(theirs, tensor).numpy() * 2.0 * training_rows, rtol=1e-2)


def main() -> None:
    options = harness.arguments(__doc__)
    harness.stand_in_for_torchvision()
    import torch
    from pytorch_ood.detector import Mahalanobis

    import normscale as ns

    torch.set_num_threads(1)
    peer_rows = PEER_ROWS // 4 if options.quick else PEER_ROWS
    features, labels = make_features(TRAINING_ROWS, seed=1)
    unused_logits = np.zeros((TRAINING_ROWS, CLASSES), dtype=np.float32)
    mine = ns.Mahalanobis().fit(ns.ModelOutputs(unused_logits, features=features, labels=labels))
    theirs = Mahalanobis(None).fit_features(torch.from_numpy(features), torch.from_numpy(labels))
    features, _ = make_features(OURS_ROWS, seed=2)
    outputs = ns.ModelOutputs(unused_logits[:OURS_ROWS], features=features)
    tensor = torch.from_numpy(features[:peer_rows])
    few = ns.ModelOutputs(unused_logits[:peer_rows], features=features[:peer_rows])
    check(mine, few, theirs, tensor, TRAINING_ROWS)
    result = harness.in_turns(lambda: ours(mine, outputs), lambda: peer(theirs, tensor), quick=options.quick)
    per_row = {"ours": result["ours"] / OURS_ROWS, "peer": result["peer"] / peer_rows}
    harness.report(result | per_row | {"ratio": per_row["ours"] / per_row["peer"]}, "numpy", "torch", "pytorch-ood")


if __name__ == "__main__":
    main()
