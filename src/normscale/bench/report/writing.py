"""One report over one run or several: a page, tables in three formats, figures in two."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from normscale._atomic import atomic_path
from normscale._progress import bar
from normscale.bench.experiments.methods import title_of
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.stress_result import StressResult, load_stress
from normscale.bench.report import tables as make
from normscale.bench.report.published import OodGroupReference, Reference
from normscale.bench.report.rendering import RENDERERS, render
from normscale.bench.report.runs import Folder, ReportedRun, gaps, read_runs
from normscale.bench.report.scoreboard import Scoreboard
from normscale.bench.report.table import ReportTable
from normscale.errors import FileFormatError, InvalidInput, MissingExtra

if TYPE_CHECKING:
    from normscale.bench.report.figures.ranking import Ranked
    from normscale.bench.report.gallery import Drawn

_TALL = 1.1
"""A figure that is higher than so many times its width takes two places of the page below each other."""
_MOST_RANKED = 14
"""Methods of one kind in the opening picture: the best of them."""


class Additions(NamedTuple):
    """Parts of a report that are not about every classifier."""

    reference: Callable[[RunFolder], Reference | None] = lambda _: None
    """Numbers that were published for a run's in-distribution set."""
    groups: OodGroupReference | None = None
    """Titles of sets and, for a leaderboard, near and far OoD sets."""
    tables: Callable[[Sequence[ReportedRun]], list[ReportTable]] = lambda _: []


class Picture(NamedTuple):
    """A figure ready for the page."""

    group: str
    markup: Any
    """An ``<svg>`` in the page's own colours."""
    caption: str
    shape: str = ""
    """``map`` takes the width of the page, ``tall`` two places below each other."""
    title: str = ""


class PageBlock(NamedTuple):
    """A piece of a section: ``kind`` says how the template shows the value."""

    kind: str
    value: Any
    fold: str = ""
    """What a fold around it is called; empty: none."""
    unfolded: bool = False
    n_open: int = 0
    """Sections of a table that stand outside the fold; 0: all."""


class PagePart(NamedTuple):
    """A section of the page."""

    anchor: str
    title: str
    blocks: Sequence[PageBlock]


def report(
    runs: Folder | Sequence[Folder],
    output: Folder | None = None,
    *,
    leaderboard: bool = False,
    as_seeds: bool = False,
    figures: bool = True,
    pdf: bool = False,
    classes: Sequence[int] = (),
    resamples: int = 1000,
    additions: Additions = Additions(),  # noqa: B008 - a tuple
) -> Path:
    """Write a report over runs: one page that needs no network, ``tables/`` and ``figures/`` beside it.

    Parameters
    ----------
    runs : path, or several
        Folders of ``normscale bench`` or ``normscale eval --report``; they may be unfinished. ``settings.json``,
        ``results.jsonl`` and ``comparisons.json`` of a run are enough.
    output : path, optional
        The page (``.html``), or a folder for it; default: the folder of the run, of several ``joint`` beside the first,
        of a leaderboard ``leaderboard``.
    leaderboard : bool
        Rank every detector that was measured, those of ``bench --detector`` too, over near, far and all OoD sets.
    as_seeds : bool
        Take runs with the same in-distribution set as networks of one experiment, with ± over them.
    figures : bool
        False leaves them out; then matplotlib is not needed.
    pdf : bool
        Write the figures as .pdf too.
    classes : sequence of int
        Predicted classes in the figures of logits; by default three, with a low, a middle and a high mean.
    resamples : int
        Of rows, for intervals.
    additions : Additions
        Published numbers to stand beside the runs', and further tables.

    Returns
    -------
    Path
        Of the page.

    Raises
    ------
    FileFormatError
        If a folder is no run, or one of another version.
    InvalidInput
        If a run has no finished cell, or is named twice.
    MissingExtra
        If jinja2 is missing or, with figures, matplotlib.

    Examples
    --------
    >>> report([])
    Traceback (most recent call last):
    normscale.errors.InvalidInput: runs is empty; name the folder of at least one run.
    """
    folders = [runs] if isinstance(runs, (str, os.PathLike)) else list(runs)
    if not folders:
        raise InvalidInput("runs is empty; name the folder of at least one run.")
    for folder in folders:
        RunFolder.open(folder)  # what is wrong with a folder goes before what is missing here
    if figures:
        _require_matplotlib()
    with bar("resampling rows", None, quiet_seconds=1.0) as line:
        read = read_runs(
            folders,
            reference=additions.reference,
            groups=additions.groups,
            further=leaderboard,
            as_seeds=as_seeds,
            resamples=resamples,
            tick=lambda name: line.advance(doing=f"resampling rows: {name}"),
        )
    page = _page_path(folders, output, leaderboard=leaderboard, n_runs=len(read))
    page.parent.mkdir(parents=True, exist_ok=True)
    stress, notes = _stress(read[0].run) if len(read) == 1 and not leaderboard else (None, [])
    tables = _tables(read, additions, stress, leaderboard=leaderboard)
    write_tables(page.parent / "tables", tables)
    pictures: list[Picture] = []
    if figures:
        pictures = _pictures(read, page.parent / "figures", stress, classes, pdf, all_of_run=not leaderboard)
    command = shlex.join(
        [
            "normscale",
            "leaderboard" if leaderboard else "report",
            *(os.fspath(folder) for folder in folders),
            *["--as-seeds"] * as_seeds,
            *(["--classes", ",".join(map(str, classes))] if classes else []),
        ]
    )
    parts = _parts(read, tables, pictures, notes, command, leaderboard=leaderboard)
    text = render(
        "page.html.j2",
        title=_title(read, leaderboard=leaderboard),
        kind="normscale benchmark" if any(one.run.plan.network for one in read) else "normscale comparison",
        facts=_facts(read),
        parts=parts,
        subjects={title_of(one.subject) for one in read if one.subject is not None},
        n_runs=len(read),
        filtered=leaderboard,
    )
    with atomic_path(page) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")
    return page


def _page_path(folders: Sequence[Folder], output: Folder | None, *, leaderboard: bool, n_runs: int) -> Path:
    name = "leaderboard.html" if leaderboard else "report.html"
    if output is None:
        first = Path(folders[0])
        folder = (
            Path("leaderboard") if leaderboard else first if len(folders) == 1 else first.resolve().parent / "joint"
        )
        return folder / name
    path = Path(output)
    return path if path.suffix.lower() in (".html", ".htm") else path / name


def _tables(
    runs: Sequence[ReportedRun], additions: Additions, stress: StressResult | None, *, leaderboard: bool
) -> dict[str, ReportTable]:
    """Every table by the name of its files, in the order of the page."""
    made: list[ReportTable | None] = [make.averages_table(runs)] if len(runs) > 1 else []
    groups = additions.groups if leaderboard else None
    for one in runs:
        end = "" if len(runs) == 1 else f"_{make.slug(one.title)}"
        made += [
            make.comparison_table(one, f"comparison{end}", groups, details=leaderboard),
            make.per_set_table(one, f"per_set{end}"),
            make.better_than_table(one, f"better_than{end}"),
            None if leaderboard else make.published_table(one, f"published{end}"),
            make.ood_set_table(one, f"ood_sets{end}"),
            None if leaderboard else make.expanded_table(one, f"expanded{end}"),
        ]
    made += [] if leaderboard else additions.tables(runs)
    made += [None if stress is None else make.stress_table(stress)]
    made += [make.accuracy_table(runs), make.method_table(runs), make.run_table(runs)]
    return {table.name: table for table in made if table is not None and any(one.rows for one in table.sections)}


def write_tables(folder: Path, tables: dict[str, ReportTable]) -> None:
    """Write every table in every format."""
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        for suffix, renderer in RENDERERS.items():
            with atomic_path(folder / f"{name}.{suffix}") as temporary:
                Path(temporary).write_text(renderer(table), encoding="utf-8")


def _parts(
    runs: Sequence[ReportedRun],
    tables: dict[str, ReportTable],
    pictures: Sequence[Picture],
    notes: Sequence[str],
    command: str,
    *,
    leaderboard: bool,
) -> list[PagePart]:
    """The sections of the page that have something to show."""
    known = {name: PageBlock("table", table) for name, table in tables.items()}

    def block(name: str, **options: Any) -> list[PageBlock]:
        return [known.pop(name)._replace(**options)] if name in known else []

    def of_run(one: ReportedRun, *, single: bool) -> list[PagePart]:
        end = "" if len(runs) == 1 else f"_{make.slug(one.title)}"
        better, per_set = tables.get(f"better_than{end}"), tables.get(f"per_set{end}")
        n_settings = 0 if per_set is None else sum(s.title.startswith("AUROC") for s in per_set.sections)
        averages = block(f"comparison{end}")
        sets = block(f"per_set{end}", n_open=n_settings)
        if len(one.board.ood_sets) == 1:  # its numbers are the averages
            sets = []
        paired = block(f"better_than{end}", n_open=0 if better is None else make.n_summed_up(better))
        published, about = block(f"published{end}", n_open=1), block(f"ood_sets{end}")
        expanded = block(f"expanded{end}", fold="Every method on every OoD set, one metric after the other")
        subject = "" if one.subject is None else title_of(one.subject)
        if single:
            return [
                PagePart("comparison", "All methods", averages),
                PagePart("per-set", "Every OoD set", sets),
                PagePart("better", f"Is {subject} better?", paired),
                PagePart("published", f"Beside the {one.beside.reference.name}", published),
                PagePart("sets", "OoD sets", about),
                PagePart("expanded", "Expanded results", expanded),
            ]
        folded = [
            *(item._replace(fold="Every OoD set") for item in sets),
            *(item._replace(fold=f"Is {subject} better?") for item in paired),
            *(item._replace(fold=f"Beside the {one.beside.reference.name}") for item in published),
            *(item._replace(fold="OoD sets and their shares") for item in about),
            *expanded,
        ]
        missing = gaps(one)
        blocks = [*averages, *([PageBlock("notes", missing)] if missing else []), *folded]
        return [PagePart(f"network-{runs.index(one)}", one.title, blocks)]

    def figures(group: str) -> list[PageBlock]:
        own = [one for one in pictures if one.group == group]
        return [PageBlock("figures", own)] if own else []

    missing = [*gaps(runs[0]), *notes] if len(runs) == 1 else []
    parts = [
        PagePart("found", "At a glance", [*figures("ranking"), *([PageBlock("notes", missing)] if missing else [])])
    ]
    if leaderboard:
        parts.append(PagePart("filter", "Filter", [PageBlock("filter", None)]))
    parts.append(PagePart("overview", "All in-distribution sets", block("averages")))
    single = len(runs) == 1 and not leaderboard
    about = [part for one in runs for part in of_run(one, single=single)]
    late = [part for part in about if part.anchor in ("sets", "expanded")]
    parts += [part for part in about if part not in late]
    accuracy, methods, about_runs = block("accuracy"), block("methods"), block("runs")
    stress = block("stress") + figures("stress")
    parts += [PagePart(name.replace("_", "-"), tables[name].title, block(name)) for name in [*known]]
    per_set = dict.fromkeys(one.group for one in pictures if one.group.startswith("ood:"))
    folds = [
        PageBlock("figures", [one for one in pictures if one.group == group], group.removeprefix("ood:"), not number)
        for number, group in enumerate(per_set)
    ]
    parts += [
        PagePart("figures", "Figures", folds),
        PagePart("calibration", "Calibration", figures("calibration")),
        PagePart("streams", "Other streams", stress),
        PagePart("networks", "Networks" if runs[0].run.plan.network else "Accuracy", accuracy + figures("training")),
        *late,
        PagePart(
            "settings", "Settings", [*([PageBlock("facts", _settings(runs[0].run.plan))] if single else []), *methods]
        ),
        PagePart("runs", "Runs", about_runs if not single else []),
        PagePart("environment", "Environment", _environment(runs[0].run) if single else []),
        PagePart("repeat", "How to repeat it", _repeat(runs, command)),
    ]
    return _with_notes_once([part for part in parts if part.blocks])


def _with_notes_once(parts: Sequence[PagePart]) -> list[PagePart]:
    """The sections without the notes of tables that stand further up; each file of a table has all of its notes."""
    seen: set[str] = set()
    found = []
    for part in parts:
        blocks = []
        for block in part.blocks:
            if block.kind == "table":
                new = [note for note in block.value.notes if note not in seen]
                seen.update(new)
                block = block._replace(value=block.value._replace(notes=new))
            blocks.append(block)
        found.append(part._replace(blocks=blocks))
    return found


def _title(runs: Sequence[ReportedRun], *, leaderboard: bool) -> str:
    sets = ", ".join(one.title for one in runs)
    return f"Leaderboard of OoD detectors: {sets}" if leaderboard else f"OoD detection on {sets}"


def _facts(runs: Sequence[ReportedRun]) -> str:
    methods = {method for one in runs for method in one.board.methods}
    networks = sum(len(one.board.seeds) for one in runs)
    sets = {name for one in runs for name in one.board.ood_sets}
    kinds = dict.fromkeys(_network(one.run.plan) for one in runs if one.run.plan.network)
    made = f" ({'; '.join(kinds)})" if kinds else ""
    parts = [f"{make.count(networks, 'network')}{made}", make.count(len(sets), "OoD set")]
    return ", ".join([*parts, make.count(len(methods), "method")])


def _network(plan: Plan) -> str:
    epochs = f", {make.count(plan.epochs, 'epoch')}" if plan.epochs else ""
    return f"{plan.network}, width {plan.width}{epochs}" if plan.width else plan.network


def _settings(plan: Plan) -> dict[str, Any]:
    sets = ", ".join(name if name == source else f"{name} = {source}" for name, source in plan.ood.items())
    own = {"in-distribution set": plan.data, "OoD sets": sets}
    if not plan.network:
        return own
    return {
        "preset": plan.name,
        **own,
        "pictures": "as they are" if plan.image_size is None else f"{plan.image_size[0]} x {plan.image_size[1]}",
        "network": f"{plan.network}, width {plan.width}",
        "recipe": plan.recipe,
        "epochs": plan.epochs if plan.epochs is not None else "the recipe's own",
        "seeds": ", ".join(map(str, plan.seeds)),
    }


def _environment(run: RunFolder) -> list[PageBlock]:
    values = {name: value for name, value in run.made_by.items() if name != "command"}
    return [PageBlock("facts", values)] if values else []


def _repeat(runs: Sequence[ReportedRun], command: str) -> list[PageBlock]:
    blocks: list[PageBlock] = []
    for one in runs:
        for run in dict.fromkeys(run for run, _ in one.networks.values()):
            made = str(run.made_by.get("command") or "") or "started from Python; settings.json holds the plan"
            commit = re.sub("[+]changes$", " with changes", str(run.made_by.get("commit") or "not known"))
            known = f"normscale {run.made_by.get('normscale', '?')}, commit {commit}"
            blocks += [PageBlock("notes", [f"{one.title}: {known}"]), PageBlock("command", made)]
    return [*blocks, PageBlock("notes", ["This page alone:"]), PageBlock("command", command)]


def _stress(run: RunFolder) -> tuple[StressResult | None, list[str]]:
    """The stress grid of a run, and what is wrong with it."""
    if not run.stress.exists():
        return None, []
    try:
        result = load_stress(run.stress)
        make.stress_table(result)
        return result, []
    except (FileFormatError, InvalidInput) as error:
        return None, [f"The stress grid is not shown: {error}"]


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"figures need matplotlib ({error}). Run: pip install 'normscale[report]', or pass --no-figures."
        ) from error


def _pictures(
    runs: Sequence[ReportedRun],
    folder: Path,
    stress: StressResult | None,
    classes: Sequence[int],
    pdf: bool,
    *,
    all_of_run: bool,
) -> list[Picture]:
    """Draw every figure, keep it as files, and make it ready for the page; several runs have the opening picture."""
    from markupsafe import Markup

    from normscale.bench.report.figures.style import inline_svg, save_figure
    from normscale.bench.report.gallery import draw_all, draw_joint_ece, n_figures

    folder.mkdir(exist_ok=True)
    pictures = []

    def drawn() -> Iterator[Drawn]:
        for one in runs:
            yield from _ranking(one, len(runs))
        own = Scoreboard.of(runs[0].run)  # with its own seeds; what was kept of a run may have no scores to draw
        if len(runs) == 1 and all_of_run and own.cells:
            yield from draw_all(runs[0].run, own, stress, classes)
        elif len(runs) > 1 and all_of_run:
            yield from draw_joint_ece({one.title: one.networks[one.board.seeds[0]] for one in runs})

    with bar("drawing", len(runs) + n_figures(runs[0].board, stress) * all_of_run) as line:
        for one in drawn():
            for suffix in ("png", "svg", *(["pdf"] if pdf else [])):
                save_figure(one.figure, folder / f"{one.name}.{suffix}")
            markup = Markup(inline_svg(one.figure, one.name, one.caption))
            width, height = one.figure.get_size_inches()
            shape = "map" if one.group == "stress" else "tall" if height > _TALL * width else ""
            pictures.append(Picture(one.group, markup, one.caption, "" if one.group == "ranking" else shape, one.name))
            line.advance(doing=f"drawing {one.name}")
    return pictures


def _ranking(one: ReportedRun, n_runs: int) -> Iterator[Drawn]:
    """The opening picture of a run: static and streamed methods, each best first."""
    from normscale.bench.report.figures.ranking import Ranked, draw_ranking
    from normscale.bench.report.figures.style import styled
    from normscale.bench.report.gallery import Drawn

    board, ends = one.board, {} if one.resampled is None else one.resampled.intervals
    groups: dict[str, list[Ranked]] = {}
    n_left_out = 0
    for setting in ("frozen", "stream"):
        methods = [method for method in board.block.methods if make.setting_of([one], method) == setting]
        found = []
        for method in methods:
            table = [
                fmean(board.value("auroc", method, name, seed) for name in board.block.ood_sets)
                for seed in board.block.seeds
            ]
            found.append(Ranked(title_of(method), fmean(table), table, ends.get(method)))
        found.sort(key=lambda ranked: -ranked.mean)
        n_left_out += len(found[_MOST_RANKED:])
        if found:
            groups[make.SETTINGS[setting]] = found[:_MOST_RANKED]
    if not groups:
        return
    n_seeds = len(board.block.seeds)
    caption = f"{one.title}: mean AUROC over {make.count(len(board.block.ood_sets), 'OoD set')}."
    if ends:
        caption += " Bar: 95 % interval from resampled rows."
    if n_seeds > 1:
        caption += f" Tick: one of {n_seeds} networks."
    if n_left_out:
        caption += f" {n_left_out} more methods are in the table."
    name = "ranking" if n_runs == 1 else f"ranking_{make.slug(one.title)}"
    with styled():
        yield Drawn(name, caption, draw_ranking(groups, one.title), "ranking")
