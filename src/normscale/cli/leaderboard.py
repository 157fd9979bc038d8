"""``normscale leaderboard``: every detector of one or more runs, ranked."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLE = (
    "Example: [bold]normscale bench -d all[/bold], then [bold]normscale leaderboard runs/digits -o "
    "leaderboard[/bold], then open leaderboard/leaderboard.html"
)


def leaderboard(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Folders of runs of `normscale bench -d all`; they may be unfinished. settings.json, "
            "results.jsonl, further.jsonl and failures.json are enough.",
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="The folder that the files go to.")] = "leaderboard",
) -> None:
    """Rank all detectors of runs: near, far and all OoD sets, as one page that sorts and filters, and tables."""
    from normscale.bench.paper.additions import paper_additions
    from normscale.bench.report.writing import report
    from normscale.cli.report import say_written

    say_written(report(runs, output, leaderboard=True, additions=paper_additions()))
