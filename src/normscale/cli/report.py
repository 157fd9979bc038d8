"""``normscale report``: the page, tables and figures of one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normscale.cli import option, say
from normscale.errors import InvalidInput

EXAMPLES = (
    "normscale report runs/digits",
    "normscale report runs/cifar10-small runs/svhn-small -o joint",
    "normscale report first second third --as-seeds",
)


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of `bench` or `eval --report`.")],
    output: Annotated[
        str | None,
        option("The page, or its folder.", "PATH", "--output", "-o", shown="in RUN"),
    ] = None,
    as_seeds: Annotated[bool, option("Runs with one ID set are seeds of one experiment.", "--as-seeds")] = False,
    figures: Annotated[bool, option("Draw figures (needs matplotlib).")] = True,
    pdf: Annotated[bool, option("Write the figures as .pdf too.", "--pdf")] = False,
    classes: Annotated[str | None, option("Predicted classes in the figures of logits.", "2,4,9")] = None,
) -> None:
    """Write a report of runs: a page, tables and figures.

    The page is one HTML file that needs no network.
    """
    from normscale.bench.paper.additions import paper_additions
    from normscale.bench.report.writing import report as write

    try:
        chosen = [int(one) for one in classes.split(",")] if classes else []
    except ValueError:
        raise InvalidInput(f"--classes are numbers joined by commas, such as 2,4,9; got {classes!r}.") from None
    seeds: dict[str, Any] = {"as_seeds": as_seeds, "classes": chosen}
    page = write(runs, output, figures=figures, pdf=pdf, additions=paper_additions(), **seeds)
    say_written(page, figures=figures)


def say_written(page: Path, *, figures: bool = True) -> None:
    """Say where the page, the tables and the figures are."""
    inside = [str(page.parent / name) for name in ("tables", *(["figures"] if figures else []))]
    say(f"written: {page}, {' and '.join(inside)}")
