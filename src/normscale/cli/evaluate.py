"""``normscale eval``: how well detectors tell in-distribution outputs from OoD outputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from normscale import jobs
from normscale._progress import bar
from normscale.bench.experiments.comparison import (
    ComparedTables,
    TableComparison,
    compare_in_pieces,
    compare_tables,
    group_means,
    named_detectors,
    swapped_sides,
)
from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.run_folder import OWN_SETS
from normscale.cli._eval_printing import Format, check_output, print_means, print_rows, write_rows
from normscale.cli._options import (
    DETECTOR_HELP,
    AddressOption,
    EngineOption,
    MemoryOption,
    OnInvalid,
    OnInvalidOption,
    OodOption,
    PieceRowsOption,
    ProbabilitiesOption,
    WorkersOption,
    complete_detector,
    job_options,
    note,
    print_skipped,
    shown_progress,
)
from normscale.errors import InvalidInput, MissingExtra

EXAMPLE = (
    "Example: [bold]normscale eval --train sample:train --id sample:test --ood sample:unseen_digits "
    "--ood sample:photo_patches --report out[/bold]"
)


def evaluate(
    id_tables: Annotated[
        list[str],
        typer.Option("--id", metavar="TABLE", help="Outputs on in-distribution test inputs; repeatable."),
    ],
    ood_tables: OodOption,
    train: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Outputs to fit detectors on; repeatable."),
    ] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Labelled held-out outputs to fit on; repeatable."),
    ] = None,
    saved: Annotated[
        list[str] | None, typer.Option(metavar="DETECTOR", help="A detector file to compare; repeatable.")
    ] = None,
    detector: Annotated[
        list[str] | None,
        typer.Option(
            "--detector",
            "-d",
            metavar="DETECTOR",
            autocompletion=complete_detector,
            help=DETECTOR_HELP,
            show_default="all that can run",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Order of the shuffled streams.")] = 0,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print the results.")] = Format.TABLE,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="The rows as .csv, .json or .jsonl."),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Write a page with tables, intervals and figures here."),
    ] = None,
    figures: Annotated[bool, typer.Option(help="Draw figures for the report.")] = True,
    probabilities: ProbabilitiesOption = False,
    on_invalid: OnInvalidOption = OnInvalid.RAISE,
    memory: MemoryOption = None,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
    piece_rows: PieceRowsOption = None,
) -> None:
    """Compare detectors: AUROC, AUPR and FPR95 on every OoD set, with the positive class named.

    Rows are read into one place, within --memory, and every setting is measured. With --engine, --workers or
    --piece-rows tables of any size are compared in pieces: the detectors named, as fitted, exactly.
    """
    if output is not None:
        check_output(output)
    named: dict[str, str] = {}
    for item in ood_tables:
        name, path = jobs.input_named(item, [*named, *(OWN_SETS if report is not None else ())])
        named[name] = path
    tables = ComparedTables(id_tables, named, train or [], validation or [])
    detectors = named_detectors(saved or [], detector or [])
    spread = job_options(engine, workers, address, piece_rows)
    options: dict[str, Any] = {"probabilities": probabilities, "on_invalid": on_invalid, "memory": memory, "say": note}
    if spread:
        if report is not None:
            raise InvalidInput(
                "--report draws scores that are in memory; leave --engine, --workers and --piece-rows out."
            )
        rows = []
        with shown_progress() as tick:
            for row, skipped in compare_in_pieces(tables, detectors, seed=seed, tick=tick, **options, **spread):
                rows.append(row)
                print_skipped(skipped)
        _show(rows, format, output)
        return
    compare_in_memory(tables, detectors, seed, format, output, report, figures, options)


def compare_in_memory(
    tables: ComparedTables,
    detectors: dict[str, Any],
    seed: int,
    format: Format,
    output: str | None,
    report: str | None,
    figures: bool,
    options: dict[str, Any],
    groups: Mapping[str, Sequence[str]] | None = None,
) -> list[Measurement]:
    """Compare in every setting, print, and write what was asked for; with ``groups`` of OoD sets, also their means."""
    with bar("comparing", None) as line_of:
        found = compare_tables(
            tables,
            detectors,
            seed=seed,
            total=line_of.total,
            advance=lambda n, what: line_of.advance(n, doing=what),
            **options,
        )
    _show(found.rows, format, output, group_means(found.rows, groups or {}))
    if report is not None:
        _write_report(report, found, tables, figures)
    return found.rows


def _show(rows: list[Measurement], format: Format, output: str | None, means: Sequence[Measurement] = ()) -> None:
    """Print the rows and the means, say what looks wrong about them, and write them to a file if one was named."""
    print_rows(rows if format is Format.TABLE else [*rows, *means], format)
    if means and format is Format.TABLE:
        print_means(list(means))
    for text in swapped_sides(rows):
        note(text)
    for reason in dict.fromkeys(row.skipped for row in rows if row.skipped and format is not Format.TABLE):
        note(reason)
    if output is not None:
        write_rows([*rows, *means], output)
        typer.echo(f"written: {output}", err=True)


def _write_report(folder: str, found: TableComparison, tables: ComparedTables, figures: bool) -> None:
    from normscale.bench.report.own_outputs import report_on

    try:
        page = report_on(
            folder,
            found.measured,
            found.id_test,
            found.ood_sets,
            train=found.train,
            id_name=jobs.input_named(tables.id_test[0])[0],
            sources=tables.ood,
            command=" ".join(["normscale", *sys.argv[1:]]),
            figures=figures,
        )
    except MissingExtra:
        raise
    except OSError as error:
        raise InvalidInput(f"--report cannot write to {folder!r}: {error}.") from error
    inside = [os.path.join(folder, name) for name in ("tables", *(["figures"] if figures else []))]
    typer.echo(f"written: {page}, {' and '.join(inside)}", err=True)
