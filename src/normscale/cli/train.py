"""``normscale train``: train a classifier and write its outputs."""

from __future__ import annotations

from typing import Annotated

from normscale.cli import option, say
from normscale.errors import needs

EXAMPLES = ("normscale train --data digits --width 16 --recipe fast --epochs 12 -o runs/digits",)


def train(
    output: Annotated[str, option("Of the run; one that is there goes on.", "FOLDER", "--output", "-o")],
    data: Annotated[str, option("A known name, npz:PATH or folder:PATH.", "DATA")] = "digits",
    network: Annotated[str, option("resnet18 or resnet20.")] = "resnet18",
    width: Annotated[int, option("Channels of the first stage.", min=1)] = 64,
    recipe: Annotated[str, option("paper, or fast (far fewer epochs).")] = "paper",
    epochs: Annotated[int | None, option("Epochs, if not the recipe's own.", min=1)] = None,
    seed: Annotated[int, option("Of weights, split, order and augmentation.", min=0)] = 0,
    ood: Annotated[list[str] | None, option("An OoD set whose outputs are written too; repeatable.", "DATA")] = None,
    layers: Annotated[str | None, option("Also write these layers, or all.", "A,B")] = None,
    threads: Annotated[int, option("Threads of torch in this process.", min=1)] = 1,
) -> None:
    """Train a classifier and write its outputs.

    Killed at any moment, the same command goes on and ends with the same weights.
    """
    with needs("training needs torch", "torch"):
        import torch

        from normscale.bench.train.run import train_network
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
