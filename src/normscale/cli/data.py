"""``normscale data``: which data sets there are, get them, look at them."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from normscale.cli._plain_help import PlainCommand

app = typer.Typer(
    help="Data sets: list them, get them, look at them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Root = Annotated[
    str | None, typer.Option(help="Where data sets are kept; default $NORMSCALE_DATA, or ~/.cache/normscale.")
]


@app.command("list", cls=PlainCommand, epilog="Example: [bold]normscale data list[/bold]")
def list_(root: Root = None) -> None:
    """Show every data set known by name: pictures, size, licence, where it comes from, whether it is here."""
    from rich.console import Console
    from rich.table import Table

    from normscale.data import is_here, list_sets

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("name", "pictures", "size", "download", "licence", "where", "here"):
        table.add_column(column, no_wrap=column in ("name", "here"), overflow="fold")
    for source in list_sets():
        pictures = " + ".join(f"{count} {split}" for split, count in source.images.items()) or "as many as like="
        size = "x".join(map(str, source.shape)) if source.shape else ("any" if source.images else "as like=")
        fetched = sum(file.size or 0 for file in source.files if not file.optional)
        table.add_row(
            source.name,
            pictures,
            size,
            f"{fetched / 1e6:.0f} MB" if fetched else "",
            source.licence,
            source.where,
            "yes" if is_here(source, root) else "no",
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)
    console.print("Your own: npz:PATH (images, labels) and folder:PATH (class folders).", highlight=False)


@app.command("get", cls=PlainCommand, epilog="Example: [bold]normscale data get cifar10 svhn[/bold]")
def get(
    names: Annotated[list[str], typer.Argument(help="Data sets of `normscale data list`.", metavar="NAME...")],
    split: Annotated[str | None, typer.Option(help="Only what this split needs: train or test.")] = None,
    root: Root = None,
) -> None:
    """Fetch data sets: mirrors in order, resumed where a download broke off, checked before use."""
    from normscale.data import find_source
    from normscale.data import get as fetch

    for name in names:
        find_source(name)  # a name that is wrong should not be found out after an hour
    for name in names:
        folder = fetch(name, split, root=root)
        source = find_source(name)
        if folder is None:
            what = "part of the package" if source.kind == "embedded" else "drawn when it is loaded"
            typer.echo(f"{name} is {what}; nothing to fetch.")
        else:
            pictures = " + ".join(f"{count} {part}" for part, count in source.images.items() if split in (None, part))
            typer.echo(f"{name}: {pictures} pictures in {folder}")


@app.command("show", cls=PlainCommand, epilog="Example: [bold]normscale data show digits -o digits.png[/bold]")
def show(
    name: Annotated[str, typer.Argument(help="A name of `normscale data list`, npz:PATH or folder:PATH.")],
    output: Annotated[str, typer.Option("--output", "-o", help="The picture to write.")] = "sheet.png",
    split: Annotated[str | None, typer.Option(help="train or test; default train where there is one.")] = None,
    like: Annotated[
        str | None, typer.Option(help="Show it as a network for this set sees it; noise is drawn for digits otherwise.")
    ] = None,
    columns: Annotated[int, typer.Option(min=1, help="Pictures side by side.")] = 12,
    rows: Annotated[int, typer.Option(min=1, help="Rows at most; a row is a class where labels are known.")] = 20,
    size: Annotated[int, typer.Option(min=4, help="Pixels of the longer side of each picture.")] = 48,
    root: Root = None,
) -> None:
    """Draw a contact sheet, with a row for each class."""
    from normscale._atomic import atomic_path
    from normscale.data import list_sets, load
    from normscale.data.sheet import contact_sheet
    from normscale.errors import InvalidInput

    if os.path.splitext(output)[1].lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise InvalidInput(f"--output must end in .png, .jpg or .webp; got {output!r}.")
    noises = [source.name for source in list_sets() if source.kind == "noise"]
    model = load(like or "digits", "test", root=root) if like or name in noises else None
    images = load(name, split, root=root, like=model)
    sheet = contact_sheet(images, columns=columns, rows=rows, picture_size=size, like=model)
    with atomic_path(output) as temporary:
        sheet.save(temporary)
    typer.echo(f"{images.name}: {len(images)} pictures, sheet of {sheet.width} x {sheet.height} pixels in {output}")
