"""The tables of a leaderboard: all runs beside each other, then every run with its groups, then set by set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import NamedTuple

from normscale.report.leaderboard_runs import METRICS, SETTINGS, LeaderboardEntry, LeaderboardRun
from normscale.report.ood_groups import ALL, FAR, GROUPS, NEAR, LeaderboardReference
from normscale.report.table import Column, ReportTable, Row, Section, Value, best_of
from normscale.report.tables import count

AUROC, FPR95 = METRICS
METRIC_TITLES = {AUROC: "AUROC", FPR95: "FPR95"}
_SETTING = "statistics"


class _Figure(NamedTuple):
    """A column of numbers."""

    title: str
    of: Callable[[LeaderboardEntry], float | None]
    highest: bool = True


def mean_over_runs(runs: Sequence[LeaderboardRun]) -> dict[str, dict[str, float | None]]:
    """By setting and method: the mean of the runs' AUROC over all OoD sets; None if one run has none."""
    found: dict[str, dict[str, float | None]] = {setting: {} for setting in SETTINGS}
    for setting, of_setting in found.items():
        for name in _titles(runs, setting):
            numbers = [value for value in _over_all_sets(runs, name) if value is not None]
            of_setting[name] = fmean(numbers) if len(numbers) == len(runs) else None
    return found


def overview_table(runs: Sequence[LeaderboardRun]) -> ReportTable:
    """AUROC over all OoD sets of every run, and the mean of the runs."""
    columns = [Column("Detector"), Column("Mean", "value"), *(Column(one.title, "value") for one in runs)]
    sections, means = [], mean_over_runs(runs)
    for setting, heading in SETTINGS.items():
        rows: list[Row] = [
            (title, means[setting][name], *_over_all_sets(runs, name)) for name, title in _titles(runs, setting).items()
        ]
        if rows:
            rows.sort(key=lambda row: _descending(row[1:]))
            sections.append(Section(heading, rows, _best(rows, dict.fromkeys(range(1, len(columns)), True))))
    notes = [
        "AUROC, the mean over all OoD sets of a network; Mean: over the networks, where all of them have a number."
    ]
    return ReportTable("overview", "All networks", columns, sections, notes, _SETTING)


def _titles(runs: Sequence[LeaderboardRun], setting: str) -> dict[str, str]:
    """The methods of a setting, and what they are called."""
    return {entry.method: entry.title for one in runs for entry in one.of_setting(setting)}


def _over_all_sets(runs: Sequence[LeaderboardRun], method: str) -> list[float | None]:
    """A method's AUROC on every run."""
    by_run = [{entry.method: entry.averages[ALL, AUROC] for entry in one.entries} for one in runs]
    return [entries.get(method) for entries in by_run]


def run_tables(one: LeaderboardRun, number: int, reference: LeaderboardReference) -> tuple[ReportTable, ReportTable]:
    """The leaderboard of a run, best first, and its OoD sets one by one."""
    return _averages(one, number, reference), _per_set(one, number)


def whole_table(runs: Sequence[LeaderboardRun]) -> ReportTable:
    """Every entry of every run in one row, for a CSV file."""
    groups = [(group, metric) for metric in METRICS for group in GROUPS]
    columns = [
        *(Column(title) for title in ("Network", "Statistics", "Method", "Detector")),
        *(Column(f"{group.capitalize()} {METRIC_TITLES[metric]}", "value") for group, metric in groups),
        *(Column(title, "value") for title in ("Published near", "Published far")),
        *(Column(title) for title in ("Reads", "Parameters", "Why not measured")),
    ]
    rows: list[Row] = [
        (
            *(one.title, SETTINGS[entry.setting], entry.method, entry.title),
            *(entry.averages[key] for key in groups),
            *(entry.published or (None, None)),
            *(entry.reads, entry.parameters, entry.why_not),
        )
        for one in runs
        for entry in one.entries
    ]
    return ReportTable("leaderboard", "Leaderboard", columns, [Section("", rows)])


def whole_per_set_table(runs: Sequence[LeaderboardRun]) -> ReportTable:
    """Every method on every OoD set of every run in one row, for a CSV file."""
    columns = [Column(title) for title in ("Network", "Statistics", "Method", "OoD set")]
    columns += [Column(METRIC_TITLES[metric], "value") for metric in METRICS]
    rows: list[Row] = []
    for one in runs:
        for entry, name in product(one.entries, one.board.ood_sets):
            means = [one.board.mean(metric, entry.method, name) for metric in METRICS]
            if all(mean is not None for mean in means):
                values = [None if mean is None else mean.mean for mean in means]
                rows.append((one.title, SETTINGS[entry.setting], entry.method, name, *values))
    return ReportTable("per_set", "OoD sets", columns, [Section("", rows)])


def _averages(one: LeaderboardRun, number: int, reference: LeaderboardReference) -> ReportTable:
    has_published = any(entry.published is not None for entry in one.entries)
    figures = [
        _Figure("Near AUROC", lambda entry: entry.averages[NEAR, AUROC]),
        _Figure("Far AUROC", lambda entry: entry.averages[FAR, AUROC]),
        _Figure("All AUROC", lambda entry: entry.averages[ALL, AUROC]),
        _Figure("All FPR95", lambda entry: entry.averages[ALL, FPR95], highest=False),
    ]
    if has_published:
        figures += [
            _Figure("Published near", lambda entry: None if entry.published is None else entry.published.near),
            _Figure("Published far", lambda entry: None if entry.published is None else entry.published.far),
        ]
    columns = [Column("Detector"), *(Column(figure.title, "value") for figure in figures)]
    columns += [Column("Reads"), Column("Parameters")]
    sections = []
    for setting, title in SETTINGS.items():
        entries = one.of_setting(setting)
        entries.sort(key=lambda entry: _descending([entry.averages[ALL, AUROC]]))
        rows: list[Row] = [
            (entry.title, *(figure.of(entry) for figure in figures), entry.reads, _words(entry)) for entry in entries
        ]
        if rows:
            ranked = {place: figure.highest for place, figure in enumerate(figures, 1)}
            sections.append(Section(title, rows, _best(rows, ranked)))
    notes = [*_group_notes(one, reference), _networks_note(one)]
    if has_published:
        notes.append(
            f"Published: {reference.source}. Networks and OoD sets differ from ours: compare the order, not the "
            "numbers."
        )
    return ReportTable(f"run{number}", one.title, columns, sections, notes, _SETTING)


def _per_set(one: LeaderboardRun, number: int) -> ReportTable:
    """AUROC on every OoD set."""
    names = one.board.ood_sets
    columns = [Column("Detector"), *(Column(name, "value") for name in names)]
    sections = []
    for setting, title in SETTINGS.items():
        entries = [entry for entry in one.of_setting(setting) if entry.method in one.board.methods]
        entries.sort(key=lambda entry: _descending([entry.averages[ALL, AUROC]]))
        rows: list[Row] = []
        for entry in entries:
            means = [one.board.mean(AUROC, entry.method, name) for name in names]
            rows.append((entry.title, *(None if mean is None else mean.mean for mean in means)))
        if rows:
            sections.append(Section(title, rows, _best(rows, dict.fromkeys(range(1, len(columns)), True))))
    return ReportTable(f"run{number}_sets", f"{one.title}, set by set (AUROC)", columns, sections, [], _SETTING)


def _words(entry: LeaderboardEntry) -> str:
    return f"not measured: {entry.why_not}" if entry.why_not else entry.parameters


def _group_notes(one: LeaderboardRun, reference: LeaderboardReference) -> list[str]:
    groups = reference.groups_of(one.run.plan.in_set)
    notes = []
    for group in (NEAR, FAR):
        there, absent = one.sets[group], [reference.set_titles.get(name, name) for name in one.absent[group]]
        text = f"{group.capitalize()}: {', '.join(there) or 'none'}"
        notes.append(f"{text}; not measured here: {', '.join(absent)}." if absent else f"{text}.")
    notes[-1] += f" Groups as defined by {groups.defined_by}."
    notes.append(f"All: {', '.join(one.sets[ALL])}.")
    lost = [name for name in one.board.ood_sets if name not in one.sets[ALL]]
    if lost:
        notes.append(
            f"Left out of every average, because not all detectors have been measured on it: {', '.join(lost)}."
        )
    return notes


def _networks_note(one: LeaderboardRun) -> str:
    plan, board = one.run.plan, one.board
    width = f", width {plan.width}" if plan.network and plan.width else ""
    right = f", {100 * fmean(one.accuracies.values()):.2f} % right" if one.accuracies else ""
    rows = ", ".join(f"{name} {board.n_ood(name):,}" for name in board.ood_sets)
    networks = f"{count(len(board.block.seeds), 'network')} ({plan.network or 'outputs'}{width}{right})"
    return f"{networks}; {board.n_id():,} test rows; OoD rows: {rows}."


def _descending(values: Sequence[Value]) -> tuple[tuple[bool, float], ...]:
    """A key that sorts the highest first and what is missing last."""
    return tuple((value is None, 0.0 if value is None else -float(value)) for value in values)


def _best(rows: Sequence[Row], ranked: Mapping[int, bool]) -> frozenset[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for place, highest in ranked.items():
        found |= best_of({(i, place): row[place] for i, row in enumerate(rows)}, highest=highest)
    return frozenset(found)
