"""Detectors that pytorch-ood has too: the same scores, and how long they take; 10 000 rows, 512 features, 100 classes.

    python benchmarks/detectors.py                    # all, as a table
    python benchmarks/detectors.py --name knn         # one, as a line of JSON for run.py

Both sides are fitted on the same outputs and score the same rows in turns, one thread each. A line of TABLE says how
each side is made and called, how pytorch-ood's scores become ours, how far they may differ and why; to add a detector
is to add a line. Ours read the logits that the network gave; pytorch-ood's detectors of features compute them again
from the features and the last layer, which is part of their time. Ours work in float64, pytorch-ood's in float32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import harness
import numpy as np

ROWS, FEATURES, CLASSES, TRAINING_ROWS = 10_000, 512, 100, 50_000


class Data(NamedTuple):
    """Outputs for both sides: ours as ModelOutputs, theirs as tensors and a torch layer."""

    train: Any
    test: Any
    train_tensors: dict[str, Any]
    test_tensors: dict[str, Any]
    layer: Any


class Line(NamedTuple):
    """A detector on both sides."""

    name: str
    parameters: dict[str, Any]
    peer: Callable[[Data], Callable[[int], Any]]
    """Fit pytorch-ood's; gives a function that scores the first n test rows."""
    must: float
    """Largest ratio of times."""
    rows: int = ROWS
    """That both sides score."""
    peer_rows: int = 0
    """That the peer scores where it would take too long for all; times are per row. 0: as many as ours."""
    training_rows: int = 20_000
    in_their_units: Callable[[Any, Data], Any] = lambda scores, data: scores
    """Our scores in their units, where both mean the same."""
    tolerance: float = 1e-4
    """Largest difference, in deviations of the score."""
    reason: str = ""
    """Why the scores differ in units, or by more than 1e-4."""


def by_features(name: str, *arguments: str, **parameters: Any) -> Callable[[Data], Callable[[int], Any]]:
    """A detector of pytorch-ood that is fitted on features and labels; ``layer`` among the arguments is the head."""

    def fit(data: Data) -> Callable[[int], Any]:
        import pytorch_ood.detector

        given = [{"layer": data.layer, "none": None}[argument] for argument in arguments]
        detector = getattr(pytorch_ood.detector, name)(*given, **parameters)
        detector.fit_features(data.train_tensors["features"], data.train_tensors["labels"])
        return lambda n: detector.predict_features(data.test_tensors["features"][:n])

    return fit


def vim(dimensions: int) -> Callable[[Data], Callable[[int], Any]]:
    def fit(data: Data) -> Callable[[int], Any]:
        from pytorch_ood.detector import ViM

        detector = ViM(None, d=dimensions, w=data.layer.weight, b=data.layer.bias)
        detector.fit_features(data.train_tensors["features"], data.train_tensors["labels"])
        return lambda n: detector.predict_features(data.test_tensors["features"][:n])

    return fit


def gradnorm(data: Data) -> Callable[[int], Any]:
    from pytorch_ood.detector import GradNorm

    detector = GradNorm(data.layer, param_filter=lambda name: name == "weight")
    detector.to("cpu")
    return lambda n: detector.predict(data.test_tensors["features"][:n])


def openmax(data: Data) -> Callable[[int], Any]:
    from pytorch_ood.detector import OpenMax

    import normscale as ns

    detector = OpenMax(None, tailsize=10, alpha=10, euclid_weight=1.0)
    detector.fit_logits(data.train_tensors["logits"], data.train_tensors["labels"])
    fitted = ns.make_detector("openmax", tail=10).fit(data.train).weibull_
    for c, distribution in detector._openmax.distributions.items():  # see the reason in TABLE
        distribution.min_val, distribution.c = fitted.smallest[c], fitted.shape[c]
        distribution.scale = distribution.translation * np.exp(fitted.log_scale[c])
    return lambda n: detector.predict_logits(data.test_tensors["logits"][:n])


def probability(log_odds: Any, data: Data) -> Any:
    return 1.0 / (1.0 + np.exp(-log_odds))


SCATTER = (
    "theirs divide the scatter matrix by nothing instead of the number of rows{half}, add 1e-6 to its diagonal and "
    "invert it in float32"
)
"""What makes distances differ."""

TABLE = [
    Line("mahalanobis", {}, by_features("Mahalanobis", "none"), 0.02, peer_rows=500,
         in_their_units=lambda scores, data: scores / (2.0 * len(data.train)),
         reason=SCATTER.format(half=", halve the square")),
    Line("relative_mahalanobis", {}, by_features("RMD", "none"), 0.02, peer_rows=500,
         in_their_units=lambda scores, data: scores / len(data.train), reason=SCATTER.format(half="")),
    Line("knn", {"k": 50}, by_features("KNN", "none", k=50), 0.5, rows=1_000, training_rows=TRAINING_ROWS),
    Line("vim", {"dimensions": 64}, vim(64), 0.7),
    Line("vim-half", {"dimensions": 256}, vim(256), 1.0),  # the authors' rule; float64 costs most here
    Line("she", {}, by_features("SHE", "none", "layer"), 1.0),
    Line("fdbd", {}, by_features("fDBD", "none", "layer"), 1.0),
    Line("nci", {"alpha": 0.01}, by_features("NCI", "none", "layer", alpha=0.01), 1.0),
    Line("nnguide", {"k": 10}, by_features("NNGuide", "none", "layer", k=10), 1.0, rows=1_000,
         training_rows=TRAINING_ROWS),
    Line("gradnorm", {}, gradnorm, 1.0, peer_rows=500),
    Line("openmax", {"tail": 10}, openmax, 1.0, peer_rows=100, in_their_units=probability,
         reason="theirs is a probability, ours its log-odds; theirs gets our Weibull distributions, because the "
         "optimiser of scipy that fits theirs stops far from the likelihood's maximum"),
]  # fmt: skip


def make_data(training_rows: int, rows: int) -> Data:
    """Outputs of a last layer on correlated features around class means; labels are the predicted classes."""
    import torch

    import normscale as ns

    fixed = np.random.default_rng(0)
    axes = np.linalg.qr(fixed.standard_normal((FEATURES, FEATURES)))[0].astype(np.float32)
    spread = np.repeat(np.float32([4.0, 2.0, 1.0]), (64, 192, 256))  # gaps where principal spaces are cut
    means = 3.0 * fixed.standard_normal((CLASSES, 64), dtype=np.float32) @ axes[:64]
    weight = (means - means.mean(axis=0)) / np.float32(32.0)
    bias = fixed.standard_normal(CLASSES, dtype=np.float32)
    layer = torch.nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(bias))

    def draw(n: int, seed: int) -> tuple[Any, dict[str, Any]]:
        rng = np.random.default_rng(seed)
        features = spread * rng.standard_normal((n, FEATURES), dtype=np.float32) @ axes + means[np.arange(n) % CLASSES]
        logits = features @ weight.T + bias
        labels = logits.argmax(axis=1)
        tensors = {"features": features, "logits": logits, "labels": labels}
        outputs = ns.ModelOutputs(logits, features, labels, head=(weight, bias))
        return outputs, {name: torch.from_numpy(array) for name, array in tensors.items()}

    train, train_tensors = draw(training_rows, 1)
    test, test_tensors = draw(rows, 2)
    return Data(train, test, train_tensors, test_tensors, layer)


def measure(line: Line, quick: bool) -> dict[str, Any]:
    """Check that both give the same scores, then time them in turns."""
    import torch

    import normscale as ns

    share = 10 if quick else 1
    rows = line.rows // share
    peer_rows = min(rows, line.peer_rows or rows)
    data = make_data(line.training_rows, rows)
    detector = ns.make_detector(line.name.partition("-")[0], **line.parameters).fit(data.train)
    peer = line.peer(data)
    theirs = peer(peer_rows).detach().numpy().astype(np.float64)
    scores = line.in_their_units(detector.score(data.test)[:peer_rows], data)
    difference = float(np.abs(scores - theirs).max() / theirs.std())
    if not difference <= line.tolerance:
        raise AssertionError(f"{line.name}: scores differ by {difference:.2g} deviations, allowed {line.tolerance:g}")
    with torch.no_grad():
        result = harness.in_turns(lambda: detector.score(data.test), lambda: peer(peer_rows), quick=quick)
    each = {"ours": result["ours"] / rows, "peer": result["peer"] / peer_rows}
    return result | each | {"ratio": each["ours"] / each["peer"], "difference": difference}


def main() -> int:
    options = harness.arguments(__doc__, name="")
    harness.stand_in_for_torchvision()
    import torch

    torch.set_num_threads(1)
    lines = [line for line in TABLE if options.name in ("", line.name)]
    if options.name:
        if not lines:
            sys.exit(f"no detector {options.name!r}; there are {', '.join(line.name for line in TABLE)}")
        harness.report(measure(lines[0], options.quick), "numpy", "torch", "pytorch-ood")
        return 0
    print("| detector | ours, us a row | pytorch-ood | ratio | must | difference, in deviations | |")
    print("|---|---|---|---|---|---|---|")
    missed = False
    for line in lines:
        found = measure(line, options.quick)
        missed |= found["ratio"] > line.must
        print(
            f"| {line.name} | {found['ours'] * 1e6:.3g} | {found['peer'] * 1e6:.3g} | {found['ratio']:.3g} | "
            f"{line.must:g} | {found['difference']:.1g} | {line.reason} |",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
