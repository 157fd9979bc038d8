"""``normscale fit``: learn a detector from the outputs on a training set."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from normscale import jobs
from normscale.cli import option, say
from normscale.cli._options import (
    JOB_OPTIONS,
    DryRunOption,
    SharedOptions,
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


THRESHOLD: SharedOptions = {
    "keep": (Annotated[float | None, option("Share of in-distribution inputs to accept.", shown="0.95")], None),
    "conformal": (Annotated[bool, option("Keep new inputs with at least that probability.", "--conformal")], False),
    "per_class": (Annotated[bool, option("One threshold for each predicted class.", "--per-class")], False),
    "stream": (Annotated[bool, option("Set it on streamed scores.", "--stream/--frozen")], False),
}


@takes(THRESHOLD, JOB_OPTIONS)
def fit(
    tables: Annotated[list[str], typer.Argument(metavar="TRAIN...", help="Files, folders, globs, s3://... or -.")],
    *,
    output: Annotated[str, option("The detector file (.safetensors).", "FILE", "--output", "-o")],
    detector: Annotated[str | None, detector_option("chosen by the arrays")] = None,
    arrays: Annotated[str | None, option("What the default may read.", "A,B", shown="logits,features")] = None,
    threshold_on: Annotated[list[str] | None, option("Held-out in-distribution outputs; repeatable.", "TABLE")] = None,
    class_names: Annotated[str | None, option("Names of the classes, where the table has none.", "A,B")] = None,
    dry_run: DryRunOption = False,
    **given: Any,
) -> None:
    """Fit a detector on the outputs of a training set and save it."""
    check_detector_file(output)
    if threshold_on is None and any(given[name] for name in THRESHOLD):
        raise InvalidInput(
            "--keep, --conformal, --per-class and --stream say how to set a threshold; add --threshold-on TABLE."
        )
    if dry_run:
        typer.echo(jobs.describe(tables, None, given["piece_rows"] or jobs.PIECE_ROWS, by_file=False))
        return
    names, reads = (None if text is None else text.split(",") for text in (class_names, arrays))
    with job_options(given) as job:
        result = jobs.fit(tables, detector, threshold_on=threshold_on, class_names=names, arrays=reads, **job)
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
