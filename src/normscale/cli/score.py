"""``normscale score``: score a table of logits, chunk by chunk."""

from __future__ import annotations

from typing import Annotated

import typer

from normscale.cli._inputs import Input
from normscale.detectors.decision import Threshold
from normscale.detectors.registry import load_detector
from normscale.tables import open_score_writer

EXAMPLE = "Example: [bold]normscale score guard.safetensors sample:unseen_digits | head[/bold]"


def score(
    guard: Annotated[str, typer.Argument(help="A detector that `normscale fit` saved.")],
    table: Annotated[str, typer.Argument(help="Outputs to score; - reads a pipe.")] = "-",
    output: Annotated[
        str, typer.Option("--output", "-o", help="Where the scores go: a file, or - for CSV on standard output.")
    ] = "-",
    stream: Annotated[
        bool, typer.Option("--stream/--frozen", help="Let running statistics take each row in before it is scored.")
    ] = False,
    threshold: Annotated[
        float | None, typer.Option(help="Flag scores above this, whatever threshold the detector carries.")
    ] = None,
    save: Annotated[
        str | None, typer.Option(help="With --stream: save the detector with its moved statistics here.")
    ] = None,
    on_invalid: Annotated[str, typer.Option(help="A row with NaN or infinity: raise, or skip (score nan).")] = "raise",
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the work.")] = 1,
) -> None:
    """Score each row: higher means more out-of-distribution. Also the predicted class and, with a threshold, is_ood."""
    detector = load_detector(guard)
    if threshold is not None:
        detector.threshold_ = Threshold(threshold)
    decides = detector.threshold_ is not None
    columns = ["score", "predicted", "is_ood"] if decides else ["score", "predicted"]
    make_scores = detector.stream if stream else detector.score
    flagged = 0
    source = Input(table)
    with open_score_writer(output, columns) as writer:
        for chunk in source.chunks("scoring"):
            scores = make_scores(chunk, threads=threads, on_invalid=on_invalid)
            if decides:
                is_ood = detector.decide(scores, chunk)
                flagged += int(is_ood.sum())
                writer.append(score=scores, predicted=chunk.predicted, is_ood=is_ood)
            else:
                writer.append(score=scores, predicted=chunk.predicted)
        total = writer.n_rows
    if save is not None:
        detector.save(save)
    if output != "-":
        typer.echo(f"{total} rows scored to {output}", err=True)
    if decides and total:
        typer.echo(f"{flagged} of {total} rows ({flagged / total:.1%}) are out-of-distribution", err=True)
