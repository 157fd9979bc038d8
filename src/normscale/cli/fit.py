"""``normscale fit``: learn a detector from the outputs on a training set."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from normscale import jobs
from normscale.cli._options import (
    DETECTOR_HELP,
    AddressOption,
    DryRunOption,
    EngineOption,
    MemoryOption,
    OnInvalid,
    OnInvalidOption,
    PieceRowsOption,
    ProbabilitiesOption,
    WorkersOption,
    complete_detector,
    job_options,
    note,
    print_skipped,
    shown_progress,
)
from normscale.errors import InvalidInput
from normscale.rows import check_folder

EXAMPLE = (
    "Example: [bold]normscale fit sample:train -o detector.safetensors --threshold-on sample:validation "
    "--keep 0.95[/bold]"
)


def fit(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TRAIN...",
            help="Outputs on the training set: files, folders, globs, s3://... or -.",
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="The detector file (.safetensors).")],
    detector: Annotated[
        str | None,
        typer.Option(
            "--detector",
            "-d",
            metavar="DETECTOR",
            autocompletion=complete_detector,
            help=DETECTOR_HELP,
            show_default="by the arrays of the rows",
        ),
    ] = None,
    arrays: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="What the default detector may read.",
            show_default="logits,features",
        ),
    ] = None,
    threshold_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE",
            help="Held-out in-distribution outputs; repeatable.",
        ),
    ] = None,
    keep: Annotated[
        float | None, typer.Option(help="Share of in-distribution inputs to accept.", show_default="0.95")
    ] = None,
    conformal: Annotated[
        bool, typer.Option("--conformal", help="Keep new inputs with at least that probability.")
    ] = False,
    per_class: Annotated[bool, typer.Option("--per-class", help="One threshold for each predicted class.")] = False,
    stream: Annotated[
        bool,
        typer.Option("--stream/--frozen", help="Set it on streamed scores, for `score --stream`."),
    ] = False,
    class_names: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Names of the classes, where the table has none.")
    ] = None,
    probabilities: ProbabilitiesOption = False,
    on_invalid: OnInvalidOption = OnInvalid.RAISE,
    memory: MemoryOption = None,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
    piece_rows: PieceRowsOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Fit a detector on the outputs of a training set and save it."""
    if not output.endswith(".safetensors"):
        raise InvalidInput(f"a detector file ends in .safetensors; got {output!r}.")
    check_folder(output)
    if threshold_on is None and (keep is not None or conformal or per_class or stream):
        raise InvalidInput(
            "--keep, --conformal, --per-class and --stream say how to set a threshold; add --threshold-on TABLE."
        )
    if dry_run:
        typer.echo(jobs.describe(tables, None, piece_rows or jobs.PIECE_ROWS, by_file=False))
        return
    with shown_progress() as tick:
        result = jobs.fit(
            tables,
            detector,
            threshold_on=threshold_on,
            keep=0.95 if keep is None else keep,
            conformal=conformal,
            per_class=per_class,
            stream=stream,
            class_names=class_names.split(",") if class_names else None,
            probabilities=probabilities,
            on_invalid=on_invalid,
            memory=memory,
            arrays=arrays.split(",") if arrays else None,
            tick=tick,
            say=note,
            **job_options(engine, workers, address, piece_rows),
        )
    print_skipped(result.skipped)
    model = result.detector
    model.save(output)
    on = "" if result.layout.n_classes is None else f" on {result.layout.n_classes} classes"
    typer.echo(f"fitted {model!r}{on}; saved to {output}", err=True)
    if model.about.reason:
        typer.echo(f"{model.name} is {model.about.reason}; docs/choosing.md says how well it does", err=True)
    train = "TRAIN" if tables[0] == "-" else shlex.quote(tables[0])
    compare = f"normscale eval --train {train} --id TEST --ood OOD"
    typer.echo(f"to compare all detectors on OoD rows of your own: {compare}", err=True)
    if model.threshold_ is None:
        typer.echo("no threshold yet: add --threshold-on VALIDATION to let it answer yes or no", err=True)
    else:
        limit = model.threshold_
        typer.echo(f"threshold {limit.value:.6g} keeps {limit.keep:.1%} of {limit.n} inputs", err=True)
