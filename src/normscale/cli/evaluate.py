"""``normscale eval``: how well detectors tell two tables of logits apart."""

from __future__ import annotations

import csv
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from normscale._progress import bar
from normscale._version import __version__
from normscale.cli._inputs import Input, read_named
from normscale.cli._many_files import (
    AddressOption,
    EngineOption,
    ManyFiles,
    PieceRowsOption,
    WorkersOption,
    evaluate_many,
)
from normscale.detectors.base import Detector
from normscale.detectors.registry import load_detector, make_detector
from normscale.encoding.json_text import write_json
from normscale.experiments.comparison import compare
from normscale.experiments.measurement import METRICS, Measurement
from normscale.experiments.methods import default_methods

EXAMPLE = (
    "Example: [bold]normscale eval --train sample:train --id sample:test --ood sample:unseen_digits "
    "--ood sample:photo_patches[/bold]"
)


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def evaluate(
    id_table: Annotated[str, typer.Option("--id", help="Outputs on in-distribution test inputs.")],
    ood_tables: Annotated[list[str], typer.Option("--ood", help="Outputs on OoD inputs; NAME=PATH names the set.")],
    train: Annotated[str | None, typer.Option(help="Outputs on the training set, to fit detectors on.")] = None,
    validation: Annotated[
        str | None, typer.Option(help="Labelled held-out outputs, for detectors fitted on these.")
    ] = None,
    saved: Annotated[list[str] | None, typer.Option(help="A detector file to compare; may be repeated.")] = None,
    detector: Annotated[
        list[str] | None, typer.Option("--detector", "-d", help="Only these detectors; default: all that can run.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Order of the shuffled streams.")] = 0,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print the results.")] = Format.TABLE,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
    piece_rows: PieceRowsOption = None,
) -> None:
    """Compare detectors: AUROC, AUPR and FPR95 on every OoD set, with the positive class named.

    With --engine tables may be larger than memory: the detectors named are compared as fitted, exactly.
    """
    many = ManyFiles(engine, workers, address, piece_rows, False)
    if engine is not None and many.wanted([id_table, *(path for path in (train, validation) if path)]):
        chosen = [load_detector(path) for path in saved or []] + [make_detector(name) for name in detector or []]
        measured = evaluate_many(id_table, ood_tables, train, validation, chosen, many, seed)
        {Format.TABLE: print_table, Format.CSV: print_csv, Format.JSON: print_json}[format](measured)
        return
    id_test = Input(id_table).read()
    ood_sets = read_named(ood_tables)
    train_outputs = Input(train).read() if train else None
    validation_outputs = Input(validation).read() if validation else None
    detectors: list[Detector] = [load_detector(path) for path in saved or []]
    if detector or not detectors:
        names = detector or default_methods(train_outputs, validation_outputs, present=[id_test, *ood_sets.values()])
        detectors += [make_detector(name) for name in names]
    with bar("comparing", len(ood_sets)) as line:
        rows = compare(
            id_test,
            ood_sets,
            train=train_outputs,
            validation=validation_outputs,
            detectors=detectors,
            seed=seed,
            tick=lambda what: line.advance(doing=what),
        )
    {Format.TABLE: print_table, Format.CSV: print_csv, Format.JSON: print_json}[format](rows)


def print_table(rows: list[Measurement]) -> None:
    """One table per OoD set, best AUROC first."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 110)
    for name in dict.fromkeys(row.ood_set for row in rows):
        here = sorted((row for row in rows if row.ood_set == name), key=lambda row: -row.auroc)
        table = Table(box=SIMPLE_HEAD, title=f"{name}: {here[0].n_ood} OoD inputs, {here[0].n_id} in-distribution")
        table.add_column("detector")
        table.add_column("statistics")
        for heading in ("AUROC", "AUPR\nOoD pos.", "AUPR\nID pos.", "FPR95\nOoD pos.", "FPR95\nID pos."):
            table.add_column(heading, justify="right")
        for row in here:
            table.add_row(row.method, row.setting, *(f"{row.metrics[metric]:.4f}" for metric in METRICS))
        console.print(table)
    console.print(
        "OoD pos.: OoD inputs are the positive class; ID pos.: in-distribution inputs are. FPR95, OoD pos. is the "
        "share of in-distribution inputs flagged when 95 % of OoD inputs are caught. Statistics: frozen, as fitted; "
        "stream, running over the shuffled mixture; per class, one ranking per predicted class, averaged (the paper's "
        "multi-threshold protocol, not to be compared with one ranking of all inputs)."
    )


def print_csv(rows: list[Measurement]) -> None:
    """One line per row; *_out: OoD is positive, *_in: in-distribution is."""
    records = [{**record, "parameters": write_json(record["parameters"])} for record in map(_record, rows)]
    writer = csv.DictWriter(sys.stdout, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)


def print_json(rows: list[Measurement]) -> None:
    """One JSON object per line, with the version and what is positive."""
    for row in rows:
        record = {**_record(row), "positive": "OoD for *_out, in-distribution for *_in", "version": __version__}
        typer.echo(write_json(record))


def _record(row: Measurement) -> dict[str, Any]:
    return {
        "method": row.method,
        "setting": str(row.setting),
        "ood_set": row.ood_set,
        **(dict.fromkeys(row.metrics) if row.skipped else row.metrics),
        "n_id": row.n_id,
        "n_ood": row.n_ood,
        "seconds": row.seconds,
        "parameters": row.parameters,
        "seed": row.seed,
    }
