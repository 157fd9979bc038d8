"""A leaderboard over runs: one page that sorts and filters, Markdown and CSV."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from normscale._atomic import atomic_path
from normscale.experiments.methods import title_of
from normscale.report.html_page import PagePart, assemble, sentences_html
from normscale.report.html_table import to_html
from normscale.report.leaderboard_runs import SETTINGS, LeaderboardRun, read_leaderboard_runs
from normscale.report.leaderboard_tables import (
    AUROC,
    mean_over_runs,
    overview_table,
    run_tables,
    whole_per_set_table,
    whole_table,
)
from normscale.report.ood_groups import ALL, LeaderboardReference
from normscale.report.renderers import to_csv, to_markdown
from normscale.report.table import ReportTable
from normscale.report.tables import count

NAME = "leaderboard"
_APART = (
    "Static detectors score every input by itself. Stream-aware ones also learn, without labels, from the inputs that "
    "came before: the test set and one OoD set, all rows, shuffled into one stream. The two are not measured alike, so "
    "they stand apart."
)


def write_leaderboard(
    folders: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    reference: LeaderboardReference = LeaderboardReference(),  # noqa: B008 - a tuple
    *,
    command: str = "",
    remarks: Sequence[str] = (),
) -> Path:
    """Write ``leaderboard.html``, ``.md`` and ``.csv``, and ``per_set.csv``, over the runs.

    Parameters
    ----------
    folders : paths
        Of runs, finished or not, or of what was kept of them.
    output : path
        The folder that the files go to.
    reference : LeaderboardReference
        Near and far OoD sets, and published averages.
    command : str
        What made it, for the record; default: ``normscale leaderboard`` with these folders.
    remarks : sentences
        What a reader should know besides.

    Returns
    -------
    Path
        Of the page.
    """
    runs = read_leaderboard_runs(folders, reference)
    again = command or shlex.join(
        ["normscale", NAME, *(os.fspath(folder) for folder in folders), "-o", os.fspath(output)]
    )
    made = [run_tables(one, number, reference) for number, one in enumerate(runs)]
    overview = overview_table(runs) if len(runs) > 1 else None
    sentences = [*_leaders(runs), *remarks, _APART]
    files = {
        f"{NAME}.html": _page(runs, made, overview, sentences, again),
        f"{NAME}.md": _markdown(made, overview, sentences, again),
        f"{NAME}.csv": to_csv(whole_table(runs)),
        "per_set.csv": to_csv(whole_per_set_table(runs)),
    }
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with atomic_path(folder / name) as temporary:
            Path(temporary).write_text(text, encoding="utf-8")
    return folder / f"{NAME}.html"


def _leaders(runs: Sequence[LeaderboardRun]) -> list[str]:
    """Who leads, over all networks and on every one, static and stream-aware."""
    sentences = []
    if len(runs) > 1:
        means = mean_over_runs(runs)
        sentences.append(_leading(f"Mean of the {len(runs)} networks", means, "AUROC over all OoD sets"))
    for one in runs:
        by_setting = {
            setting: {entry.method: entry.averages[ALL, AUROC] for entry in one.of_setting(setting)}
            for setting in SETTINGS
        }
        sentences.append(_leading(one.title, by_setting, "AUROC" if any(sentences) else "AUROC over all OoD sets"))
    return [text for text in sentences if text]


def _leading(where: str, by_setting: Mapping[str, Mapping[str, float | None]], what: str) -> str:
    """The best of every setting with more than one number; empty if there is none."""
    parts = []
    for setting, words in {"frozen": "static detectors", "stream": "stream-aware ones"}.items():
        numbers = {name: value for name, value in by_setting[setting].items() if value is not None}
        if len(numbers) > 1:
            best = max(numbers, key=lambda name: numbers[name])
            parts.append(f"{title_of(best)} leads the {len(numbers)} {words} ({what} {numbers[best]:.4f})")
    return f"{where}: {', '.join(parts)}." if parts else ""


def _page(
    runs: Sequence[LeaderboardRun],
    made: Sequence[tuple[ReportTable, ReportTable]],
    overview: ReportTable | None,
    sentences: Sequence[str],
    command: str,
) -> str:
    page = resources.files("normscale.report").joinpath("page")
    parts = [PagePart("found", "What was found", sentences_html(sentences))]
    parts.append(PagePart("filter", "Filter", page.joinpath("filter.html").read_text("utf-8")))
    if overview is not None:
        parts.append(PagePart("overview", overview.title, to_html(overview)))
    for number, (table, sets) in enumerate(made):
        per_set = f"<details><summary>Set by set <small>AUROC</small></summary>{to_html(sets)}</details>"
        parts.append(PagePart(f"network-{number}", table.title, to_html(table) + per_set))
    parts.append(PagePart("repeat", "How to repeat it", f"<pre>{escape(command)}</pre>"))
    n_methods = len({entry.method for one in runs for entry in one.entries})
    facts = f"{count(len(runs), 'run')}, {count(n_methods, 'method')}"
    return assemble("Leaderboard of OoD detectors", facts, parts, module=page.joinpath("filter.js").read_text("utf-8"))


def _markdown(
    made: Sequence[tuple[ReportTable, ReportTable]],
    overview: ReportTable | None,
    sentences: Sequence[str],
    command: str,
) -> str:
    tables = [*([] if overview is None else [overview]), *(averages for averages, _ in made)]
    head = ["# Leaderboard of OoD detectors", "", *(f"* {text}" for text in sentences), ""]
    return "\n".join([*head, *map(to_markdown, tables), "## How to repeat it", "", "```", command, "```", ""])
