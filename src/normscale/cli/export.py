"""``normscale export``: an ONNX classifier with its detector inside."""

from __future__ import annotations

from typing import Annotated

import typer

from normscale.cli import say
from normscale.cli._options import note

EXAMPLES = ("normscale export --model net.onnx --detector detector.safetensors -o with_detector.onnx",)


def export(
    model: Annotated[str, typer.Option("--model", "-m", metavar="FILE", help="An ONNX classifier.")],
    detector: Annotated[
        str, typer.Option("--detector", "-d", metavar="FILE", help="A detector that `normscale fit` saved.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The new model (.onnx).")],
    stateful: Annotated[bool, typer.Option("--stateful/--frozen", help="Statistics as inputs and outputs.")] = False,
    logits: Annotated[
        str | None, typer.Option(metavar="TENSOR", help="The tensor with the logits.", show_default="found")
    ] = None,
    features: Annotated[str | None, typer.Option(metavar="TENSOR", help="The tensor with the features.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Flag scores above it.", show_default="the detector's")
    ] = None,
) -> None:
    """Add the outputs ood_score and is_ood to an ONNX classifier.

    The result is run in onnxruntime and compared with numpy.
    """
    from normscale.export.onnx import export_with_detector

    done = export_with_detector(
        model, detector, output, logits=logits, features=features, stateful=stateful, threshold=threshold
    )
    for text in done.notes:
        note(text)
    found = done.agreement
    say(
        f"{output}: added {', '.join(done.added)} ({done.detector.name} of {', '.join(map(repr, done.reads))}); "
        f"largest difference from numpy {found.difference:.1e}, {found.of}, {found.rows} rows"
    )
    if done.detector.threshold_ is None:
        say("no is_ood: the detector has no threshold; pass --threshold X, or fit it with --threshold-on VALIDATION")
