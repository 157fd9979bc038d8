"""``normscale eval``: how well detectors tell two tables of logits apart."""

from __future__ import annotations

import csv
import sys
from enum import StrEnum
from typing import Annotated

import typer

from normscale._progress import bar
from normscale._version import __version__
from normscale.cli._inputs import Input, read_named
from normscale.detectors.base import Detector
from normscale.detectors.registry import load_detector, make_detector
from normscale.encoding.json_text import write_json
from normscale.experiments.comparison import ComparisonRow, compare, default_methods

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
    validation: Annotated[str | None, typer.Option(help="Labelled held-out outputs, for temperature scaling.")] = None,
    guard: Annotated[list[str] | None, typer.Option(help="A saved detector to compare; may be repeated.")] = None,
    detector: Annotated[
        list[str] | None, typer.Option("--detector", "-d", help="Only these detectors; default: all that can run.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Order of the shuffled streams.")] = 0,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print the results.")] = Format.TABLE,
) -> None:
    """Compare detectors: AUROC, AUPR and FPR95 on every OoD set, with the positive class named."""
    id_test = Input(id_table).read()
    ood_sets = read_named(ood_tables)
    train_outputs = Input(train).read() if train else None
    validation_outputs = Input(validation).read() if validation else None
    detectors: list[Detector] = [load_detector(path) for path in guard or []]
    if detector or not detectors:
        names = detector or default_methods(train_outputs, validation_outputs)
        detectors += [make_detector(name) for name in names]
    with bar("comparing", len(detectors) * len(ood_sets)) as line:
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


def print_table(rows: list[ComparisonRow]) -> None:
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
            numbers = (row.auroc, row.aupr_out, row.aupr_in, row.fpr95_out, row.fpr95_in)
            table.add_row(row.method, row.setting, *(f"{number:.4f}" for number in numbers))
        console.print(table)
    console.print(
        "OoD pos.: OoD inputs are the positive class; ID pos.: in-distribution inputs are. FPR95, OoD pos. is the "
        "share of in-distribution inputs flagged when 95 % of OoD inputs are caught. Statistics: frozen, as fitted; "
        "stream, running over the shuffled mixture; per class, one ranking per predicted class, averaged (the paper's "
        "multi-threshold protocol, not to be compared with one ranking of all inputs)."
    )


def print_csv(rows: list[ComparisonRow]) -> None:
    """One line per row; *_out: OoD is positive, *_in: in-distribution is."""
    writer = csv.writer(sys.stdout)
    writer.writerow(ComparisonRow._fields)
    writer.writerows([*row[:11], write_json(row.parameters), row.seed] for row in rows)


def print_json(rows: list[ComparisonRow]) -> None:
    """One JSON object per line, with the version and what is positive."""
    positive = "OoD for *_out, in-distribution for *_in"
    for row in rows:
        record = {**row._asdict(), "positive": positive, "version": __version__}
        typer.echo(write_json(record))
