"""The runs of a leaderboard: every method with its averages over near, far and all OoD sets, or why it has none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from normscale.detectors.base import Setting
from normscale.errors import InvalidInput, UnknownDetector
from normscale.experiments.methods import find_method, title_of
from normscale.experiments.results_file import read_results
from normscale.experiments.run_folder import RunFolder
from normscale.report.fitted_on import parameters_of
from normscale.report.ood_groups import FAR, GROUPS, NEAR, LeaderboardReference, PublishedAverages
from normscale.report.scoreboard import Scoreboard
from normscale.report.tables import accuracies_of
from normscale.report.told_apart import folder_names, told_apart

METRICS = ("auroc", "fpr95_out")
SETTINGS = {
    Setting.FROZEN.value: "Static",
    Setting.STREAM.value: "Stream-aware",
    Setting.PER_CLASS.value: "Ranked per predicted class",
}
"""How a method is measured, as a heading."""


class LeaderboardEntry(NamedTuple):
    """A method of a run."""

    method: str
    title: str
    setting: str
    reads: str
    parameters: str
    averages: dict[tuple[str, str], float | None]
    """By group (near, far, all) and metric."""
    published: PublishedAverages | None
    why_not: str = ""
    """Why there are no averages."""


class LeaderboardRun(NamedTuple):
    """One run: its entries, and the OoD sets that each average is over."""

    title: str
    run: RunFolder
    board: Scoreboard
    entries: list[LeaderboardEntry]
    sets: dict[str, tuple[str, ...]]
    """By group."""
    absent: dict[str, tuple[str, ...]]
    """Sets of a group that were not measured."""
    accuracies: dict[int, float]

    def of_setting(self, setting: str) -> list[LeaderboardEntry]:
        """The entries measured in a setting."""
        return [entry for entry in self.entries if entry.setting == setting]


def read_leaderboard_runs(
    folders: Sequence[str | os.PathLike[str]], reference: LeaderboardReference
) -> list[LeaderboardRun]:
    """Read runs, finished or not; of each, ``settings.json`` and the files of results are enough.

    Raises
    ------
    InvalidInput
        If a run has no results, or is named twice.
    """
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise InvalidInput("a run was named twice; name every folder once.")
    runs = [RunFolder.open(folder) for folder in folders]
    titles = [
        f"{reference.set_titles.get(run.plan.in_set, run.plan.in_set)} ({run.plan.name})"
        if run.plan.name != run.plan.in_set
        else reference.set_titles.get(run.plan.in_set, run.plan.in_set)
        for run in runs
    ]
    called = told_apart(titles, *folder_names(folders))
    return [_read(run, title, reference) for run, title in zip(runs, called, strict=True)]


def _read(run: RunFolder, title: str, reference: LeaderboardReference) -> LeaderboardRun:
    cells, accuracies = run.cells(run.plan.measured), accuracies_of(run)
    if not cells:
        kept, accuracies = read_results(run.results)
        cells = [*kept, *read_results(run.further_results).cells]
    if not cells:
        raise InvalidInput(
            f"{os.fspath(run.path)!r} has neither finished cells nor results. Run `normscale bench -o "
            f"{os.fspath(run.path)}` on, or leave it out."
        )
    board, in_set = Scoreboard(cells, run.plan.subject), run.plan.in_set
    sets = {group: reference.members(in_set, group, board.block.ood_sets) for group in GROUPS}
    absent = {group: reference.absent(in_set, group, board.block.ood_sets) for group in (NEAR, FAR)}
    names = dict.fromkeys((*run.plan.measured, *board.methods))
    entries = [
        _entry(name, board, sets, run.every_failure(), reference.published.get((in_set, name))) for name in names
    ]
    return LeaderboardRun(title, run, board, entries, sets, absent, accuracies)


def _entry(
    method: str,
    board: Scoreboard,
    sets: dict[str, tuple[str, ...]],
    failures: dict[str, str],
    published: PublishedAverages | None,
) -> LeaderboardEntry:
    averages: dict[tuple[str, str], float | None] = {}
    for group in GROUPS:
        for metric in METRICS:
            found = board.average(metric, method, sets[group])
            averages[group, metric] = None if found is None else found.mean
    why = ""
    if method not in board.block.methods:
        why = failures.get(method, "not measured on every OoD set and network that the others were measured on.")
    setting, reads = _setting_and_reads(method, board)
    return LeaderboardEntry(
        method, title_of(method), setting, reads, parameters_of([board], method), averages, published, why
    )


def _setting_and_reads(method: str, board: Scoreboard) -> tuple[str, str]:
    """How a method is measured, and the arrays it reads; a method that no detector has says what its cells say."""
    measured = next((cell.setting for cell in board.cells.values() if cell.method == method), "")
    try:
        found = find_method(method)
    except (UnknownDetector, InvalidInput):
        return str(measured or Setting.FROZEN.value), ""
    return str(measured or found.setting.value), ", ".join(found.detector.reads)
