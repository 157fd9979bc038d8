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
import json
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from normscale._validate import one_of
from normscale.bench.report.published import PublishedValue
from normscale.metrics import METRICS

AVERAGE = "average"
"""Stands for the set in a row that the paper prints as an average over sets."""
EXPANDED, COMPARISON, THRESHOLDS = "expanded", "comparison", "norm_scaling_vs_thresholds"
"""The tables of the appendix, and the two of the main text."""


def _read(name: str) -> str:
    return resources.files("normscale.bench.paper").joinpath("csv", name).read_text(encoding="utf-8")


_TEXT: dict[str, Any] = json.loads(_read("paper.json"))
SETS: dict[str, str] = _TEXT["sets"]
METHODS: dict[str, str] = _TEXT["methods"]
TITLES = {ours: printed for printed, ours in (METHODS | SETS).items()}
"""A method or a set as the paper calls it."""
IN_SETS = tuple(_TEXT["in_sets"])
"""The sets that networks were trained on."""
LISTED_OOD_SETS = tuple(_TEXT["listed_ood_sets"])
"""What the text and the first table's caption name as OoD sets; a set is left out of its own list."""
OOD_SIZES: dict[str, int] = _TEXT["ood_sizes"]
"""Rows of each OoD set; noise has as many as the in-distribution test set."""
TEST_SIZES: dict[str, int] = _TEXT["test_sizes"]
"""Rows of each in-distribution test set. CIFAR-10's is not printed: it is that of the data set."""
ACCURACIES = {name: PublishedValue(*both) for name, both in _TEXT["accuracies"].items()}
"""Share of right answers of the ResNet-18 trained on each set."""
GAINS_OVER_RIVALS: dict[str, float] = _TEXT["gains_over_rivals"]
"""Relative change "over previous state-of-the-art methods", as the abstract gives it."""
GAINS_OVER_MSP: dict[str, float] = _TEXT["gains_over_msp"]
"""Relative change over plain MSP, as the text gives it."""


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
    """Every row of the expanded tables, then of the two of the main text, in the paper's order."""
    rows = []
    for name in ("appendix_results.csv", "main_tables.csv"):
        for row in csv.DictReader(_read(name).splitlines()):
            method, ood_set = METHODS[row["method"]], SETS[row.get("ood_dataset", "Average")]
            names = row.get("table", EXPANDED), SETS[row["in_dataset"]], ood_set, method
            numbers = float(row["mean"]), float(row["std"])
            rows.append(PaperRow(*names, metric_name(method, row["metric"]), *numbers))
    return tuple(rows)


def values_by_name(rows: Iterable[PaperRow]) -> dict[tuple[str, ...], PublishedValue]:
    """Means and deviations by table, in-distribution set, OoD set, method and metric."""
    return {row[:5]: PublishedValue(row.mean, row.std) for row in rows}


_by_name = cache(lambda: values_by_name(paper_rows()))


def paper_value(in_set: str, ood_set: str, method: str, metric: str) -> PublishedValue | None:
    """What the paper has for one method on one pair of sets; None where it has nothing.

    The paper's norm-scaling is the one that streams; its multi-threshold is the mean over predicted classes. Sets have
    their names in :func:`normscale.bench.data.list_sets`, or ``"average"``.

    Examples
    --------
    >>> paper_value("cifar10", "svhn", "norm_scaling", "auroc")
    PublishedValue(mean=0.9522, std=0.012)
    >>> paper_value("cifar10", "svhn", "multi_threshold", "aupr_out") is None
    True
    """
    return _by_name().get((EXPANDED, in_set, ood_set, method, one_of(metric, "metric", METRICS)))


def ood_size(in_set: str, ood_set: str) -> int:
    """How many rows an OoD set has in the paper beside the test set of ``in_set``."""
    return OOD_SIZES.get(ood_set, TEST_SIZES[in_set])


def metric_name(method: str, printed: str) -> str:
    """Our name of a printed column (``AUROC``, ``AUPR`` or ``FPR95``) of a method; the positive class is in it."""
    if printed == "AUPR":
        return "aupr_in" if method == "multi_threshold" else "aupr_out"
    return {"AUROC": "auroc", "FPR95": "fpr95_out"}[printed]
