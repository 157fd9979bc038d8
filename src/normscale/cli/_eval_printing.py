"""The rows of ``normscale eval`` on the screen and in files."""

from __future__ import annotations

import csv
import io
import sys
from typing import Any

from normscale._atomic import atomic_path
from normscale._version import __version__
from normscale.bench.experiments.measurement import Measurement
from normscale.cli._options import Format, console, table
from normscale.encoding.json_text import write_json
from normscale.errors import InvalidInput
from normscale.metrics import METRICS
from normscale.rows import check_folder

POSITIVE = "OoD for *_out, in-distribution for *_in"


def _print_table(rows: list[Measurement]) -> None:
    """One table per OoD set, best AUROC first; what could not be computed is a dash with a note."""
    out = console()
    notes = list(dict.fromkeys(row.skipped for row in rows if row.skipped))
    for name, side in dict.fromkeys((row.ood_set, row.in_set) for row in rows):
        those = (row for row in rows if (row.ood_set, row.in_set) == (name, side))
        here = sorted(those, key=lambda row: (row.skipped != "", -row.auroc))
        of_side = f" ({side})" if side else ""
        title = f"{name}: {here[0].n_ood} OoD inputs, {here[0].n_id} in-distribution{of_side}"
        metrics = [metric for metric in METRICS.values() if any(metric.name in row.metrics for row in here)]
        headings = [metric.title.replace(", ", "\n").replace("positive", "pos.") for metric in metrics]
        made = table(["detector", "statistics"], headings, title)
        for row in here:
            dash = f"- ({notes.index(row.skipped) + 1})" if row.skipped else ""
            numbers = [f"{row.metrics[one.name]:.4f}" if one.name in row.metrics else "-" for one in metrics]
            made.add_row(row.method, row.setting, *([dash] * len(metrics) if dash else numbers))
        out.print(made)
    for number, text in enumerate(notes, start=1):
        out.print(f"({number}) {text}")
    out.print(
        "OoD pos.: OoD inputs are the positive class; ID pos.: in-distribution inputs are. FPR95, OoD pos. is the "
        "share of in-distribution inputs flagged when 95 % of OoD inputs are caught. Statistics: frozen, as fitted; "
        "stream, running over the shuffled mixture; per class, one ranking per predicted class, averaged (the paper's "
        "multi-threshold protocol, not to be compared with one ranking of all inputs)."
    )


def print_means(rows: list[Measurement]) -> None:
    """One table of means over groups of OoD sets: a column for each group and in-distribution side."""
    groups = list(dict.fromkeys((row.ood_set, row.in_set) for row in rows))
    headings = [f"{group.partition(' (')[0]}{f', {side}' if side else ''}" for group, side in groups]
    made = table(["detector", "statistics"], headings, "Means over groups of OoD sets: AUROC / FPR95, OoD positive")
    methods: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for row in sorted(rows, key=lambda row: -row.auroc):
        numbers = f"{row.auroc:.4f} / {row.metrics['fpr95_out']:.4f}"
        methods.setdefault((row.method, row.setting), {})[row.ood_set, row.in_set] = numbers
    for method, cells in methods.items():
        made.add_row(*method, *(cells.get(group, "-") for group in groups))
    console().print(made)


def print_rows(rows: list[Measurement], format: Format) -> None:
    """Print a table for people, or CSV or a JSON object per line; *_out: OoD is positive, *_in: in-distribution is."""
    if format == "table":
        _print_table(rows)
    else:
        sys.stdout.write(_as_text(rows, ".csv" if format == "csv" else ".jsonl"))


def check_output(path: str | None) -> None:
    """Raise before any work is done where :func:`write_rows` could not write."""
    if path is None:
        return
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
