"""A run's report on disk: one page, tables in three formats, figures in two."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from normscale._atomic import atomic_path
from normscale._progress import bar
from normscale.errors import FileFormatError, InvalidInput, MissingExtra
from normscale.experiments.methods import title_of
from normscale.experiments.recommendation import recommend
from normscale.experiments.run_folder import RunFolder
from normscale.experiments.stress_result import StressResult, load_stress
from normscale.report.additions import Additions
from normscale.report.better_than import LEVEL, better_than_table, compare_all
from normscale.report.comparison_record import ComparisonRecord
from normscale.report.fitted_on import NOT_ON_OOD, fitted_on, parameters_of
from normscale.report.headline import headline
from normscale.report.html_page import METHODS, Contents, Picture, render
from normscale.report.reference import BesideReference
from normscale.report.renderers import to_csv, to_latex, to_markdown
from normscale.report.scoreboard import SHOWN, Scoreboard
from normscale.report.table import Column, ReportTable, Row, Section
from normscale.report.tables import (
    WITH_AUPR_IN,
    accuracies_of,
    accuracy_table,
    comparison_table,
    expanded_table,
    ood_set_table,
    per_set_table,
)

_TALL = 1.1
"""A figure that is higher than so many times its width takes two places of the page below each other."""
RENDERERS: dict[str, Callable[[ReportTable], str]] = {"md": to_markdown, "tex": to_latex, "csv": to_csv}


def write_report(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    additions: Additions | Callable[[RunFolder], Additions] = Additions(),  # noqa: B008 - a tuple
    figures: bool = True,
    pdf: bool = False,
    resamples: int = 1000,
) -> Path:
    """Write ``report.html``, ``tables/`` and ``figures/`` into the folder of a run.

    Parameters
    ----------
    folder : path
        Of a run of ``normscale bench``; it may be unfinished.
    output : path, optional
        Where the page goes, if not into the folder.
    additions : Additions, or a function from a run to them
        Published numbers to stand beside the run's, further tables, sentences and figures.
    figures : bool
        False leaves them out; then matplotlib is not needed.
    pdf : bool
        Write the figures as .pdf too.
    resamples : int
        Of the paired bootstrap.

    Returns
    -------
    Path
        Of the page.

    Raises
    ------
    FileFormatError
        If the folder is no run, or one of another version.
    InvalidInput
        If no cell is finished.
    MissingExtra
        If figures are wanted and matplotlib is not there.
    """
    run = RunFolder.open(folder)
    if figures:
        _require_matplotlib()
    board = Scoreboard.of(run)
    if not board.cells:
        raise InvalidInput(
            f"no cell of the run in {os.fspath(folder)!r} is finished, so there is nothing to report. Run `normscale "
            f"bench -o {os.fspath(folder)}` on; it goes on where it stopped."
        )
    if not isinstance(additions, Additions):
        additions = additions(run)
    beside, accuracies = BesideReference(board, additions.reference), accuracies_of(run)
    further = additions.tables(board, beside)
    with bar("comparing row by row", len(board.ood_sets) * len(board.seeds)) as line:
        comparisons = compare_all(
            run, board, resamples=resamples, tick=lambda name: line.advance(doing=f"comparing row by row: {name}")
        )
    if board.subject is not None:
        ComparisonRecord(board.subject, resamples, LEVEL, comparisons).save(run)
    expanded = expanded_table(board, beside)
    made = [
        comparison_table(board, beside),
        per_set_table(board, SHOWN if expanded is not None else WITH_AUPR_IN),
        better_than_table(comparisons, board, resamples=resamples),
        *further,
        accuracy_table(accuracies, run.plan.in_set, additions.reference, trained=bool(run.plan.network)),
        ood_set_table(run, board, beside),
        expanded,
        method_table([board]),
    ]
    tables = {table.name: table for table in made if table is not None and any(one.rows for one in table.sections)}
    write_tables(run.tables, tables)
    stress, advice, notes = _stress(run)
    pictures = _draw(run, board, stress, additions, pdf) if figures else []
    sentences = headline(run, board, beside, comparisons, accuracies, additions.sentences(board, beside))
    subject = title_of(board.subject) if board.subject is not None else ""
    names = [table.name for table in further]
    page = render(Contents(run, sentences, tables, pictures, advice, notes, subject, names))
    path = run.page if output is None else Path(output)
    with atomic_path(path) as temporary:
        Path(temporary).write_text(page, encoding="utf-8")
    return path


def method_table(boards: Sequence[Scoreboard]) -> ReportTable:
    """How each method was measured, what it was fitted and tuned on, and with which parameters."""
    setting = {cell.method: cell.setting for board in boards for cell in board.cells.values()}
    methods = dict.fromkeys(method for board in boards for method in board.methods)
    rows: list[Row] = [
        (title_of(method), setting[method], fitted_on(method), parameters_of(boards, method)) for method in methods
    ]
    notes = [
        "stream: running statistics over the shuffled mixture of both test sets; frozen: the detector "
        "as fitted; per class: one ranking per predicted class, averaged.",
        NOT_ON_OOD,
    ]
    columns = [Column("Method"), Column("Measured"), Column("Fitted and tuned on"), Column("Parameters")]
    return ReportTable(METHODS, "Methods", columns, [Section("", rows)], notes)


def write_tables(folder: Path, tables: dict[str, ReportTable]) -> None:
    """Write every table in every format."""
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        for suffix, render_table in RENDERERS.items():
            with atomic_path(folder / f"{name}.{suffix}") as temporary:
                Path(temporary).write_text(render_table(table), encoding="utf-8")


def _stress(run: RunFolder) -> tuple[StressResult | None, list[str], list[str]]:
    """The stress grid of the run, what it recommends, and what is wrong with it."""
    if not run.stress.exists():
        return None, [], []
    try:
        result = load_stress(run.stress)
        return result, recommend(result), []
    except (FileFormatError, InvalidInput) as error:
        return None, [], [f"The stress grid is not shown: {error}"]


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"figures need matplotlib ({error}). Run: pip install 'normscale[report]', or pass --no-figures."
        ) from error


def _draw(
    run: RunFolder, board: Scoreboard, stress: StressResult | None, additions: Additions, pdf: bool
) -> list[Picture]:
    """Draw every figure, keep it as files, and make it ready for the page."""
    from normscale.report.figures.style import inline_svg, save_figure
    from normscale.report.gallery import STRESS, draw_all, n_figures

    folder = run.figures
    folder.mkdir(exist_ok=True)
    pictures = []
    with bar("drawing", n_figures(board, stress)) as line:
        for drawn in draw_all(run, board, stress, additions.figures):
            for suffix in ("png", "svg", *(["pdf"] if pdf else [])):
                save_figure(drawn.figure, folder / f"{drawn.name}.{suffix}")
            markup = inline_svg(drawn.figure, drawn.name, drawn.caption)
            width, height = drawn.figure.get_size_inches()
            shape = "map" if drawn.group == STRESS else "tall" if height > _TALL * width else ""
            pictures.append(Picture(drawn.group, markup, drawn.caption, shape))
            line.advance(doing=f"drawing {drawn.name}")
    return pictures
