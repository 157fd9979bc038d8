"""What the paper adds to a report: its numbers beside the runs', and its claims with verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.paper.claims import PER_CLASS, claims_table
from normscale.bench.paper.openood import openood
from normscale.bench.paper.presets import PRESETS
from normscale.bench.paper.published import ACCURACIES, AVERAGE, IN_SETS, TEST_SIZES, ood_size, paper_results
from normscale.bench.report.published import PublishedValue, Reference
from normscale.bench.report.runs import ReportedRun
from normscale.bench.report.table import Column, ReportTable, Row, Section
from normscale.bench.report.writing import Additions

PAPER_WIDTH = 64
"""Of the paper's ResNet-18."""


def paper_additions() -> Additions:
    """Everything the paper adds to a report, where a run is of one of its presets: see :func:`paper_reference`."""
    return Additions(_reference, openood(), _tables)


def _reference(run: RunFolder) -> Reference | None:
    """The paper's numbers for a run of its presets; somebody's own run never has them beside it."""
    return paper_reference(run.plan.in_set) if run.plan.network and run.plan.name in PRESETS else None


def paper_reference(in_set: str) -> Reference | None:
    """What the paper prints for networks trained on a set; None for one it does not have.

    Examples
    --------
    >>> reference = paper_reference("cifar10")
    >>> reference.values["svhn", "norm_scaling", "auroc"].mean, reference.sizes["svhn"]
    (0.9522, 26032)
    """
    if in_set not in IN_SETS:
        return None
    rows = [row for row in paper_results() if row.in_set == in_set and row.ood_set != AVERAGE]
    note = "The paper's AUPR of Multi-Threshold counts in-distribution as positive; it stands beside ours of that kind."
    unsaid = "The paper does not say which step, layers and weights its ODIN and Mahalanobis have, nor what chose them."
    accuracy = ACCURACIES[in_set]
    return Reference(
        "paper",
        {(row.ood_set, row.method, row.metric): PublishedValue(row.mean, row.std) for row in rows},
        {row.ood_set: ood_size(in_set, row.ood_set) for row in rows},
        TEST_SIZES[in_set],
        PublishedValue(accuracy.mean, accuracy.std),
        {PER_CLASS: note, "odin": unsaid},
    )


def _tables(runs: Sequence[ReportedRun]) -> list[ReportTable]:
    return [table for table in (claims_table(runs), differences_table(runs)) if table is not None]


def differences_table(runs: Sequence[ReportedRun]) -> ReportTable | None:
    """In what runs differ from the paper's: networks, and the sizes of OoD sets with their shares of the streams."""
    rows: list[Row] = []
    for one in runs:
        theirs, plan, board = one.beside.reference, one.run.plan, one.board
        if not one.beside.is_there:
            continue
        rows.append((one.title, "width of the ResNet-18", str(PAPER_WIDTH), str(plan.width)))
        if plan.epochs is not None:
            rows.append((one.title, "epochs", "not said", str(plan.epochs)))
        rows.append((one.title, "test rows", f"{theirs.n_id:,}", f"{board.n_id():,}"))
        for name, size in theirs.sizes.items():
            here = _rows(board.n_ood(name), board.n_id()) if name in board.ood_sets else "not measured"
            rows.append((one.title, f"{name}: rows (share of the stream)", _rows(size, theirs.n_id or 0), here))
    rows = [row for row in rows if row[2] != row[3]]
    columns = [Column("In-distribution set"), Column("What"), Column("Paper"), Column("Here")]
    notes = ["Running statistics learn from the OoD rows of the stream, so their share drives the gain."]
    table = ReportTable("differences", "What differs from the paper", columns, [Section("", rows)], notes)
    return table if rows else None


def _rows(n_ood: int, n_id: int) -> str:
    return f"{n_ood:,} ({100 * n_ood / (n_ood + n_id):.0f} %)"
