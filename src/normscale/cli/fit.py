"""``normscale fit``: learn a detector from the outputs on a training set."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from normscale import jobs
from normscale.cli import say
from normscale.cli._options import (
    JOB_OPTIONS,
    DryRunOption,
    check_detector_file,
    detector_option,
    job_options,
    print_skipped,
    takes,
)
from normscale.errors import InvalidInput

EXAMPLES = (
    "normscale fit sample:train -o detector.safetensors --threshold-on sample:validation --keep 0.95",
    "normscale fit sample:train -o knn.safetensors -d knn:k=20",
)


@takes(JOB_OPTIONS)
def fit(
    tables: Annotated[list[str], typer.Argument(metavar="TRAIN...", help="Files, folders, globs, s3://... or -.")],
    *,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The detector file (.safetensors).")],
    detector: Annotated[str | None, detector_option("chosen by the arrays")] = None,
    arrays: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="What the default detector may read.", show_default="logits,features"),
    ] = None,
    threshold_on: Annotated[
        list[str] | None, typer.Option(metavar="TABLE", help="Held-out in-distribution outputs; repeatable.")
    ] = None,
    keep: Annotated[
        float | None, typer.Option(help="Share of in-distribution inputs to accept.", show_default="0.95")
    ] = None,
    conformal: Annotated[
        bool, typer.Option("--conformal", help="Keep new inputs with at least that probability.")
    ] = False,
    per_class: Annotated[bool, typer.Option("--per-class", help="One threshold for each predicted class.")] = False,
    stream: Annotated[bool, typer.Option("--stream/--frozen", help="Set it on streamed scores.")] = False,
    class_names: Annotated[
        str | None, typer.Option(metavar="A,B", help="Names of the classes, where the table has none.")
    ] = None,
    dry_run: DryRunOption = False,
    **job: Any,
) -> None:
    """Fit a detector on the outputs of a training set and save it."""
    check_detector_file(output)
    if threshold_on is None and (keep is not None or conformal or per_class or stream):
        raise InvalidInput(
            "--keep, --conformal, --per-class and --stream say how to set a threshold; add --threshold-on TABLE."
        )
    if dry_run:
        typer.echo(jobs.describe(tables, None, job["piece_rows"] or jobs.PIECE_ROWS, by_file=False))
        return
    with job_options(job) as options:
        result = jobs.fit(
            tables,
            detector,
            threshold_on=threshold_on,
            keep=0.95 if keep is None else keep,
            conformal=conformal,
            per_class=per_class,
            stream=stream,
            class_names=class_names.split(",") if class_names else None,
            arrays=arrays.split(",") if arrays else None,
            **options,
        )
    print_skipped(result.skipped)
    model, limit = result.detector, result.detector.threshold_
    model.save(output)
    on = "" if result.layout.n_classes is None else f" on {result.layout.n_classes} classes"
    say(f"fitted {model!r}{on}; saved to {output}")
    if model.about.reason:
        say(f"{model.name} is {model.about.reason}; docs/choosing.md says how well it does")
    train = "TRAIN" if tables[0] == "-" else shlex.quote(tables[0])
    say(f"to compare all detectors on OoD rows of your own: normscale eval --train {train} --id TEST --ood OOD")
    if limit is None:
        say("no threshold yet: add --threshold-on VALIDATION to let it answer yes or no")
    else:
        say(f"threshold {limit.value:.6g} keeps {limit.keep:.1%} of {limit.n} inputs")
