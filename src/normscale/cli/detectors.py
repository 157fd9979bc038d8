"""``normscale detectors``: every detector there is, and the card of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscale.cli import option

if TYPE_CHECKING:
    from normscale.detectors.card import DetectorCard

_WIDE = 110
"""Columns of a terminal that has room for parameters too; a detector's card has them anyway."""
EXAMPLES = ("normscale detectors", "normscale detectors react+energy")


def detectors(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show the card of this one.")] = None,
    as_json: Annotated[bool, option("One JSON object for each detector.", "--json")] = False,
) -> None:
    """List all detectors, or show the card of one."""
    from normscale.detectors.card import card_of
    from normscale.detectors.registry import list_detectors
    from normscale.encoding.json_text import write_json

    cards = [card_of(one) for one in (list_detectors() if name is None else [name])]
    if as_json:
        for card in cards:
            typer.echo(write_json(card.document()))
    elif name is None:
        _print_table(cards)
    else:
        _print_card(cards[0])


def _print_table(cards: list[DetectorCard]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    wide = console.width >= _WIDE
    table = Table(box=None, padding=(0, 1))
    table.add_column("detector", no_wrap=True)
    room = {"paper": 15, "reads": 18, **({"parameters": 22} if wide else {}), "cost of a score": 14}
    for title, least in room.items():
        table.add_column(title, overflow="fold", min_width=least)  # no word of it is broken
    for card in cards:
        name = f"{card.name} (step)" if card.is_step else card.name
        defaults = ", ".join(f"{one.name}={_written(one.default)}" for one in card.parameters)
        table.add_row(name, card.paper, ", ".join(card.reads), *([defaults] if wide else []), card.cost)
    console.print(table)
    console.print(
        f"{len(cards)} detectors; `normscale detectors NAME` shows one. A step goes before another: STEP+SCORE."
    )


def _print_card(card: DetectorCard) -> None:
    typer.echo(f"{card.name}: {card.title}" + (f" ({card.paper})" if card.paper else ""))
    typer.echo(card.idea)
    spelled = {f"{one.name}={_written(one.default)}": one.meaning for one in card.parameters}
    width = max(map(len, spelled), default=0)
    sections = {
        "How": card.description.splitlines(),
        "Parameters, with their defaults": [f"{name:{width}}  {meaning}" for name, meaning in spelled.items()],
        "Needs": card.needs,
        "Settings": card.settings,
        "Cost of a score": card.cost.splitlines(),
        "In Python": card.python_example.splitlines(),
        "Reference": card.reference.splitlines(),
    }
    for title, lines in sections.items():
        if lines:
            typer.echo("\n".join(["", title, *(f"  {line}" if line else "" for line in lines)]))


def _written(value: Any) -> str:
    """A value as the command line takes it."""
    from normscale.detectors.registry import detector_class

    if isinstance(value, dict):
        given, usual = dict(value["parameters"]), detector_class(value["detector"])().get_params()
        then = f"+{_written(given.pop('score'))}" if "score" in given else ""
        own = [f":{name}={_written(one)}" for name, one in given.items() if one != usual[name]]
        return "".join([value["detector"], *own, then])
    return ",".join(map(_written, value)) if isinstance(value, (list, tuple)) else str(value)
