"""``normscale train``: train a classifier and write its outputs."""

from __future__ import annotations

from typing import Annotated

import typer

from normscale.cli import say
from normscale.errors import MissingExtra

EXAMPLES = ("normscale train --data digits --width 16 --recipe fast --epochs 12 -o runs/digits",)


def train(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="Of the run; one that is there goes on.")
    ],
    data: Annotated[str, typer.Option(metavar="DATA", help="A known name, npz:PATH or folder:PATH.")] = "digits",
    network: Annotated[str, typer.Option(help="resnet18 or resnet20.")] = "resnet18",
    width: Annotated[int, typer.Option(min=1, help="Channels of the first stage.")] = 64,
    recipe: Annotated[str, typer.Option(help="paper, or fast (far fewer epochs).")] = "paper",
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs, if not the recipe's own.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, split, order and augmentation.")] = 0,
    ood: Annotated[
        list[str] | None, typer.Option(metavar="DATA", help="An OoD set whose outputs are written too; repeatable.")
    ] = None,
    layers: Annotated[str | None, typer.Option(metavar="A,B", help="Also write these layers, or all.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch in this process.")] = 1,
) -> None:
    """Train a classifier and write its outputs.

    Killed at any moment, the same command goes on and ends with the same weights.
    """
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
        say=say,
    )
    say(f"network, outputs and result are in {result.folder}")
