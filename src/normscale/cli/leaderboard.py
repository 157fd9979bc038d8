"""``normscale leaderboard``: every detector of one or more runs, ranked."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLE = (
    "Example: [bold]normscale bench --detectors all[/bold], then [bold]normscale leaderboard runs/digits -o "
    "leaderboard[/bold], then open leaderboard/leaderboard.html"
)


def leaderboard(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Folders of runs of `normscale bench --detectors all`; they may be unfinished. settings.json, "
            "results.jsonl, further.jsonl and failures.json are enough.",
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="The folder that the files go to.")] = "leaderboard",
) -> None:
    """Rank all detectors of runs: near, far and all OoD sets, as one page that sorts and filters, .md and .csv."""
    from normscale.paper.openood import openood
    from normscale.report.leaderboard import write_leaderboard

    page = write_leaderboard(runs, output, openood())
    typer.echo(f"written: {page}, and .md and .csv beside it", err=True)
