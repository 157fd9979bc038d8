"""``normscale train``: train a classifier and write its outputs."""

from __future__ import annotations

from typing import Annotated

import typer

from normscale.errors import MissingExtra

EXAMPLE = "Example: [bold]normscale train --data digits --width 16 --recipe fast --epochs 12 -o runs/digits[/bold]"


def train(
    output: Annotated[str, typer.Option("--output", "-o", help="Folder of the run; a run that is there goes on.")],
    data: Annotated[str, typer.Option(help="A name of `normscale data list`, npz:PATH or folder:PATH.")] = "digits",
    network: Annotated[str, typer.Option(help="resnet18, resnet20 or wide_resnet40_2.")] = "resnet18",
    width: Annotated[int, typer.Option(min=1, help="Channels of the first stage; the paper's ResNet-18 has 64.")] = 64,
    recipe: Annotated[str, typer.Option(help="paper, or fast (far fewer epochs).")] = "paper",
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs, if not the recipe's own.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights, the split, the order and the augmentation.")] = 0,
    ood: Annotated[
        list[str] | None, typer.Option(help="Also write the outputs on this OoD set; may be repeated.")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="Also write these layers: all, or names with commas."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch in this process.")] = 1,
) -> None:
    """Train a classifier; killed at any moment, the same command goes on and ends with the same weights."""
    try:
        import torch

        from normscale.bench.train.run import train_network
    except ImportError as error:
        raise MissingExtra(f"training needs torch ({error}). Run: pip install 'normscale[torch]'") from error
    torch.set_num_threads(threads)
    result = train_network(
        output,
        data,
        network=network,
        width=width,
        recipe=recipe,
        epochs=epochs,
        seed=seed,
        ood=ood or (),
        layers=layers.split(",") if layers not in (None, "all") else layers,
        say=lambda text: typer.echo(text, err=True),
    )
    typer.echo(f"network, outputs and result are in {result.folder}", err=True)
