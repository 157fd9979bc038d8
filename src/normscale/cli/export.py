"""``normscale export``: an ONNX classifier with its detector inside."""

from __future__ import annotations

from typing import Annotated

import typer

from normscale.cli._options import note

EXAMPLE = (
    "Example: [bold]normscale export --model net.onnx --detector detector.safetensors -o with_detector.onnx[/bold]"
)


def export(
    model: Annotated[str, typer.Option("--model", "-m", help="An ONNX classifier.")],
    detector: Annotated[str, typer.Option("--detector", "-d", help="A detector that `normscale fit` saved.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Where the model with its detector goes (.onnx).")],
    stateful: Annotated[
        bool,
        typer.Option("--stateful/--frozen", help="Let the statistics move; they become inputs and outputs."),
    ] = False,
    logits: Annotated[
        str | None,
        typer.Option(
            metavar="TENSOR",
            help="The tensor with the logits, an output or inside.",
            show_default="the one that fits, before a softmax",
        ),
    ] = None,
    features: Annotated[str | None, typer.Option(help="The tensor with the features, if they are read.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Flag scores above this one.", show_default="the detector's")
    ] = None,
) -> None:
    """Add the outputs ood_score and is_ood to an ONNX classifier, and check them against numpy in onnxruntime."""
    from normscale.export.onnx import export_with_detector

    done = export_with_detector(
        model, detector, output, logits=logits, features=features, stateful=stateful, threshold=threshold
    )
    for text in done.notes:
        note(text)
    found = done.agreement
    typer.echo(
        f"{output}: added {', '.join(done.added)} ({done.detector.name} of {', '.join(map(repr, done.reads))}); "
        f"largest difference from numpy {found.difference:.1e}, {found.of}, {found.rows} rows",
        err=True,
    )
    if done.detector.threshold_ is None:
        typer.echo(
            "no is_ood: the detector has no threshold; pass --threshold X, or fit it with --threshold-on VALIDATION",
            err=True,
        )
