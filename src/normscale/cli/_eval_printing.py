"""The rows of ``normscale eval`` on the screen and in files."""

from __future__ import annotations

import csv
import io
import sys
from enum import StrEnum
from typing import Any

from normscale._atomic import atomic_path
from normscale._version import __version__
from normscale.bench.experiments.measurement import Measurement
from normscale.encoding.json_text import write_json
from normscale.errors import InvalidInput
from normscale.metrics import METRICS
from normscale.rows import check_folder

POSITIVE = "OoD for *_out, in-distribution for *_in"


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def _print_table(rows: list[Measurement]) -> None:
    """One table per OoD set, best AUROC first; what could not be computed is a dash with a note."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 110, markup=False, emoji=False)
    notes = list(dict.fromkeys(row.skipped for row in rows if row.skipped))
    for name, side in dict.fromkeys((row.ood_set, row.in_set) for row in rows):
        those = (row for row in rows if (row.ood_set, row.in_set) == (name, side))
        here = sorted(those, key=lambda row: (row.skipped != "", -row.auroc))
        of_side = f" ({side})" if side else ""
        title = Text(f"{name}: {here[0].n_ood} OoD inputs, {here[0].n_id} in-distribution{of_side}")
        table = Table(box=SIMPLE_HEAD, title=title)
        table.add_column("detector")
        table.add_column("statistics")
        shown = [metric for metric in METRICS.values() if any(metric.name in row.metrics for row in here)]
        for metric in shown:
            table.add_column(metric.title.replace(", ", "\n").replace("positive", "pos."), justify="right")
        for row in here:
            dash = f"- ({notes.index(row.skipped) + 1})" if row.skipped else ""
            numbers = (
                dash or (f"{row.metrics[metric.name]:.4f}" if metric.name in row.metrics else "-") for metric in shown
            )
            table.add_row(row.method, row.setting, *numbers)
        console.print(table)
    for number, text in enumerate(notes, start=1):
        console.print(f"({number}) {text}", highlight=False)
    console.print(
        "OoD pos.: OoD inputs are the positive class; ID pos.: in-distribution inputs are. FPR95, OoD pos. is the "
        "share of in-distribution inputs flagged when 95 % of OoD inputs are caught. Statistics: frozen, as fitted; "
        "stream, running over the shuffled mixture; per class, one ranking per predicted class, averaged (the paper's "
        "multi-threshold protocol, not to be compared with one ranking of all inputs)."
    )


def print_means(rows: list[Measurement]) -> None:
    """One table of means over groups of OoD sets: a column for each group and in-distribution side."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    groups = list(dict.fromkeys((row.ood_set, row.in_set) for row in rows))
    table = Table(box=SIMPLE_HEAD, title="Means over groups of OoD sets: AUROC / FPR95, OoD positive")
    for column in ("detector", "statistics"):
        table.add_column(column)
    for group, side in groups:
        table.add_column(f"{group.partition(' (')[0]}{f', {side}' if side else ''}", justify="right")
    methods: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for row in sorted(rows, key=lambda row: -row.auroc):
        shown = f"{row.auroc:.4f} / {row.metrics['fpr95_out']:.4f}"
        methods.setdefault((row.method, row.setting), {})[row.ood_set, row.in_set] = shown
    for method, found in methods.items():
        table.add_row(*method, *(found.get(group, "-") for group in groups))
    Console(width=None if sys.stdout.isatty() else 110, markup=False, emoji=False).print(table)


def print_rows(rows: list[Measurement], format: Format) -> None:
    """Print a table for people, or CSV or a JSON object per line; *_out: OoD is positive, *_in: in-distribution is."""
    if format is Format.TABLE:
        _print_table(rows)
    else:
        sys.stdout.write(_as_text(rows, ".csv" if format is Format.CSV else ".jsonl"))


def check_output(path: str) -> None:
    """Raise before any work is done where :func:`write_rows` could not write."""
    if not path.endswith((".csv", ".json", ".jsonl")):
        raise InvalidInput(f"--output must end in .csv, .json or .jsonl; got {path!r}.")
    check_folder(path)


def write_rows(rows: list[Measurement], path: str) -> None:
    """Write the rows to a file that appears whole: CSV, a JSON list, or one JSON object per line."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(_as_text(rows, path))


def _as_text(rows: list[Measurement], path: str) -> str:
    if path.endswith(".jsonl"):
        return "".join(write_json(_document(row)) + "\n" for row in rows)
    if path.endswith(".json"):
        return write_json([_document(row) for row in rows], indent=1) + "\n"
    records = [{**record, "parameters": write_json(record["parameters"])} for record in map(_record, rows)]
    text = io.StringIO()
    columns = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _document(row: Measurement) -> dict[str, Any]:
    return {**_record(row), "positive": POSITIVE, "version": __version__}


def _record(row: Measurement) -> dict[str, Any]:
    return {
        "method": row.method,
        "setting": str(row.setting),
        "ood_set": row.ood_set,
        **({"id_set": row.in_set} if row.in_set else {}),
        **({} if row.stream is None else {**row.stream._asdict(), "classes": row.classes, "draws": row.draws}),
        **(dict.fromkeys(row.metrics) if row.skipped else row.metrics),
        "n_id": row.n_id,
        "n_ood": row.n_ood,
        "seconds": row.seconds,
        "parameters": row.parameters,
        "seed": row.seed,
        "skipped": row.skipped,
    }
