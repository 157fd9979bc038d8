"""``normscale score``: score tables of outputs."""

from __future__ import annotations

from typing import Annotated

import typer

from normscale import jobs
from normscale.cli._options import (
    AddressOption,
    DryRunOption,
    EngineOption,
    MemoryOption,
    OnInvalid,
    PieceRowsOption,
    ProbabilitiesOption,
    WorkersOption,
    job_options,
    note,
    print_skipped,
    shown_progress,
)
from normscale.detectors.base import Detector
from normscale.detectors.registry import load_detector
from normscale.errors import InvalidInput
from normscale.rows import check_folder

EXAMPLE = "Example: [bold]normscale score detector.safetensors sample:unseen_digits | head[/bold]"


def score(
    detector: Annotated[str, typer.Argument(help="A detector that `normscale fit` saved.")],
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Outputs to score: files, folders, globs, s3://... or -.",
            show_default="-",
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="A file, - for CSV here, or a folder of one file a piece.",
        ),
    ] = "-",
    stream: Annotated[
        bool, typer.Option("--stream/--frozen", help="Take each row into the running statistics first.")
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="A stream for every value of this column."),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Stream the rows in the order of this column."),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Flag scores above this one.", show_default="the detector's")
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(metavar="DETECTOR", help="Save the detector after the stream (.safetensors)."),
    ] = None,
    on_invalid: Annotated[
        OnInvalid, typer.Option(help="A row with NaN or infinity: stop, or score it nan.")
    ] = OnInvalid.RAISE,
    keep_columns: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Columns to write beside the scores."),
    ] = None,
    probabilities: ProbabilitiesOption = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of this process.")] = 1,
    memory: MemoryOption = None,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
    piece_rows: PieceRowsOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Score each row: higher means more out-of-distribution.

    Beside the score stand the predicted class, where the table has logits, is_ood, where there is a threshold, and the
    file, where several are scored. A folder (a name without a suffix, or s3://...) is written by workers, one file for
    each piece, and a rerun completes it.
    """
    loaded = load_detector(detector)
    if save is not None:
        _check_that_it_can_be_saved(loaded, stream, detector, save)
    if dry_run:
        typer.echo(jobs.describe(tables or "-", loaded.reads, piece_rows or jobs.PIECE_ROWS, by_file=True))
        return
    with shown_progress() as tick:
        result = jobs.score(
            tables or "-",
            loaded,
            output,
            stream=stream,
            by=by,
            order_by=order_by,
            memory=memory,
            threshold=threshold,
            keep_columns=keep_columns.split(",") if keep_columns else (),
            probabilities=probabilities,
            on_invalid=on_invalid,
            threads=threads,
            tick=tick,
            say=note,
            **job_options(engine, workers, address, piece_rows),
        )
    if save is not None:
        result.detector.save(save)
    print_skipped(result.skipped)
    if output != "-":
        parts = "" if result.n_pieces is None else f" in {result.n_pieces} files"
        before = f", {result.n_done_before} of them were there already" if result.n_done_before else ""
        typer.echo(f"{result.n_rows} rows scored to {output}{parts}{before}", err=True)
    if result.n_flagged is not None and result.n_rows:
        share = result.n_flagged / result.n_rows
        typer.echo(f"{result.n_flagged} of {result.n_rows} rows ({share:.1%}) are out-of-distribution", err=True)


def _check_that_it_can_be_saved(loaded: Detector, stream: bool, path: str, save: str) -> None:
    """Raise before any row is read when --save would write nothing new, or cannot."""
    if not stream:
        raise InvalidInput(
            f"--save keeps the statistics that --stream moves, and without --stream none move. Add --stream; to have "
            f"{path} twice, copy it."
        )
    if not loaded._runs:
        raise InvalidInput(f"--save keeps statistics that a stream moved, and {loaded!r} has none. Leave --save out.")
    if not save.endswith(".safetensors"):
        raise InvalidInput(f"a detector file ends in .safetensors; got {save!r}.")
    check_folder(save)
