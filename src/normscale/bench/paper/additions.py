"""What the paper adds to a report: its numbers beside the runs', its claims with verdicts, and its figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.paper.claims import PER_CLASS, PLAIN, claims_table
from normscale.bench.paper.openood import openood
from normscale.bench.paper.presets import PRESETS, SUBJECT
from normscale.bench.paper.published import ACCURACIES, AVERAGE, IN_SETS, TEST_SIZES, ood_size, paper_results
from normscale.bench.report.published import PublishedValue, Reference
from normscale.bench.report.runs import ReportedRun
from normscale.bench.report.scoreboard import Scoreboard
from normscale.bench.report.table import Column, ReportTable, Row, Section
from normscale.bench.report.writing import Additions
from normscale.detectors.norm_scaling import NormScaling
from normscale.metrics.temperature import ece_curve
from normscale.outputs import LOGITS

if TYPE_CHECKING:
    from normscale.bench.report.gallery import Drawn

PAPER_WIDTH = 64
"""Of the paper's ResNet-18."""
_RAW_TEMPERATURES = (0.5, 1.0, 2.0, 4.0)
_SCALED_TEMPERATURES = (0.25, 0.5, 1.0, 2.0)


def paper_additions() -> Additions:
    """Everything the paper adds to a report, where a run is of one of its presets: see :func:`paper_reference`."""
    return Additions(_reference, openood(), _tables, _figures)


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


def _figures(run: RunFolder, board: Scoreboard) -> Iterator[Drawn]:
    """The paper's second, third and fourth figure, for the first finished network of one of its presets."""
    if _reference(run) is None and run.plan.name not in PRESETS:
        return
    yield from _confidences(run, board)
    yield from _calibration(run, board.seeds[0])


def _confidences(run: RunFolder, board: Scoreboard) -> Iterator[Drawn]:
    from normscale.bench.report.figures.confidences import draw_confidences
    from normscale.bench.report.gallery import Drawn, first_seed, group_of, network_of, slugs

    titles = ("without norm-scaling", "with norm-scaling")
    for name, slug in slugs(board.ood_sets).items():
        seed = first_seed(board, name)
        if not all((method, name, seed) in board.cells for method in (PLAIN, SUBJECT)):
            continue
        (_, plain), (_, scaled) = (run.load_cell(seed, name, method) for method in (PLAIN, SUBJECT))
        caption = f"Softmax confidence on {name} without and with norm-scaling{network_of(run, seed)}."
        figure = draw_confidences(plain[:2], scaled[:2], name, titles)
        yield Drawn(f"confidence_{slug}", caption, figure, group_of(name))


def _calibration(run: RunFolder, seed: int) -> Iterator[Drawn]:
    from normscale.bench.report.figures.calibration import BINS, TEMPERATURES, at_one, draw_ece, draw_reliability
    from normscale.bench.report.gallery import CALIBRATION, Drawn, network_of

    if not all(run.has_outputs(seed, name, [LOGITS]) for name in ("train", "test")):
        return
    test = run.outputs(seed, "test")
    if test.labels is None or not (test.labels >= 0).any():
        return
    test = test[test.labels >= 0]
    labels = np.asarray(test.labels)
    scaled = NormScaling().fit(run.outputs(seed, "train").only(LOGITS)).scale(test.logits)
    raw_curve, scaled_curve = (ece_curve(logits, labels, TEMPERATURES, BINS) for logits in (test.logits, scaled))
    words = [
        f"{name} {curve.best_ece:.3f} at {curve.best_temperature:.2g} and {at_one(curve):.3f} at 1"
        for name, curve in (("raw logits", raw_curve), ("norm-scaled logits", scaled_curve))
    ]
    network = network_of(run, seed)
    caption = f"Expected calibration error against temperature ({BINS} bins): {'; '.join(words)}{network}."
    curves = {"temperature scaling": raw_curve, "norm-scaling": scaled_curve}
    yield Drawn("ece", caption, draw_ece(curves, run.plan.in_set), CALIBRATION)
    caption = f"Reliability of the softmax of raw logits at four temperatures; dashed: perfect{network}."
    figure = draw_reliability(test.logits, labels, _RAW_TEMPERATURES, "Raw logits")
    yield Drawn("reliability", caption, figure, CALIBRATION)
    caption = f"The same of norm-scaled logits, with the statistics of the training set{network}."
    figure = draw_reliability(scaled, labels, _SCALED_TEMPERATURES, "Norm-scaled logits")
    yield Drawn("reliability_scaled", caption, figure, CALIBRATION)
