"""What the paper adds to a report: its numbers beside the run's, its first table, its figures, and its claim on MSP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from normscale.detectors.norm_scaling import NormScaling
from normscale.experiments.methods import title_of
from normscale.experiments.run_folder import RunFolder
from normscale.metrics.temperature import ece_curve
from normscale.outputs import LOGITS
from normscale.paper.presets import SUBJECT
from normscale.paper.published import ACCURACIES, AVERAGE, IN_SETS, ood_size, paper_results
from normscale.report.additions import Additions
from normscale.report.headline import signed
from normscale.report.reference import BesideReference, PublishedValue, Reference
from normscale.report.scoreboard import Scoreboard
from normscale.report.table import ReportTable
from normscale.report.tables import WITH_AUPR_IN, average_table

if TYPE_CHECKING:
    from normscale.report.gallery import Drawn

PLAIN, PER_CLASS = "msp", "multi_threshold"
_RAW_TEMPERATURES = (0.5, 1.0, 2.0, 4.0)
_SCALED_TEMPERATURES = (0.25, 0.5, 1.0, 2.0)


def paper_additions(run: RunFolder) -> Additions:
    """Everything the paper adds to the report of a run."""
    return Additions(paper_reference(run.plan.in_set), _threshold_tables, _gain_over_msp, _figures)


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
    note = (
        "The paper's AUPR of Multi-Threshold counts in-distribution as positive, so it is compared with ours of that "
        "kind: in the table of thresholds, and set by set where that is shown."
    )
    untold = "The paper does not say which step, layers and weights its ODIN and Mahalanobis have, nor what chose them."
    accuracy = ACCURACIES[in_set]
    return Reference(
        "paper",
        {(row.ood_set, row.method, row.metric): PublishedValue(row.mean, row.std) for row in rows},
        {row.ood_set: ood_size(in_set, row.ood_set) for row in rows},
        PublishedValue(accuracy.mean, accuracy.std),
        {PER_CLASS: note, "odin": untold},
    )


def _threshold_tables(board: Scoreboard, beside: BesideReference) -> list[ReportTable]:
    """MSP with one threshold, with one per class, and with norm-scaling: the paper's first table."""
    methods = [name for name in (PLAIN, PER_CLASS, SUBJECT) if name in board.methods]
    title = "One threshold, one per class, or norm-scaling"
    return [average_table("thresholds", title, board, beside, methods, WITH_AUPR_IN)]


def _gain_over_msp(board: Scoreboard, beside: BesideReference) -> list[str]:
    """The gain over MSP, which depends less on the network than the numbers themselves."""
    subject, plain = beside.average("auroc", SUBJECT), beside.average("auroc", PLAIN)
    if subject is None or plain is None or subject.ood_sets != plain.ood_sets:
        return []
    return [
        f"{title_of(SUBJECT)}'s gain over MSP there is {signed(subject.ours - plain.ours)} AUROC here and "
        f"{signed(subject.theirs - plain.theirs)} in the paper."
    ]


def _figures(run: RunFolder, board: Scoreboard) -> Iterator[Drawn]:
    """The paper's second, third and fourth figure, for the first finished network."""
    yield from _confidences(run, board)
    yield from _calibration(run, board.seeds[0])


def _confidences(run: RunFolder, board: Scoreboard) -> Iterator[Drawn]:
    from normscale.report.figures.confidences import draw_confidences
    from normscale.report.gallery import Drawn, first_seed, group_of, network_of, slugs

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
    from normscale.report.figures.calibration import BINS, TEMPERATURES, at_one, draw_ece, draw_reliability
    from normscale.report.gallery import CALIBRATION, Drawn, network_of

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
