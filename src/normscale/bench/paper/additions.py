"""What the paper adds to a report: its numbers beside the runs', and its claims with verdicts."""

from __future__ import annotations

from functools import cache
from importlib import resources

from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.paper.claims import claims_table
from normscale.bench.paper.presets import PRESETS
from normscale.bench.paper.published import ACCURACIES, AVERAGE, EXPANDED, IN_SETS, TEST_SIZES, ood_size, paper_rows
from normscale.bench.report.published import Additions, OodGroupReference, OodGroups, PublishedValue, Reference
from normscale.encoding.json_text import read_json


def paper_additions() -> Additions:
    """The paper's numbers and claims for runs of its presets, and OpenOOD's groups for all."""
    return Additions(_reference, openood(), lambda runs: [claims_table(runs)])


def _reference(run: RunFolder) -> Reference | None:
    """The paper's numbers for a run of its presets; somebody's own run never has them beside it."""
    return paper_reference(run.plan.in_set) if run.plan.network and run.plan.name in PRESETS else None


def paper_reference(in_set: str) -> Reference | None:
    """What the paper prints for networks trained on a set; None for one it does not have."""
    if in_set not in IN_SETS:
        return None
    rows = [row for row in paper_rows() if row[:2] == (EXPANDED, in_set) and row.ood_set != AVERAGE]
    return Reference(
        "paper",
        {row[2:5]: PublishedValue(row.mean, row.std) for row in rows},
        {row.ood_set: ood_size(in_set, row.ood_set) for row in rows},
        TEST_SIZES[in_set],
        ACCURACIES[in_set],
        {
            "multi_threshold": "The paper's AUPR of Multi-Threshold counts in-distribution as positive; it stands "
            "beside ours of that kind.",
            "odin": "The paper does not say which step, layers and weights its ODIN and Mahalanobis have, nor what "
            "chose them. Its ResNet-18 has width 64.",
        },
    )


@cache
def openood() -> OodGroupReference:
    """OpenOOD v1.5: its near and far OoD sets, and its published averages, between 0 and 1.

    Examples
    --------
    >>> openood().groups["cifar10"].near, openood().groups["cifar10"].auroc["knn"]
    (['cifar100', 'tinyimagenet'], [0.9064, 0.9296])
    """
    document = read_json(resources.files("normscale.bench.paper").joinpath("openood_v1_5.json").read_text("utf-8"))
    groups = {name: OodGroups(**one) for name, one in document["groups"].items()}
    return OodGroupReference(**{**document, "groups": groups})
