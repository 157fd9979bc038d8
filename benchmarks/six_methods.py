"""Six methods fitted, scored and evaluated after extraction, against the four of them that pytorch-ood has.

10 000 in-distribution and 26 032 OoD rows, 10 classes, 512 features, 50 000 training rows. Ours: MSP, Multi-Threshold,
ODIN's score, Mahalanobis, Energy and norm-scaling on the shuffled stream, as `normscale bench` computes its cells. The
peer: MaxSoftmax, ODIN's temperature, Mahalanobis and EnergyBased with OODMetrics. `--fit 1` counts the fitting as
well, on both sides; most of it is the covariance of Mahalanobis, which ours sums in float64.
"""

from __future__ import annotations

import harness
import numpy as np

FEATURES, CLASSES = 512, 10
SIZES = {"train": 50_000, "test": 10_000, "ood": 26_032}


def make_outputs(rows, seed, spread):
    fixed = np.random.default_rng(0)
    directions = fixed.standard_normal((CLASSES, FEATURES), dtype=np.float32) / np.float32(FEATURES**0.5)
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % CLASSES
    features = rng.standard_normal((rows, FEATURES), dtype=np.float32) + np.float32(spread) * directions[labels]
    return (features @ directions.T).astype(np.float32), features, labels


def fit_ours(train):
    from normscale.bench.experiments.methods import find_method, fit_on
    from normscale.bench.paper.presets import PAPER_METHODS

    return [one._replace(detector=fit_on(one.detector, train, None)) for one in map(find_method, PAPER_METHODS)]


def ours(methods, test, ood):
    from normscale.bench.experiments.measuring import measure

    return {one.record.method: one.record.auroc for one in measure(methods, test, {"ood": ood})}


def fit_peer(train):
    from pytorch_ood.detector import Mahalanobis

    return Mahalanobis(None).fit_features(train[1], train[2])


def peer(mahalanobis, both, labels):
    import torch
    from pytorch_ood.detector import EnergyBased, MaxSoftmax
    from pytorch_ood.metrics import OODMetrics

    with torch.inference_mode():
        scores = {
            "msp": MaxSoftmax.score(both[0]),
            "odin": MaxSoftmax.score(both[0], t=1000.0),
            "energy": EnergyBased.score(both[0]),
            "mahalanobis": mahalanobis.predict_features(both[1]),
        }
    return {name: OODMetrics().update(score, labels).compute()["AUROC"] for name, score in scores.items()}


def main() -> None:
    options = harness.arguments(__doc__, fit=0)
    harness.stand_in_for_torchvision()
    import torch

    import normscale as ns

    torch.set_num_threads(1)
    share = 10 if options.quick else 1
    arrays = {
        name: make_outputs(rows // share, seed, 0.0 if name == "ood" else 4.0)
        for seed, (name, rows) in enumerate(SIZES.items())
    }
    outputs = {name: ns.ModelOutputs(*three, perturbed_logits=three[0]) for name, three in arrays.items()}
    train = [torch.from_numpy(array) for array in arrays["train"]]
    both = [torch.from_numpy(np.concatenate([arrays["test"][i], arrays["ood"][i]])) for i in (0, 1)]
    sides = [torch.zeros(len(outputs["test"])), torch.full((len(outputs["ood"]),), -1.0)]
    labels = torch.cat(sides).long()

    methods, mahalanobis = fit_ours(outputs["train"]), fit_peer(train)

    def run_ours():
        fitted = fit_ours(outputs["train"]) if options.fit else methods
        return ours(fitted, outputs["test"], outputs["ood"])

    def run_peer():
        return peer(fit_peer(train) if options.fit else mahalanobis, both, labels)

    mine, theirs = run_ours(), run_peer()
    for name in ("msp", "energy"):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-4)
    np.testing.assert_allclose(mine["mahalanobis"], theirs["mahalanobis"], rtol=1e-2)
    result = harness.in_turns(run_ours, run_peer, quick=options.quick, peer_repeats=2)
    harness.report(result, "numpy", "torch", "pytorch-ood")


if __name__ == "__main__":
    main()
