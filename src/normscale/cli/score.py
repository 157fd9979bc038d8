"""``normscale score``: score a table of outputs, chunk by chunk."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from numpy.typing import NDArray

from normscale import _validate
from normscale.cli._inputs import PROBABILITIES_HELP, Input, OnInvalid
from normscale.cli._many_files import (
    AddressOption,
    DryRunOption,
    EngineOption,
    ManyFiles,
    PieceRowsOption,
    WorkersOption,
    score_many,
)
from normscale.detectors.base import Detector
from normscale.detectors.registry import load_detector
from normscale.detectors.threshold import Threshold
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, predicted_where_finite
from normscale.tables import SCORE_COLUMNS, open_score_writer
from normscale.tables.table_writer import check_folder

EXAMPLE = "Example: [bold]normscale score detector.safetensors sample:unseen_digits | head[/bold]"


def score(
    detector: Annotated[str, typer.Argument(help="A detector that `normscale fit` saved.")],
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Outputs to score; - reads a pipe. Files, folders and globs, here or in an object store.",
            show_default="-",
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="Where the scores go: a file, or - for CSV on standard output; for many files a folder.",
        ),
    ] = "-",
    stream: Annotated[
        bool, typer.Option("--stream/--frozen", help="Let running statistics take each row in before it is scored.")
    ] = False,
    threshold: Annotated[
        float | None, typer.Option(help="Flag scores above this, whatever threshold the detector carries.")
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(
            metavar="DETECTOR", help="With --stream: save the detector with its moved statistics here (.safetensors)."
        ),
    ] = None,
    on_invalid: Annotated[
        OnInvalid, typer.Option(help="A row with NaN or infinity: stop, or give it the score nan and the class -1.")
    ] = OnInvalid.RAISE,
    keep_columns: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Columns of the table, such as an id, to write beside the scores."),
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help=PROBABILITIES_HELP)] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the work.")] = 1,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
    piece_rows: PieceRowsOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Score each row: higher means more out-of-distribution.

    Beside the score stand the predicted class, where the table has logits, and is_ood, where there is a threshold.
    """
    loaded = load_detector(detector)
    if save is not None:
        _check_that_it_can_be_saved(loaded, stream, detector, save)
    many = ManyFiles(engine, workers, address, piece_rows, dry_run)
    if many.wanted(tables or []):
        if probabilities or keep_columns:
            raise InvalidInput("--probabilities and --keep-columns read one table; score the files one by one.")
        score_many(
            tables or [],
            loaded,
            output,
            many,
            stream=stream,
            threshold=threshold,
            on_invalid=on_invalid,
            save=save,
        )
        return
    table = tables[0] if tables else "-"
    # not set on the detector: what --save writes keeps its own threshold
    limit = loaded.threshold_ if threshold is None else Threshold(_validate.real(threshold, "--threshold"))
    source = Input(
        table,
        [*loaded.reads, LOGITS],
        class_names=loaded.class_names,
        probabilities=probabilities,
        refuse_probabilities=LOGITS in loaded.reads,
        keep=keep_columns.split(",") if keep_columns else (),
    )
    names = ["score"] + ["predicted"] * source.has_logits + ["is_ood"] * (limit is not None)
    if taken := [name for name in names if name in source.columns]:
        raise InvalidInput(f"the column {taken[0]!r} of {table} cannot be kept: the scores have one of that name.")
    columns = {**source.columns, **{name: SCORE_COLUMNS[name] for name in names}}
    if limit is not None and limit.per_class is not None and not source.has_logits:
        raise InvalidInput(
            f"{detector} has one threshold for each predicted class, and {table} has no logits to predict from. "
            "Add the logits to the table, or give one --threshold."
        )
    make_scores = loaded.stream if stream else loaded.score
    flagged = 0
    with open_score_writer(output, columns) as writer:
        for chunk, kept in source.chunks_and_columns("scoring"):
            scores = make_scores(chunk, threads=threads, on_invalid=on_invalid)
            row: dict[str, NDArray[Any]] = {**kept, "score": scores}
            predicted = chunk.predicted if source.has_logits else None
            if predicted is not None:
                row["predicted"] = predicted if on_invalid is OnInvalid.RAISE else predicted_where_finite(chunk)
            if limit is not None:
                row["is_ood"] = limit.flags(row["score"], predicted)
                flagged += int(row["is_ood"].sum())
            writer.append(**row)
        total = writer.n_rows
    if save is not None:
        loaded.save(save)
    if output != "-":
        typer.echo(f"{total} rows scored to {output}", err=True)
    if limit is not None and total:
        typer.echo(f"{flagged} of {total} rows ({flagged / total:.1%}) are out-of-distribution", err=True)


def _check_that_it_can_be_saved(loaded: Detector, stream: bool, path: str, save: str) -> None:
    """Raise before any row is read when --save would write nothing new, or cannot."""
    if not stream:
        raise InvalidInput(
            f"--save keeps the statistics that --stream moves, and without --stream none move. Add --stream; to have "
            f"{path} twice, copy it."
        )
    if not loaded.has_running_statistics:
        raise InvalidInput(f"--save keeps statistics that a stream moved, and {loaded!r} has none. Leave --save out.")
    if not save.endswith(".safetensors"):
        raise InvalidInput(f"a detector file ends in .safetensors; got {save!r}.")
    check_folder(save)
