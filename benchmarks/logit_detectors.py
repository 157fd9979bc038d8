"""Detectors on logits and steps between features and logits, against pytorch-ood's; one thread each.

``--what`` names the detector. Each is checked to give pytorch-ood's scores on the same outputs first:

- gen: pytorch-ood takes the mean over the classes, ours is the paper's sum; it clamps probabilities at 1e-7.
- ash, scale: pytorch-ood shapes maps; features go in as maps of one position.
- gram: pytorch-ood holds random rows out; rows so few that neither holds any out make both the same.
"""

from __future__ import annotations

import harness
import numpy as np

FEATURES = 512


def make_outputs(rows, classes, seed):
    """Features as behind a ReLU, the last layer, and its logits."""
    fixed = np.random.default_rng(0)
    weight = (fixed.standard_normal((classes, FEATURES)) / FEATURES**0.5).astype(np.float32)
    means = np.abs(fixed.standard_normal((classes, FEATURES), dtype=np.float32))
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    features = np.maximum(means[labels] + rng.standard_normal((rows, FEATURES), dtype=np.float32), 0.0)
    logits = features @ weight.T
    return logits, features, weight, np.zeros(classes, dtype=np.float32)


def peers(what, logits, features, weight, bias, train):
    """Ours and theirs, as functions of nothing, and how to compare their scores."""
    import pytorch_ood.detector as peer
    import torch

    import normscale as ns

    z, f, w, b = (torch.from_numpy(array) for array in (logits, features, weight, bias))
    train_z, train_f = (torch.from_numpy(array) for array in train)
    labels = torch.from_numpy(train[0].argmax(axis=1))
    fitted_on = ns.ModelOutputs(*train, head=(weight, bias))
    maps = f[:, :, None, None]

    def head(x):
        return x.flatten(1) @ w.T + b

    if what == "entropy":
        return lambda: ns.Entropy().score(logits), lambda: peer.Entropy.score(z)
    if what in ("gen", "gen_top"):
        top = 100 if what == "gen" else 10
        n = min(top, logits.shape[1])
        return lambda: ns.GEN(top=top).score(logits) / n, lambda: peer.GEN.score(z, M=None if what == "gen" else top)
    if what == "max_logit":
        return lambda: ns.MaxLogit().score(logits), lambda: peer.MaxLogit.score(z)
    if what == "kl_matching":
        theirs = peer.KLMatching(None).fit_logits(train_z)
        mine = ns.KLMatching().fit(train[0])
        return lambda: mine.score(logits), lambda: theirs.predict_logits(z)
    if what == "dice":
        theirs = peer.DICE(None, w, b, p=0.9).fit_features(train_f, labels)
        mine = ns.DICE().fit(fitted_on)
        return lambda: mine.score(features), lambda: theirs.predict_features(f)
    if what in ("ash_p", "ash_b", "ash_s"):
        variant = what[-1]
        mine = ns.ASH(variant=variant).fit(fitted_on)
        theirs = peer.ASH(None, head, variant=f"ash-{variant}", percentile=mine.percentile / 100.0)
        return lambda: mine.score(features), lambda: theirs.predict_feature_maps(maps)
    if what == "scale":
        mine = ns.SCALE().fit(fitted_on)
        theirs = peer.SCALE(None, head, percentile=0.85)
        return lambda: mine.score(features), lambda: theirs.predict_feature_maps(maps)
    if what == "gram":
        few = ns.ModelOutputs(*(array[: 9 * logits.shape[1]] for array in train))
        mine = ns.Gram(powers=10).fit(few)
        theirs = peer.Gram(torch.nn.Identity(), [torch.nn.Identity()], logits.shape[1], list(range(1, 11)))
        _fit_gram(theirs, few)
        outputs = ns.ModelOutputs(logits, features)
        return lambda: mine.score(outputs), lambda: theirs.predict_structured(z, [f])
    raise SystemExit(f"unknown: {what}")


def _fit_gram(theirs, outputs):
    """Its ``fit`` runs a network over images; these are the bounds that it would keep."""
    import torch

    features, predicted = torch.from_numpy(outputs.features), outputs.predicted
    classes = range(theirs.num_classes)
    grams = [theirs._gram_vector(features, p) for p in theirs.num_poles_list]
    own = [torch.from_numpy(predicted == c) for c in classes]
    theirs.feature_min = [[torch.stack([g[rows].min(dim=0).values for rows in own]) for g in grams]]
    theirs.feature_max = [[torch.stack([g[rows].max(dim=0).values for rows in own]) for g in grams]]
    theirs.layer_norm = torch.ones(1)


def main() -> None:
    options = harness.arguments(__doc__, what="gen", rows=10_000, classes=100)
    harness.stand_in_for_torchvision()
    import torch

    torch.set_num_threads(1)
    rows = options.rows // 10 if options.quick else options.rows
    logits, features, *head = make_outputs(min(rows, 10_000), options.classes, seed=1)
    outputs = (np.tile(logits, (-(-rows // len(logits)), 1))[:rows], features, *head)  # features of a million: 2 GB
    train = make_outputs(5_000, options.classes, seed=2)[:2]
    ours, peer = peers(options.what, *outputs, train)
    with torch.inference_mode():
        scores, theirs = ours(), peer().numpy()
        error = np.abs(scores - theirs) / np.maximum(1.0, np.abs(theirs))
        assert error.max() < 1e-4, f"scores differ by {error.max():.2g}"
        slow = options.what in ("dice", "gram")
        result = harness.in_turns(ours, peer, quick=options.quick, **({"peer_repeats": 2} if slow else {}))
    harness.report(result | {"error": float(error.max())}, "numpy", "torch", "pytorch-ood")


if __name__ == "__main__":
    main()
