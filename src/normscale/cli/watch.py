"""``normscale watch``: the guard in a pipe: rows in, scored rows out, as they come."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from normscale.cli._options import OnInvalid
from normscale.guard.policy import Expect, OnDrift, Policy

EXAMPLE = "Example: [bold]my-classifier | normscale watch detector.safetensors | jq 'select(.is_ood)'[/bold]"
_ON_DRIFT = OnDrift(Policy().on_drift)
_EXPECT = Expect(Policy().expect)


def watch(
    detector: Annotated[str, typer.Argument(help="A detector that `normscale fit --threshold-on` saved.")],
    store: Annotated[
        str, typer.Option(help="Where the statistics are kept: a file, postgresql://..., or :memory:.")
    ] = ":memory:",
    threshold: Annotated[
        float | None, typer.Option(help="Flag scores above this, whatever the detector file says.")
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Take over a store of another detector with the same classes."),
    ] = False,
    on_drift: Annotated[
        OnDrift, typer.Option(help="On alarm: freeze the statistics, warn only, or ignore drift.")
    ] = _ON_DRIFT,
    expect: Annotated[
        Expect,
        typer.Option(
            help="Whether the classes come as often as in training, or the stream is sorted or mostly one class."
        ),
    ] = _EXPECT,
    on_invalid: Annotated[
        OnInvalid, typer.Option(help="A line that cannot be scored: stop, or say so and go on.")
    ] = OnInvalid.RAISE,
) -> None:
    """Score rows from a pipe as they come, one line each.

    Reads JSON lines ({"logits": [...]} with a field for every array that the detector reads; other fields are passed
    through; a bare list is logits) or a .npy array; writes JSON
    lines with score, is_ood, predicted and mode. The same guard as `normscale serve`, without the server.
    """
    from normscale.detectors.registry import load_detector
    from normscale.detectors.threshold import Threshold
    from normscale.guard import Mode, open_guard
    from normscale.guard.pipe import watch_pipe

    loaded = load_detector(detector)
    if threshold is not None:
        loaded.threshold_ = Threshold(threshold)
    guard = open_guard(loaded, store, Policy(on_drift=on_drift, expect=expect), adopt=adopt)
    with guard.store:
        totals = watch_pipe(
            guard,
            sys.stdin.buffer,
            sys.stdout.buffer,
            skip=on_invalid is OnInvalid.SKIP,
            say=lambda sentence: typer.echo(f"normscale: {sentence}", err=True),
        )
    is_static = guard.mode == Mode.STATIC
    counted = f"{guard.state.scored} rows scored so far" if is_static else f"{guard.state.rows} rows in the statistics"
    typer.echo(
        f"{totals.flagged} of {totals.rows} rows are out-of-distribution; {counted}"
        + (f"; {totals.skipped} lines skipped" if totals.skipped else ""),
        err=True,
    )
