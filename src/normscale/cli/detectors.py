"""``normscale detectors``: every detector there is, and the card of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from normscale.detectors.card import DetectorCard

_WIDE = 110
"""Columns of a terminal that has room for parameters too; a detector's card has them anyway."""
EXAMPLE = "Examples: [bold]normscale detectors[/bold], or [bold]normscale detectors react+energy[/bold]"


def detectors(
    name: Annotated[
        str | None, typer.Argument(help="Show the card of this one; STEP+SCORE works too. By default a table of all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each detector.")] = False,
) -> None:
    """List the detectors, those of other packages too, or show what one says about itself."""
    from normscale.detectors.card import card_of
    from normscale.detectors.registry import list_detectors
    from normscale.encoding.json_text import write_json

    cards = [card_of(one) for one in (list_detectors() if name is None else [name])]
    if as_json:
        for card in cards:
            document = card.document()
            typer.echo(write_json(document if name is None else {**document, "example": _example(card)}))
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
        kind = f"{card.name} (step)" if card.is_step else card.name
        defaults = ", ".join(f"{one.name}={_written(one.default)}" for one in card.parameters)
        table.add_row(kind, card.paper, ", ".join(card.reads), *([defaults] if wide else []), card.cost)
    console.print(table)
    console.print(
        f"{len(cards)} detectors; `normscale detectors NAME` shows one. A step goes before another: STEP+SCORE."
    )


def _print_card(card: DetectorCard) -> None:
    def section(title: str, *lines: str) -> None:
        if lines:
            typer.echo(f"\n{title}")
            for line in lines:
                typer.echo(f"  {line}" if line else "")

    typer.echo(f"{card.name}: {card.title}" + (f" ({card.paper})" if card.paper else ""))
    typer.echo(card.idea)
    section("How", *card.description.splitlines())
    width = max((len(f"{one.name}={_written(one.default)}") for one in card.parameters), default=0)
    section(
        "Parameters, with their defaults",
        *(f"{f'{one.name}={_written(one.default)}':{width}}  {one.meaning}" for one in card.parameters),
    )
    section("Needs", *card.needs)
    section("Settings", *card.settings)
    section("Cost of a score", *([card.cost] if card.cost else []))
    section("In Python", *card.python_example.splitlines())
    section("Run just now on the embedded sample", *_example(card))
    section("Reference", *card.reference.splitlines())


def _written(value: Any) -> str:
    """A value as the command line takes it."""
    from normscale.detectors.registry import detector_class

    if isinstance(value, dict):
        given, usual = dict(value["parameters"]), detector_class(value["detector"])().get_params()
        then = f"+{_written(given.pop('score'))}" if "score" in given else ""
        own = [f":{name}={_written(one)}" for name, one in given.items() if one != usual[name]]
        return "".join([value["detector"], *own, then])
    return ",".join(map(_written, value)) if isinstance(value, (list, tuple)) else str(value)


def _example(card: DetectorCard) -> list[str]:
    """A command that compares the sample's OoD sets, and what it finds; why not, where it cannot run."""
    from normscale.detectors.registry import make_detector
    from normscale.errors import NormscaleError
    from normscale.metrics.ranking import evaluate
    from normscale.sample import load_sample

    sample = load_sample()
    detector = make_detector(card.name)
    missing = [name for name in (*detector.reads, *detector.reads_in_fit) if name not in sample.train.names]
    if missing:
        return [f"not run: the sample has no {' and no '.join(missing)}."]
    try:
        detector.fit(sample.train if detector.fitted_on == "train" else sample.validation)
        known = detector.score(sample.test)
        found = {name: evaluate(known, detector.score(ood)).auroc for name, ood in sample.ood.items()}
    except NormscaleError as error:
        return [f"not run: {error}"]
    own = f"--train sample:train --validation sample:validation --id sample:test -d {card.name}"
    command = " ".join(["normscale eval", own, *(f"--ood sample:{name}" for name in found)])
    return [f"$ {command}", *(f"AUROC of {name}: {auroc:.4f}" for name, auroc in found.items())]
