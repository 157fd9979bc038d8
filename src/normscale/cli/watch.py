"""``normscale watch``: the guard in a pipe: rows in, scored rows out, as they come."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from normscale.cli import option, say
from normscale.cli._options import OnInvalid
from normscale.cli.serve import (
    EXPECT,
    ON_DRIFT,
    ExpectOption,
    OnDriftOption,
    StoreOption,
    ThresholdOption,
)
from normscale.guard.policy import Policy

EXAMPLES = ("my-classifier | normscale watch detector.safetensors | jq 'select(.is_ood)'",)


def watch(
    detector: Annotated[str, typer.Argument(metavar="DETECTOR", help="A detector file with a threshold.")],
    store: StoreOption = None,
    threshold: ThresholdOption = None,
    on_drift: OnDriftOption = ON_DRIFT,
    expect: ExpectOption = EXPECT,
    on_invalid: Annotated[OnInvalid, option("A line that cannot be scored: stop, or go on.")] = "raise",
) -> None:
    """Score rows from a pipe as they come, one line each.

    Reads JSON lines ({"logits": [...]} with a field for every array that the detector reads; other fields are passed
    through; a bare list is logits); writes JSON lines with score, is_ood, predicted and mode. The same guard as
    `normscale serve`, without the server.
    """
    from normscale.detectors.registry import load_detector
    from normscale.guard import Mode, open_guard
    from normscale.guard.pipe import watch_pipe
    from normscale.metrics.thresholds import Threshold

    loaded = load_detector(detector)
    if threshold is not None:
        loaded.threshold_ = Threshold(threshold)
    guard = open_guard(loaded, store or ":memory:", Policy(on_drift=on_drift, expect=expect))
    for note in guard.notes:
        typer.echo(f"normscale: note: {note}", err=True)
    with guard.store:
        totals = watch_pipe(
            guard,
            sys.stdin.buffer,
            sys.stdout.buffer,
            skip=on_invalid == "skip",
            say=lambda sentence: say(f"normscale: {sentence}"),
        )
    is_static = guard.mode == Mode.STATIC
    counted = (
        f"{guard.state.scored} rows scored so far" if is_static else f"{guard.state.stream.rows} rows in the statistics"
    )
    skipped = f"; {totals.skipped} lines skipped" if totals.skipped else ""
    say(f"{totals.flagged} of {totals.rows} rows are out-of-distribution; {counted}{skipped}")
