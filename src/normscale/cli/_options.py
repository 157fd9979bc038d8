"""Options that several commands have, and what they print alike: notes, progress, rows that were skipped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer

from normscale import jobs
from normscale._progress import bar
from normscale.cli._sentences import as_options
from normscale.detectors.choosing import AUTO
from normscale.detectors.registry import list_detectors

_LISTED_FILES, _LISTED_ROWS = 20, 5


class EngineName(StrEnum):
    """Where the work is done."""

    HERE = "here"
    LOCAL = "local"
    RAY = "ray"


class OnInvalid(StrEnum):
    """What to do with a row that holds NaN or infinity."""

    RAISE = "raise"
    SKIP = "skip"


def complete_detector(incomplete: str) -> list[str]:
    """Names of detectors that begin as typed; behind a ``+`` those that may score."""
    before, plus, last = incomplete.rpartition("+")
    names = list_detectors() if plus else [AUTO, *list_detectors()]
    return [f"{before}{plus}{name}" for name in names if name.startswith(last)]


DETECTOR_HELP = "knn, knn:k=20 or STEP+SCORE; `normscale detectors` lists all."
EngineOption = Annotated[
    EngineName | None,
    typer.Option(
        "--engine",
        help="This process, processes or Ray.",
        show_default="by the number of pieces",
    ),
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="How many tasks at the same time.")]
AddressOption = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Of the Ray cluster.", show_default="one is started here")
]
PieceRowsOption = Annotated[int | None, typer.Option(min=1, help="Rows of a piece.")]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Bound on rows in one place, such as 8GiB.",
        show_default="half of the free",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print pieces, bytes and memory per worker, and stop.")]
ProbabilitiesOption = Annotated[
    bool,
    typer.Option("--probabilities", help="The logits are probabilities: take their logarithm."),
]
OnInvalidOption = Annotated[OnInvalid, typer.Option(help="A row with NaN or infinity: stop, or leave it out.")]
OodOption = Annotated[
    list[str],
    typer.Option(
        "--ood",
        metavar="[NAME=]TABLE",
        help="Outputs on OoD inputs: a file, folder or glob; repeatable.",
    ),
]


def note(text: str) -> None:
    """Tell the person at the terminal something that is no error."""
    typer.echo(f"normscale: note: {as_options(text)}", err=True)


@contextmanager
def shown_progress() -> Iterator[Any]:
    """A tick that shows a bar with rows per second and the time left; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    with bar("starting", 1.0, unit="share") as line:

        def tick(progress: jobs.Progress) -> None:
            share = progress.done_bytes / progress.n_bytes if progress.n_bytes else 1.0
            line.at(share, f"{progress.doing}, {progress.rows_per_second:,.0f} rows/s")

        yield tick


def job_options(
    engine: EngineName | None, workers: int | None, address: str | None, piece_rows: int | None
) -> dict[str, Any]:
    """What the functions of :mod:`normscale.jobs` take of these options; those that were not given are left out."""
    given = {"engine": engine, "workers": workers, "address": address, "piece_rows": piece_rows}
    return {name: value for name, value in given.items() if value is not None}


def print_skipped(skipped: jobs.Skipped) -> None:
    """Say which rows were left out: how many of each file, and the first of them."""
    by_file: dict[str, list[int]] = {}
    for path, row in skipped.rows:
        by_file.setdefault(path, []).append(row)
    if skipped.n:
        typer.echo(f"{skipped.n} rows with NaN or infinity were skipped", err=True)
    for path, rows in list(by_file.items())[:_LISTED_FILES]:
        more = ", ..." if len(rows) > _LISTED_ROWS else ""
        typer.echo(f"  {path}: rows {', '.join(map(str, rows[:_LISTED_ROWS]))}{more}", err=True)
    if len(by_file) > _LISTED_FILES:
        typer.echo(f"  and in {len(by_file) - _LISTED_FILES} more files", err=True)
