"""``normscale score``: score tables of outputs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from normscale import jobs
from normscale.cli import option, say
from normscale.cli._options import (
    JOB_OPTIONS,
    DryRunOption,
    SharedOptions,
    check_detector_file,
    job_options,
    print_skipped,
    takes,
)
from normscale.detectors.base import Detector
from normscale.detectors.registry import load_detector
from normscale.errors import InvalidInput

EXAMPLES = (
    "normscale score detector.safetensors sample:unseen_digits",
    "normscale score detector.safetensors sample:test --stream -o scores.csv",
)


STREAM: SharedOptions = {
    "stream": (Annotated[bool, option("Take each row into the running statistics first.", "--stream/--frozen")], False),
    "by": (Annotated[str | None, option("A stream for every value of this column.", "COLUMN")], None),
    "order_by": (Annotated[str | None, option("Stream the rows in the order of this column.", "COLUMN")], None),
}


@takes(STREAM, JOB_OPTIONS)
def score(
    detector: Annotated[str, typer.Argument(metavar="DETECTOR", help="A file that `normscale fit` saved.")],
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Files, folders, globs, s3://... or -.", show_default="-"),
    ] = None,
    *,
    output: Annotated[str, option("A file, a folder, or - for CSV here.", "PATH", "--output", "-o")] = "-",
    threshold: Annotated[float | None, option("Flag scores above it.", shown="the detector's")] = None,
    save: Annotated[str | None, option("Save the detector after the stream (.safetensors).", "FILE")] = None,
    keep_columns: Annotated[str | None, option("Columns to write beside the scores.", "A,B")] = None,
    threads: Annotated[int, option("Threads of this process.", min=1)] = 1,
    dry_run: DryRunOption = False,
    **given: Any,
) -> None:
    """Score each row: higher means more out-of-distribution.

    The output has the score, the predicted class (from logits), is_ood (with a threshold) and the file (of several).

    A folder (a name without a suffix, or s3://...) gets one file for each piece; a rerun completes it.
    """
    loaded = load_detector(detector)
    if save is not None:
        _check_that_it_can_be_saved(loaded, given["stream"], detector, save)
    if dry_run:
        typer.echo(jobs.describe(tables or "-", loaded.reads, given["piece_rows"] or jobs.PIECE_ROWS, by_file=True))
        return
    kept = keep_columns.split(",") if keep_columns else ()
    with job_options({**given, "threshold": threshold, "threads": threads, "keep_columns": kept}) as job:
        result = jobs.score(tables or "-", loaded, output, **job)
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
