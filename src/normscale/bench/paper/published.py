"""What the paper prints: its result tables, set sizes, accuracies and claimed gains, under this package's names.

The paper names no positive class. Its AUPR column counts OoD as positive (``aupr_out``) for every method except
multi-threshold, whose column counts in-distribution as positive (``aupr_in``): it falls as the OoD set grows. FPR95
is ``fpr95_out`` for norm-scaling and energy; for the other methods that is assumed.

References
----------
Ravikumar & Roy, "Norm-Scaling for Out-of-Distribution Detection".
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

from normscale._validate import one_of
from normscale.metrics import METRICS

AVERAGE = "average"
"""Stands for the set in a row that the paper prints as an average over sets."""
EXPANDED, COMPARISON, THRESHOLDS = "expanded", "comparison", "norm_scaling_vs_thresholds"
"""The tables of the appendix, and the two of the main text."""

SETS = {
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "SVHN": "svhn",
    "TinyImageNet": "tinyimagenet",
    "LSUN": "lsun",
    "Places365": "places365",
    "Textures": "textures",
    "Gaussian Noise": "gaussian",
    "Uniform Noise": "uniform",
    "Average": AVERAGE,
}
METHODS = {
    "MSP": "msp",
    "Multi-Threshold": "multi_threshold",
    "ODIN": "odin",
    "Mahalanobis": "mahalanobis",
    "Energy": "energy",
    "Norm-Scaling": "norm_scaling",
}
TITLES = {ours: printed for printed, ours in (METHODS | SETS).items()}
"""A method or a set as the paper calls it."""
IN_SETS = ("cifar10", "cifar100", "svhn", "tinyimagenet")
"""The sets that networks were trained on."""
LISTED_OOD_SETS = (
    "gaussian", "uniform", "svhn", "cifar10", "cifar100", "textures", "lsun", "tinyimagenet", "places365",
)  # fmt: skip
"""What the text and the first table's caption name as OoD sets; a set is left out of its own list."""
OOD_SIZES = {
    "cifar100": 10_000, "tinyimagenet": 10_000, "lsun": 3_000, "places365": 36_500, "textures": 5_640, "svhn": 26_032,
}  # fmt: skip
"""Rows of each OoD set; noise has as many as the in-distribution test set."""
TEST_SIZES = {"cifar10": 10_000, "cifar100": 10_000, "svhn": 26_032, "tinyimagenet": 10_000}
"""Rows of each in-distribution test set. CIFAR-10's is not printed: it is that of the data set."""
GAINS_OVER_RIVALS = {"auroc": 0.0978, "aupr_out": 0.0599, "fpr95_out": -0.3319}
"""Relative change "over previous state-of-the-art methods", as the abstract gives it."""
GAINS_OVER_MSP = {"auroc": 0.23, "aupr_out": 0.24, "fpr95_out": -0.31}
"""Relative change over plain MSP, as the text gives it."""


class PaperValue(NamedTuple):
    """A mean over five seeds, and the ± printed beside it."""

    mean: float
    std: float


ACCURACIES = {
    "cifar10": PaperValue(0.9290, 0.0027),
    "cifar100": PaperValue(0.7162, 0.0018),
    "svhn": PaperValue(0.9569, 0.0016),
    "tinyimagenet": PaperValue(0.3280, 0.0017),
}
"""Share of right answers of the ResNet-18 trained on each set."""


class PaperRow(NamedTuple):
    """A row of the paper's tables. ``ood_set`` is ``"average"`` where the paper averages over OoD sets."""

    table: str
    in_set: str
    ood_set: str
    method: str
    metric: str
    mean: float
    std: float


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """Every row of the expanded tables, then of the two of the main text, in the paper's order.

    Examples
    --------
    >>> paper_rows()[0][1:]
    ('cifar10', 'gaussian', 'msp', 'auroc', 0.6991, 0.2232)
    """
    found = []
    for name in ("appendix_results.csv", "main_tables.csv"):
        text = resources.files("normscale.bench.paper").joinpath("csv", name).read_text(encoding="utf-8")
        for row in csv.DictReader(text.splitlines()):
            method, ood_set = METHODS[row["method"]], SETS[row.get("ood_dataset", "Average")]
            names = row.get("table", EXPANDED), SETS[row["in_dataset"]], ood_set, method
            numbers = float(row["mean"]), float(row["std"])
            found.append(PaperRow(*names, metric_name(method, row["metric"]), *numbers))
    return tuple(found)


@cache
def _index() -> dict[tuple[str, ...], PaperValue]:
    return {row[1:5]: PaperValue(row.mean, row.std) for row in paper_rows() if row.table == EXPANDED}


def paper_value(in_set: str, ood_set: str, method: str, metric: str) -> PaperValue | None:
    """What the paper has for one method on one pair of sets; None where it has nothing.

    Parameters
    ----------
    in_set, ood_set : str
        Names as in :func:`normscale.bench.data.list_sets`, or ``"average"``.
    method : str
        The name of a detector. The paper's norm-scaling is the one that streams; its multi-threshold is the mean over
        predicted classes (:func:`normscale.evaluate_per_class`).
    metric : {"auroc", "aupr_out", "aupr_in", "fpr95_out", "fpr95_in"}
        With the positive class that the paper's column has: multi-threshold has ``aupr_in``, the others ``aupr_out``.

    Examples
    --------
    >>> paper_value("cifar10", "svhn", "norm_scaling", "auroc")
    PaperValue(mean=0.9522, std=0.012)
    >>> paper_value("cifar10", "svhn", "multi_threshold", "aupr_out") is None
    True
    """
    return _index().get((in_set, ood_set, method, one_of(metric, "metric", METRICS)))


def ood_size(in_set: str, ood_set: str) -> int:
    """How many rows an OoD set has in the paper beside the test set of ``in_set``."""
    return OOD_SIZES.get(ood_set, TEST_SIZES[in_set])


def metric_name(method: str, printed: str) -> str:
    """Our name of a printed column (``AUROC``, ``AUPR`` or ``FPR95``) of a method; the positive class is in it."""
    if printed == "AUPR":
        return "aupr_in" if method == "multi_threshold" else "aupr_out"
    return {"AUROC": "auroc", "FPR95": "fpr95_out"}[printed]
