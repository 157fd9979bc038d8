"""What the paper prints: its result tables, set sizes, accuracies and claimed gains, under this package's names.

The numbers stand in ``csv/``; nothing here judges them. :mod:`normscale.bench.paper.audit` does.

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

IN_SETS = ("cifar10", "cifar100", "svhn", "tinyimagenet")
"""The sets that networks were trained on."""

LISTED_OOD_SETS = (
    "gaussian", "uniform", "svhn", "cifar10", "cifar100", "textures", "lsun", "tinyimagenet", "places365",
)  # fmt: skip
"""What the text and the first table's caption name as OoD sets; a set is left out of its own list."""

OOD_SIZES = {
    "cifar100": 10_000,
    "tinyimagenet": 10_000,
    "lsun": 3_000,
    "places365": 36_500,
    "textures": 5_640,
    "svhn": 26_032,
}
"""Rows of each OoD set; noise has as many as the in-distribution test set."""

TEST_SIZES = {"cifar10": 10_000, "cifar100": 10_000, "svhn": 26_032, "tinyimagenet": 10_000}
"""Rows of each in-distribution test set. CIFAR-10's is not printed: it is that of the data set."""


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

GAINS_OVER_RIVALS = {"auroc": 0.0978, "aupr_out": 0.0599, "fpr95_out": -0.3319}
"""Relative change "over previous state-of-the-art methods", as the abstract gives it."""

GAINS_OVER_MSP = {"auroc": 0.23, "aupr_out": 0.24, "fpr95_out": -0.31}
"""Relative change over plain MSP, as the text gives it."""


class PaperRow(NamedTuple):
    """A row of the expanded tables. ``ood_set`` is ``"average"`` where the paper averages over OoD sets."""

    in_set: str
    ood_set: str
    method: str
    metric: str
    mean: float
    std: float


class MainRow(NamedTuple):
    """A row of the main text's tables, ``"comparison"`` or ``"norm_scaling_vs_thresholds"``."""

    table: str
    in_set: str
    method: str
    metric: str
    mean: float
    std: float


def paper_results() -> list[PaperRow]:
    """Every row of the expanded tables, in the paper's order.

    Examples
    --------
    >>> rows = paper_results()
    >>> len(rows), rows[0]
    (585, PaperRow(in_set='cifar10', ood_set='gaussian', method='msp', metric='auroc', mean=0.6991, std=0.2232))
    """
    return list(_expanded())


def main_tables() -> list[MainRow]:
    """Every row of the two tables in the main text.

    Examples
    --------
    >>> main_tables()[0]
    MainRow(table='comparison', in_set='cifar10', method='msp', metric='auroc', mean=0.8234, std=0.0538)
    """
    return [
        MainRow(row["table"], SETS[row["in_dataset"]], method, metric_name(method, row["metric"]), *_numbers(row))
        for row in _read("main_tables.csv")
        for method in (METHODS[row["method"]],)
    ]


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
        With the positive class that the paper's column has, see the module: multi-threshold has ``aupr_in`` and no
        ``aupr_out``, the others the reverse.

    Examples
    --------
    >>> paper_value("cifar10", "svhn", "norm_scaling", "auroc")
    PaperValue(mean=0.9522, std=0.012)
    >>> paper_value("cifar10", "svhn", "multi_threshold", "aupr_in")
    PaperValue(mean=0.8715, std=0.0053)
    >>> paper_value("cifar10", "svhn", "multi_threshold", "aupr_out") is None
    True
    """
    return _index().get((in_set, ood_set, method, one_of(metric, "metric", METRICS)))


def ood_size(in_set: str, ood_set: str) -> int:
    """How many rows an OoD set has in the paper beside the test set of ``in_set``.

    Examples
    --------
    >>> ood_size("svhn", "lsun"), ood_size("svhn", "gaussian")
    (3000, 26032)
    """
    return OOD_SIZES.get(ood_set, TEST_SIZES[in_set])


def metric_name(method: str, printed: str) -> str:
    """Our name of a printed column (``AUROC``, ``AUPR`` or ``FPR95``) of a method; the positive class is in it."""
    if printed == "AUPR":
        return "aupr_in" if method == "multi_threshold" else "aupr_out"
    return {"AUROC": "auroc", "FPR95": "fpr95_out"}[printed]


@cache
def _expanded() -> tuple[PaperRow, ...]:
    return tuple(
        PaperRow(SETS[row["in_dataset"]], SETS[row["ood_dataset"]], method, metric_name(method, row["metric"]), *both)
        for row in _read("appendix_results.csv")
        for method, both in ((METHODS[row["method"]], _numbers(row)),)
    )


@cache
def _index() -> dict[tuple[str, str, str, str], PaperValue]:
    return {row[:4]: PaperValue(row.mean, row.std) for row in _expanded()}


def _read(name: str) -> list[dict[str, str]]:
    text = resources.files("normscale.bench.paper").joinpath("csv", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _numbers(row: dict[str, str]) -> tuple[float, float]:
    return float(row["mean"]), float(row["std"])
