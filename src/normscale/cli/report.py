"""``normscale report``: a benchmark's tables, figures and page, or one page over several."""

from __future__ import annotations

import os
from typing import Annotated

import typer

EXAMPLE = (
    "Examples: [bold]normscale report runs/digits[/bold], then open runs/digits/report.html; [bold]normscale report "
    "runs/cifar10-small runs/svhn-small -o joint[/bold], then open joint/report.html"
)


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Folders of runs of `normscale bench`; they may be unfinished. Several give one page over all of "
            "them, for which settings.json, results.jsonl and comparisons.json are enough.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="Where the page goes; default: RUN/report.html, of several joint/report.html."
        ),
    ] = None,
    figures: Annotated[
        bool, typer.Option(help="Draw figures (needs matplotlib); a page over several has none.")
    ] = True,
    pdf: Annotated[bool, typer.Option("--pdf", help="Write the figures as .pdf too.")] = False,
) -> None:
    """Write a run's report: one HTML file that needs no network, tables (.md .tex .csv) and figures (.png .svg)."""
    if len(runs) > 1:
        from normscale.paper.joint_additions import joint_additions
        from normscale.report.joint_report import write_joint_report

        page = write_joint_report(runs, output, joint_additions())
        typer.echo(f"written: {page} and {page.parent / 'tables'}", err=True)
        return
    from normscale.paper.report_additions import paper_additions
    from normscale.report.writing import write_report

    (run,) = runs
    path = write_report(run, output, additions=paper_additions, figures=figures, pdf=pdf)
    inside = [os.path.join(run, name) for name in ("tables", *(["figures"] if figures else []))]
    typer.echo(f"written: {path}, {' and '.join(inside)}", err=True)
