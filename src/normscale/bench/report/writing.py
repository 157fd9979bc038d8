"""One report over one run or several: a page, tables in three formats, figures in two."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from normscale._atomic import atomic_path
from normscale._progress import bar
from normscale.bench.experiments.methods import title_of
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.stress_result import StressResult, load_stress
from normscale.bench.report import tables as make
from normscale.bench.report.published import Additions
from normscale.bench.report.rendering import RENDERERS, render
from normscale.bench.report.runs import Folder, ReportedRun, gaps, read_runs
from normscale.bench.report.table import ReportTable
from normscale.errors import FileFormatError, InvalidInput, needs

_TALL = 1.1
"""A figure that is higher than so many times its width takes two places of the page below each other."""


def report(
    runs: Folder | Sequence[Folder],
    output: Folder | None = None,
    *,
    as_seeds: bool = False,
    figures: bool = True,
    pdf: bool = False,
    classes: Sequence[int] = (),
    resamples: int = 1000,
    additions: Additions = Additions(),  # noqa: B008 - a tuple
) -> Path:
    """Write a report over runs, and return the path of its page; ``tables/`` and ``figures/`` are beside it.

    Parameters
    ----------
    runs : path, or several
        Folders of ``normscale bench`` or ``normscale eval --report``; they may be unfinished. ``settings.json``,
        ``results.jsonl`` and ``comparisons.json`` of a run are enough.
    output : path, optional
        The page (``.html``), or a folder for it; default: the folder of the run, of several ``joint`` beside the first.
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
        Published numbers to print beside the runs', and further tables.

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
        with needs("figures need matplotlib", "report", ", or pass --no-figures."):
            import matplotlib  # noqa: F401
    read = read_runs(folders, additions, as_seeds=as_seeds, resamples=resamples)
    page = _page_path(folders, output)
    page.parent.mkdir(parents=True, exist_ok=True)
    single = len(read) == 1
    stress, notes = _stress(read[0].run) if single else (None, [])
    ends = [(one, "" if len(read) == 1 else f"_{make.slug(one.title)}") for one in read]
    tables = _tables(ends, additions, stress)
    pictures = _pictures(read, page.parent / "figures", stress, classes, pdf) if figures else []
    options = [*["--as-seeds"] * as_seeds, *(["--classes", ",".join(map(str, classes))] if classes else [])]
    command = ["normscale", "report", *map(str, folders), *options]
    return write_page(
        page,
        f"OoD detection on {', '.join(one.title for one in read)}",
        tables,
        command,
        runs=ends,
        pictures=pictures,
        single=single,
        gaps={one.title: gaps(one) for one in read},
        notes=notes,
        networks=dict.fromkeys(make.network_of(one) for one in read if one.run.plan.network),
        n_networks=sum(len(one.board.seeds) for one in read),
        n_sets=len({name for one in read for name in one.board.ood_sets}),
        n_methods=len({method for one in read for method in one.board.methods}),
        subjects={title_of(one.board.subject) for one in read if one.board.subject is not None},
    )


def _page_path(folders: Sequence[Folder], output: Folder | None) -> Path:
    if output is not None:
        path = Path(output)
        return path if path.suffix.lower() in (".html", ".htm") else path / "report.html"
    first = Path(folders[0])
    return (first if len(folders) == 1 else first.resolve().parent / "joint") / "report.html"


def _tables(
    runs: Sequence[tuple[ReportedRun, str]], additions: Additions, stress: StressResult | None
) -> list[ReportTable]:
    """Every table; the name of one of a run ends as the run says."""
    every = [one for one, _ in runs]
    made: list[ReportTable | None] = [make.averages_table(every)] if len(runs) > 1 else []
    for one, end in runs:
        made += [
            make.comparison_table(one, f"comparison{end}"),
            make.per_set_table(one, f"per_set{end}"),
            make.better_than_table(one, f"better_than{end}"),
            make.expanded_table(one, f"expanded{end}"),
            make.ood_set_table(one, f"ood_sets{end}"),
        ]
    made += additions.tables(every)
    made += [None if stress is None else make.stress_table(stress)]
    made += [make.accuracy_table(every), make.method_table(every), make.run_table(every)]
    return [table for table in made if table is not None]


def write_page(page: Path, title: str, made: Sequence[ReportTable], command: Sequence[str], **parts: Any) -> Path:
    """Write a page, and beside it every table that has rows as .md, .tex and .csv.

    ``parts`` are what the page's template shows besides.
    """
    tables = {table.name: table for table in made if any(section.rows for section in table.sections)}
    folder = page.parent / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    texts = {page: render("page.html.j2", title=title, tables=tables, command=shlex.join(command), **parts)}
    for (name, table), (suffix, renderer) in product(tables.items(), RENDERERS.items()):
        texts[folder / f"{name}.{suffix}"] = renderer(table)
    for path, text in texts.items():
        with atomic_path(path) as temporary:
            Path(temporary).write_text(text, encoding="utf-8")
    return page


def _stress(run: RunFolder) -> tuple[StressResult | None, list[str]]:
    """The stress grid of a run, and what is wrong with it."""
    try:
        result = load_stress(run.stress) if run.stress.exists() else None
        return result if result is None or make.stress_table(result) else None, []
    except (FileFormatError, InvalidInput) as error:
        return None, [f"The stress grid is not shown: {error}"]


def _pictures(
    runs: Sequence[ReportedRun],
    folder: Path,
    stress: StressResult | None,
    classes: Sequence[int],
    pdf: bool,
) -> list[dict[str, Any]]:
    """Draw every figure, write it to files, and make it ready for the page."""
    from normscale.bench.report.figures.style import inline_svg, save_figure, styled
    from normscale.bench.report.gallery import draw_all

    folder.mkdir(exist_ok=True)
    pictures = []
    with bar("drawing", None) as line, styled():
        for one in draw_all(runs, stress, classes):
            for suffix in ("png", "svg", *(["pdf"] if pdf else [])):
                save_figure(one.figure, folder / f"{one.name}.{suffix}")
            width, height = one.figure.get_size_inches()
            shape = "map" if one.group == "stress" else "tall" if height > _TALL * width else ""
            svg = inline_svg(one.figure, one.name, one.caption)
            shown = {"svg": svg, "shape": "" if one.group == "ranking" else shape}
            pictures.append({"group": one.group, "name": one.name, "caption": one.caption, **shown})
            line.advance(doing=f"drawing {one.name}")
    return pictures
