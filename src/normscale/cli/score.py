"""``normscale score``: score tables of outputs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from normscale import jobs
from normscale.cli import say
from normscale.cli._options import (
    JOB_OPTIONS,
    DryRunOption,
    check_detector_file,
    job_options,
    print_skipped,
    takes,
)
from normscale.detectors.base import Detector
from normscale.detectors.registry import load_detector
from normscale.errors import FileFormatError, InvalidInput

EXAMPLES = (
    "normscale score detector.safetensors sample:unseen_digits",
    "normscale score detector.safetensors sample:test --stream -o scores.csv",
)


@takes(JOB_OPTIONS)
def score(
    detector: Annotated[str, typer.Argument(metavar="DETECTOR", help="A file that `normscale fit` saved.")],
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Files, folders, globs, s3://... or -.", show_default="-"),
    ] = None,
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="PATH", help="A file, a folder, or - for CSV here.")
    ] = "-",
    threshold: Annotated[
        float | None, typer.Option(help="Flag scores above it.", show_default="the detector's")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream/--frozen", help="Take each row into the running statistics first.")
    ] = False,
    by: Annotated[str | None, typer.Option(metavar="COLUMN", help="A stream for every value of this column.")] = None,
    order_by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Stream the rows in the order of this column.")
    ] = None,
    save: Annotated[
        str | None, typer.Option(metavar="FILE", help="Save the detector after the stream (.safetensors).")
    ] = None,
    keep_columns: Annotated[str | None, typer.Option(metavar="A,B", help="Columns to write beside the scores.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of this process.")] = 1,
    dry_run: DryRunOption = False,
    **job: Any,
) -> None:
    """Score each row: higher means more out-of-distribution.

    The output has the score, the predicted class (from logits), is_ood (with a threshold) and the file (of several).

    A folder (a name without a suffix, or s3://...) gets one file for each piece; a rerun completes it.
    """
    loaded = _loaded(detector, tables or [])
    if save is not None:
        _check_that_it_can_be_saved(loaded, stream, detector, save)
    if dry_run:
        typer.echo(jobs.describe(tables or "-", loaded.reads, job["piece_rows"] or jobs.PIECE_ROWS, by_file=True))
        return
    with job_options(job) as options:
        result = jobs.score(
            tables or "-",
            loaded,
            output,
            stream=stream,
            by=by,
            order_by=order_by,
            threshold=threshold,
            keep_columns=keep_columns.split(",") if keep_columns else (),
            threads=threads,
            **options,
        )
    if save is not None:
        result.detector.save(save)
    print_skipped(result.skipped)
    if output != "-":
        parts = "" if result.n_pieces is None else f" in {result.n_pieces} files"
        before = f", {result.n_done_before} of them were there already" if result.n_done_before else ""
        say(f"{result.n_rows} rows scored to {output}{parts}{before}")
    if result.n_flagged is not None and result.n_rows:
        share = result.n_flagged / result.n_rows
        say(f"{result.n_flagged} of {result.n_rows} rows ({share:.1%}) are out-of-distribution")


def _loaded(path: str, tables: list[str]) -> Detector:
    """The detector of a file; where it stands behind the tables, say so."""
    try:
        return load_detector(path)
    except FileFormatError as error:
        saved = next((one for one in tables if one.endswith(".safetensors")), None)
        if saved is None or path.endswith(".safetensors"):
            raise
        raise FileFormatError(
            f"the first argument is the detector file, and it is {path!r} here. The two look swapped; try: normscale "
            f"score {saved} {path}"
        ) from error


def _check_that_it_can_be_saved(loaded: Detector, stream: bool, path: str, save: str) -> None:
    """Raise before any row is read when --save would write nothing new, or cannot."""
    if not stream:
        raise InvalidInput(
            f"--save keeps the statistics that --stream moves, and without --stream none move. Add --stream; to have "
            f"{path} twice, copy it."
        )
    if not loaded._runs:
        raise InvalidInput(f"--save keeps statistics that a stream moved, and {loaded!r} has none. Leave --save out.")
    check_detector_file(save)
