"""One page over several runs, and its tables: every in-distribution set beside the others and the published numbers."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from normscale._atomic import atomic_path
from normscale._progress import bar
from normscale.errors import InvalidInput
from normscale.experiments.methods import title_of
from normscale.experiments.run_folder import RunFolder
from normscale.report.better_than import ALL_SETS
from normscale.report.gaps import failure_notes, n_to_come
from normscale.report.html_page import PagePart, assemble, said_once, sentences_html
from normscale.report.html_table import to_html
from normscale.report.joint_tables import (
    Printed,
    joint_accuracy_table,
    joint_better_than_table,
    joint_per_set_table,
    joint_table,
    methods_of,
    n_over_all_sets,
    network_notes,
    nothing_printed,
    run_table,
    subjects_of,
)
from normscale.report.reference import Reference
from normscale.report.reported_run import ReportedRun, read_run
from normscale.report.table import ReportTable
from normscale.report.tables import count
from normscale.report.told_apart import folder_names, told_apart
from normscale.report.writing import method_table, write_tables


class JointAdditions(NamedTuple):
    """Parts of a joint report that are not about every classifier."""

    reference: Callable[[RunFolder], Reference | None] = lambda _: None
    set_titles: Mapping[str, str] = {}
    """What in-distribution sets are called."""
    expected: Sequence[str] = ()
    """In-distribution sets of the reference; one that is not there is said to be missing."""
    printed: Printed = nothing_printed
    tables: Callable[[Sequence[ReportedRun]], list[ReportTable]] = lambda _: []
    """Of further averages; they follow those of all methods."""
    claims: Callable[[Sequence[ReportedRun]], ReportTable | None] = lambda _: None
    """What was claimed, and what holds; it follows the numbers."""
    sentences: Callable[[Sequence[ReportedRun]], list[str]] = lambda _: []
    """The first leads the page."""
    claims_in_short: Callable[[Sequence[ReportedRun]], tuple[str, Sequence[str]]] = lambda _: ("", ())
    """A sentence that stands on the page for those of ``sentences`` that the table of claims has, and these."""


class JointReport(NamedTuple):
    """What the files are made of."""

    runs: list[ReportedRun]
    tables: dict[str, ReportTable]
    sentences: list[str]
    on_page: list[str]
    """The sentences without what a table of the page says."""


def read_joint(
    folders: Sequence[str | os.PathLike[str]],
    additions: JointAdditions = JointAdditions(),  # noqa: B008 - a tuple
    *,
    resamples: int = 1000,
) -> JointReport:
    """Read several runs and make the tables and sentences over them.

    Parameters
    ----------
    folders : paths
        Of runs, finished or not, or of what was kept of them: ``settings.json``, ``results.jsonl`` and
        ``comparisons.json``.
    additions : JointAdditions
    resamples : int
        Of the paired bootstrap where it is not on disk.
    """
    plans = [RunFolder.open(folder).plan for folder in folders]
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise InvalidInput("a run was named twice; name every folder once.")
    titles = [additions.set_titles.get(plan.in_set, plan.in_set) for plan in plans]
    names = told_apart(titles, [plan.name for plan in plans], *folder_names(folders))
    with bar("comparing row by row", None, quiet_seconds=1.0) as line:
        runs = [
            read_run(folder, additions.reference, name, resamples=resamples, tick=lambda one: line.advance(doing=one))
            for folder, name in zip(folders, names, strict=True)
        ]
    order = [*additions.expected]
    runs.sort(key=lambda one: order.index(one.in_set) if one.in_set in order else len(order))
    methods, title = methods_of(runs), "All methods on all in-distribution sets"
    made = [
        joint_table("averages", title, runs, methods, printed=additions.printed),
        *additions.tables(runs),
        joint_accuracy_table(runs),
        joint_per_set_table(runs),
        joint_better_than_table(runs),
        additions.claims(runs),
        method_table([one.board for one in runs]),
        run_table(runs),
    ]
    sentences = [*additions.sentences(runs), *_verdicts(runs), *_gaps(runs, additions), *network_notes(runs)]
    short, in_table = additions.claims_in_short(runs)
    on_page = [text for text in sentences if text not in in_table]
    on_page[1:1] = [short] if short else []
    return JointReport(runs, {table.name: table for table in made if table is not None}, sentences, on_page)


def _verdicts(runs: Sequence[ReportedRun]) -> list[str]:
    """Whom the subject beats on all OoD sets of a run together, and who beats it."""
    sentences = []
    for one in runs:
        groups: dict[str, list[str]] = {}
        for found in one.comparisons:
            if found.ood_set == ALL_SETS and found.rival not in one.board.per_class:
                groups.setdefault(found.verdict, []).append(title_of(found.rival))
        parts = [f"{verdict} ({' / '.join(titles)})" for verdict, titles in groups.items()]
        if parts:
            subject = title_of(one.board.subject or "")
            sentences.append(
                f"{one.title}, row by row over all its OoD sets, {subject} against its rivals: {'; '.join(parts)}."
            )
    return sentences


def _gaps(runs: Sequence[ReportedRun], additions: JointAdditions) -> list[str]:
    there = {one.in_set for one in runs}
    absent = [additions.set_titles.get(name, name) for name in additions.expected if name not in there]
    gaps = (
        [f"Missing: {', '.join(absent)}. No run of {'it' if len(absent) == 1 else 'them'} was given."] if absent else []
    )
    for one in runs:
        plan, why = one.run.plan, one.run.missing()
        lost = [f"{name} ({why[name]})" if name in why else name for name in plan.ood if name not in one.board.ood_sets]
        if lost:
            gaps.append(f"Missing on {one.title}: {', '.join(lost)}.")
        if to_come := n_to_come(one.run, one.board, one.board.ood_sets):
            n_done = len(one.board.cells)
            gaps.append(f"The run on {one.title} is not finished: {n_done} of {n_done + to_come} cells are there.")
        gaps += [f"{one.title}: {note}" for note in failure_notes(one.run, one.board, one.board.ood_sets)]
    whys: dict[str, list[str]] = {}
    for one in runs:
        if one.why_no_comparisons:
            whys.setdefault(one.why_no_comparisons, []).append(one.title)
    gaps += [f"No comparison row by row for {', '.join(titles)}: {why}." for why, titles in whys.items()]
    return gaps


def write_joint_report(
    folders: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    additions: JointAdditions = JointAdditions(),  # noqa: B008 - a tuple
    *,
    resamples: int = 1000,
) -> Path:
    """Write one page over several runs, and ``tables/`` beside it.

    Parameters
    ----------
    folders, additions, resamples
        As in :func:`read_joint`.
    output : path, optional
        The page, or a folder for ``report.html``; default: ``joint`` beside the first run.

    Returns
    -------
    Path
        Of the page.
    """
    joint = read_joint(folders, additions, resamples=resamples)
    path = Path(output) if output is not None else Path(folders[0]).resolve().parent / "joint"
    if path.suffix.lower() not in (".html", ".htm"):
        path = path / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tables(path.parent / "tables", joint.tables)
    with atomic_path(path) as temporary:
        Path(temporary).write_text(_page(joint, folders), encoding="utf-8")
    return path


def _page(joint: JointReport, folders: Sequence[str | os.PathLike[str]]) -> str:
    subjects = subjects_of(joint.runs)
    subject = subjects[0] if len(subjects) == 1 else ""  # there is no row to point out that all runs are about
    n_runs = len(joint.runs)
    folds = {"per_set": (n_runs, "The other metrics"), "better_than": (n_over_all_sets(joint.runs), "Set by set")}
    parts = [PagePart("found", "What was found", sentences_html(joint.on_page))]
    for name, table in said_once(joint.tables, joint.on_page).items():
        after, folded_title = folds.get(name, (None, ""))
        markup = to_html(table, folded_after=after, folded_title=folded_title, subject=subject)
        parts.append(PagePart(name.replace("_", "-"), table.title, markup))
    parts.append(PagePart("repeat", "How to repeat it", _repeat(joint, folders)))
    networks = sum(len(one.board.seeds) for one in joint.runs)
    facts = f"{count(n_runs, 'run')}, {count(networks, 'network')}, {count(len(methods_of(joint.runs)), 'method')}"
    sets = ", ".join(one.title for one in joint.runs)
    return assemble(f"OoD detection on {sets}", facts, parts)


def _repeat(joint: JointReport, folders: Sequence[str | os.PathLike[str]]) -> str:
    items = ""
    for one in joint.runs:
        command = str(one.run.made_by.get("command") or "") or "started from Python; settings.json holds the plan"
        commit = re.sub("[+]changes$", " with changes", str(one.run.made_by.get("commit") or "not known"))
        items += f"<p>{escape(one.title)}, commit <code>{escape(commit)}</code>:</p><pre>{escape(command)}</pre>"
    again = shlex.join(["normscale", "report", *(os.fspath(folder) for folder in folders)])
    return f"{items}<p>This page alone:</p><pre>{escape(again)}</pre>"
