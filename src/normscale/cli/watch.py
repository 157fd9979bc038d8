"""``normscale watch``: the guard in a pipe: rows in, scored rows out, as they come."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

EXAMPLE = "Example: [bold]my-classifier | normscale watch guard.safetensors | jq 'select(.is_ood)'[/bold]"


def watch(
    guard: Annotated[str, typer.Argument(help="A detector that `normscale fit --calibrate` saved.")],
    store: Annotated[
        str, typer.Option(help="Where the statistics are kept: a file, postgresql://..., or :memory:.")
    ] = ":memory:",
    threshold: Annotated[float | None, typer.Option(help="Flag scores above this, whatever the guard carries.")] = None,
    on_drift: Annotated[str, typer.Option(help="On alarm: freeze the statistics, warn only, or ignore drift.")] = (
        "freeze"
    ),
    on_invalid: Annotated[
        str, typer.Option(help="A line that cannot be scored: raise (stop), or skip (say so and go on).")
    ] = "raise",
) -> None:
    """Score rows from a pipe as they come, one line each.

    Reads JSON lines ({"logits": [...]}, other fields are passed through, or a bare list) or a .npy array; writes JSON
    lines with score, is_ood, predicted and mode. The same guard as `normscale serve`, without the server.
    """
    from normscale import _validate
    from normscale.detectors.decision import Threshold
    from normscale.detectors.registry import load_detector
    from normscale.guard import Guard, Policy, open_store
    from normscale.guard.pipe import watch_pipe

    _validate.one_of(on_invalid, "on_invalid", _validate.ON_INVALID)
    detector = load_detector(guard)
    if threshold is not None:
        detector.threshold_ = Threshold(threshold)
    with open_store(store) as opened:
        duty = Guard(detector, opened, Policy(on_drift=on_drift))
        totals = watch_pipe(
            duty,
            sys.stdin.buffer,
            sys.stdout.buffer,
            skip=on_invalid == "skip",
            say=lambda sentence: typer.echo(f"normscale: {sentence}", err=True),
        )
        if store != ":memory:":
            duty.save()
    typer.echo(
        f"{totals.flagged} of {totals.rows} rows are out-of-distribution; {duty.state.rows} rows in the statistics"
        + (f"; {totals.skipped} lines skipped" if totals.skipped else ""),
        err=True,
    )
