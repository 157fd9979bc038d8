"""``normscale eval``: how well detectors tell in-distribution outputs from OoD outputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

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
from normscale.bench.network_folder import OWN_SETS
from normscale.cli import option, say
from normscale.cli._eval_printing import check_output, print_means, print_rows, write_rows
from normscale.cli._options import (
    JOB_OPTIONS,
    NO_TABLES,
    RESULT_OPTIONS,
    DetectorsOption,
    Format,
    IdOption,
    OodOption,
    TrainOption,
    input_named,
    job_options,
    note,
    print_skipped,
    takes,
)
from normscale.cli.report import say_written
from normscale.errors import InvalidInput, MissingExtra

EXAMPLES = (
    "normscale eval --train sample:train --id sample:test --ood sample:unseen_digits "
    "--ood sample:photo_patches --report out",
    "normscale eval --id sample:test --ood sample:uniform_noise -d msp -d energy -f csv",
)


class ResultChoices(NamedTuple):
    """What is made of a comparison: see :data:`RESULT_OPTIONS`."""

    seed: int
    format: Format
    output: str | None
    report: str | None
    figures: bool


@takes(RESULT_OPTIONS, JOB_OPTIONS)
def evaluate(
    *,
    id_tables: IdOption,
    ood_tables: OodOption,
    train: TrainOption = NO_TABLES,
    validation: Annotated[list[str], option("Labelled held-out outputs.", "TABLE")] = NO_TABLES,
    saved: Annotated[list[str], option("A detector file to compare.", "FILE")] = NO_TABLES,
    detector: DetectorsOption = None,
    **job: Any,
) -> None:
    """Compare detectors on every OoD set: AUROC, AUPR and FPR95.

    Options for tables and detectors may be repeated.

    With --engine, --workers or --piece-rows tables of any size are compared in pieces, by the detectors named.
    """
    results = ResultChoices(**{name: job.pop(name) for name in RESULT_OPTIONS})
    check_output(results.output)
    named: dict[str, str] = {}
    for item in ood_tables:
        name, path = input_named(item, [*named, *(OWN_SETS if results.report is not None else ())])
        named[name] = path
    tables = ComparedTables(id_tables, named, train, validation)
    detectors = named_detectors(saved, detector or [])
    if not any(job[name] for name in ("engine", "workers", "address", "piece_rows")):
        compare_in_memory(
            tables, detectors, results, {name: job[name] for name in ("probabilities", "on_invalid", "memory")}
        )
        return
    if results.report is not None:
        raise InvalidInput("--report draws scores that are in memory; leave --engine, --workers and --piece-rows out.")
    rows = []
    with job_options(job) as options:
        for row, skipped in compare_in_pieces(tables, detectors, seed=results.seed, **options):
            rows.append(row)
            print_skipped(skipped)
    _show(rows, results)


def compare_in_memory(
    tables: ComparedTables,
    detectors: dict[str, Any],
    results: ResultChoices,
    reading: dict[str, Any],
    groups: Mapping[str, Sequence[str]] | None = None,
) -> list[Measurement]:
    """Compare in every setting, print, and write what was asked for; with ``groups`` of OoD sets, also their means."""
    found = compare_tables(tables, detectors, seed=results.seed, say=note, **reading)
    _show(found.rows, results, group_means(found.rows, groups or {}))
    if results.report is not None:
        _write_report(results.report, found, tables, results.figures)
    return found.rows


def _show(rows: list[Measurement], results: ResultChoices, means: Sequence[Measurement] = ()) -> None:
    """Print the rows and the means, say what looks wrong about them, and write them to a file if one was named."""
    is_table = results.format == "table"
    print_rows(rows if is_table else [*rows, *means], results.format)
    if means and is_table:
        print_means(list(means))
    reasons = [] if is_table else [row.skipped for row in rows if row.skipped]
    for text in (*swapped_sides(rows), *dict.fromkeys(reasons)):
        note(text)
    if results.output is not None:
        write_rows([*rows, *means], results.output)
        say(f"written: {results.output}")


def _write_report(folder: str, found: TableComparison, tables: ComparedTables, figures: bool) -> None:
    from normscale.bench.report.own_outputs import report_on

    try:
        page = report_on(
            folder,
            [one for one in found.measured if not one.record.in_set],  # not those with shifted inputs
            found.id_test,
            found.ood_sets,
            train=found.train,
            id_name=input_named(tables.id_test[0])[0],
            sources=tables.ood,
            command=" ".join(["normscale", *sys.argv[1:]]),
            figures=figures,
        )
    except MissingExtra:
        raise
    except OSError as error:
        raise InvalidInput(f"--report cannot write to {folder!r}: {error}.") from error
    say_written(page, figures=figures)
