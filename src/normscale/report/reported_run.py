"""One of several runs in a joint report: a run folder, or only its settings, results and comparisons."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from normscale.errors import InvalidInput
from normscale.experiments.results_file import read_results
from normscale.experiments.run_folder import RunFolder
from normscale.report.better_than import LEVEL, Comparison, compare_all
from normscale.report.comparison_record import ComparisonRecord
from normscale.report.reference import BesideReference, Reference
from normscale.report.scoreboard import Average, Scoreboard
from normscale.report.tables import accuracies_of


class ReportedRun(NamedTuple):
    """What a joint report needs of a run."""

    run: RunFolder
    title: str
    """Of the in-distribution set, and of the run where several have the same one."""
    board: Scoreboard
    beside: BesideReference
    accuracies: dict[int, float]
    comparisons: Sequence[Comparison]
    resamples: int
    why_no_comparisons: str = ""

    @property
    def in_set(self) -> str:
        """The name of the in-distribution set."""
        return self.run.plan.in_set

    @property
    def shared(self) -> tuple[str, ...]:
        """The OoD sets that averages are taken over: those that the reference has too, or all if there is none."""
        block = self.board.block.ood_sets
        return tuple(name for name in block if name in self.beside.ood_sets) if self.beside.is_there else block

    def average(self, metric: str, method: str) -> Average | None:
        """Of a method over the shared OoD sets."""
        return self.board.average(metric, method, self.shared)

    def published(self, metric: str, method: str) -> float | None:
        """The reference's average over the same sets; None if it does not have the method on all of them."""
        side = self.beside.average(metric, method)
        return side.theirs if side is not None and side.ood_sets == self.shared else None


def read_run(
    folder: str | os.PathLike[str],
    reference: Callable[[RunFolder], Reference | None],
    title: str = "",
    *,
    resamples: int = 1000,
    tick: Callable[[str], None] = lambda _: None,
) -> ReportedRun:
    """Read a run; without its cells, what ``results.jsonl`` and ``comparisons.json`` hold.

    Parameters
    ----------
    folder : path
    reference : function from a run to what was published for its in-distribution set
    title : str
        What the in-distribution set is called; default: its name.
    resamples : int
        Of the paired bootstrap, where it is not on disk and the scores are.
    tick : callable
        Told the OoD set after each step of the bootstrap.

    Raises
    ------
    InvalidInput
        If the run has no results.
    """
    run = RunFolder.open(folder)
    cells, accuracies = run.cells(), accuracies_of(run)
    has_scores = bool(cells)
    if not has_scores:
        cells, accuracies = read_results(run.results)
    if not cells:
        raise InvalidInput(
            f"{os.fspath(folder)!r} has neither finished cells nor results, so there is nothing to report of it. Run "
            f"`normscale bench -o {os.fspath(folder)}` on, or leave it out."
        )
    board = Scoreboard(cells, run.plan.subject)
    record, why = ComparisonRecord.load(run), ""
    if record is None or not record.fits(board):
        if has_scores and board.subject is not None:
            made = compare_all(run, board, resamples=resamples, tick=tick)
            record = ComparisonRecord(board.subject, resamples, LEVEL, made)
        else:
            kept = "no comparison of them was recorded" if record is None else "the comparisons kept are of other cells"
            why, record = f"its scores are not there, and {kept}", None
    return ReportedRun(
        run,
        title or run.plan.in_set,
        board,
        BesideReference(board, reference(run)),
        accuracies,
        [] if record is None else record.comparisons,
        resamples if record is None else record.resamples,
        why,
    )
