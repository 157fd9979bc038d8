"""``normscale audit``: what the paper claims, recomputed, with a verdict on each claim."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Literal

import typer

from normscale._version import __version__
from normscale.bench.paper.audit import DIFFERS, HOLDS, POINTS, Claim, audit, summary
from normscale.bench.paper.claim import NOTHING
from normscale.cli import option
from normscale.cli._options import NO_TABLES, IdOption, OodOption, SeedOption, TrainOption, console, read_sides
from normscale.encoding.json_text import write_json

EXAMPLES = (
    "normscale audit",
    "normscale audit --train sample:train --id sample:test --ood sample:unseen_digits --ood noise=sample:uniform_noise",
)
ON_THE_SAMPLE = "Measured on the embedded sample; give --train, --id, --ood for your network."
_WIDEST = 110
_COLOURS = {HOLDS: "green", DIFFERS: "yellow"}


def audit_claims(
    train: TrainOption = NO_TABLES,
    id_tables: IdOption = NO_TABLES,
    ood_tables: OodOption = NO_TABLES,
    in_set: Annotated[str | None, option("The network's set, as in the paper.", "NAME")] = None,
    seed: SeedOption = 0,
    format: Annotated[Literal["table", "json"], option("json has more numbers.", "--format", "-f")] = "table",
) -> None:
    """Recompute the paper's claims from its tables and on outputs.

    Without tables of your own, the outputs of the embedded sample.
    """
    outputs = read_sides(train, id_tables, ood_tables) or ()
    claims = audit(*outputs, in_set=in_set, seed=seed)
    if format == "json":
        for claim in claims:
            typer.echo(write_json({**claim._asdict(), "title": POINTS[claim.point], "version": __version__}))
        return
    print_tables(claims)
    typer.echo(f"\n{summary(claims)}" if outputs else f"\n{ON_THE_SAMPLE}\n{summary(claims)}")


COLUMNS = ("claim", "paper", "recomputed", "ours", "verdict", "rule")
"""Of the table of claims: recomputed from the paper's tables, and ours, measured on outputs."""


def print_tables(claims: Sequence[Claim]) -> None:
    """A block for every claim, under its point."""
    from rich.table import Table
    from rich.text import Text

    out = console(int(os.environ.get("COLUMNS", _WIDEST)))
    for point, group in groupby(claims, key=lambda claim: claim.point):
        out.print(Text(f"\n{point}. {POINTS[point]}", style="bold"))
        for claim in group:
            block = Table.grid(padding=(0, 1, 0, 0))
            block.add_column(width=10, justify="right", no_wrap=True)
            block.add_column(max_width=_WIDEST - 12)
            for column in COLUMNS:
                text = getattr(claim, column)
                if text != NOTHING:
                    style = _COLOURS.get(text, "dim") if column == "verdict" else ""
                    block.add_row(column, Text(text, style=style))
            out.print(block)
            out.print()
