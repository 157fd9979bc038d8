"""``normscale data``: which data sets there are, and get them."""

from __future__ import annotations

from typing import Annotated

import typer

from normscale.cli import example_lines, option

app = typer.Typer(
    help="Data sets: list them, get them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Root = Annotated[
    str | None,
    option("Where data sets are.", "FOLDER", shown="$NORMSCALE_DATA, ~/.cache"),
]


@app.command("list", epilog=example_lines("normscale data list"))
def list_(root: Root = None) -> None:
    """Show every data set known by name: pictures, size, licence, where it is."""
    from rich.table import Table

    from normscale.bench.data import is_here, list_sets
    from normscale.cli._options import console

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("name", "pictures", "size", "download", "licence", "where", "here"):
        table.add_column(column, no_wrap=column in ("name", "here"), overflow="fold")
    for source in list_sets():
        pictures = " + ".join(f"{count} {split}" for split, count in source.images.items()) or "as many as like="
        size = "x".join(map(str, source.shape)) if source.shape else ("any" if source.images else "as like=")
        fetched = sum(file.size for file in source.files)
        table.add_row(
            source.name,
            pictures,
            size,
            f"{fetched / 1e6:.0f} MB" if fetched else "",
            source.licence,
            {"embedded": "in the package", "noise": "drawn"}.get(source.kind) or source.homepage,
            "yes" if is_here(source, root) else "no",
        )
    out = console(200)
    out.print(table)
    out.print("Your own: npz:PATH (images, labels) and folder:PATH (class folders).")


@app.command("get", epilog=example_lines("normscale data get cifar10 svhn"))
def get(
    names: Annotated[list[str], typer.Argument(help="Data sets of `normscale data list`.", metavar="NAME...")],
    split: Annotated[str | None, option("Only what this split needs: train or test.")] = None,
    root: Root = None,
) -> None:
    """Fetch data sets and check them; or say which files to fetch by hand."""
    from normscale.bench.data import find_source
    from normscale.bench.data import get as fetch

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


@app.command("benchmarks", epilog=example_lines("normscale data benchmarks imagenet1k --root data"))
def benchmarks(
    names: Annotated[list[str] | None, typer.Argument(help="Which ones; default: all.", metavar="NAME...")] = None,
    root: Annotated[str | None, option("Where to look for the sets.", "FOLDER")] = None,
) -> None:
    """Show the sets of the OpenOOD v1.5 benchmarks, and where to get them."""
    from rich.table import Table

    from normscale.bench.data.benchmarks import LISTS, SOURCE, FoundSet, find_benchmark, find_sets, list_benchmarks
    from normscale.cli._options import console

    out = console(160)
    for benchmark in [find_benchmark(name) for name in names] if names else list_benchmarks():
        table = Table(box=None, header_style="bold", pad_edge=False, title=benchmark.title, title_justify="left")
        for column in ("set", "role", "pictures", "there", "where"):
            table.add_column(column, no_wrap=column != "there", overflow="fold")
        found = [FoundSet(one) for one in benchmark.sets] if root is None else find_sets(benchmark, root)
        for one in found:
            count = "not known" if one.set.images is None else str(one.set.images)
            state = "" if root is None else f"{one.n}, {one.state}" if one.data else one.state
            table.add_row(one.set.name, one.set.role, count, state, one.set.home)
        out.print(table)
    out.print(
        f"Lists ({LISTS}) and pictures as one folder: {SOURCE}, scripts/download. Without lists, a folder, .parquet or "
        ".npz file below --root that has the set's name is taken whole."
    )
