"""``normscale report``: a benchmark's tables, figures and page."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLE = "Example: [bold]normscale report runs/digits[/bold], then open runs/digits/report.html"


def report(
    run: Annotated[str, typer.Argument(help="Folder of a run of `normscale bench`; it may be unfinished.")],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Where the page goes; default: RUN/report.html.")
    ] = None,
    figures: Annotated[bool, typer.Option(help="Draw figures (needs matplotlib).")] = True,
    pdf: Annotated[bool, typer.Option("--pdf", help="Write the figures as .pdf too.")] = False,
) -> None:
    """Write a run's report: one HTML file that needs no network, tables (.md .tex .csv) and figures (.png .svg)."""
    from normscale.paper.report_additions import paper_additions
    from normscale.report.writing import write_report

    path = write_report(run, output, additions=paper_additions, figures=figures, pdf=pdf)
    typer.echo(f"written: {path}, {run}/tables{f' and {run}/figures' if figures else ''}", err=True)
