"""``normscale export``: an ONNX classifier with its detector inside."""

from __future__ import annotations

from typing import Annotated

from normscale.cli import option, say
from normscale.cli._options import note

EXAMPLES = ("normscale export --model net.onnx --detector detector.safetensors -o with_detector.onnx",)


def export(
    model: Annotated[str, option("An ONNX classifier.", "FILE", "--model", "-m")],
    detector: Annotated[str, option("What `normscale fit` saved.", "FILE", "--detector", "-d")],
    output: Annotated[str, option("The new model (.onnx).", "FILE", "--output", "-o")],
    stateful: Annotated[bool, option("Moving statistics.", "--stateful/--frozen")] = False,
    logits: Annotated[str | None, option("The tensor with the logits.", "TENSOR", shown="found")] = None,
    features: Annotated[str | None, option("The tensor with the features.", "TENSOR")] = None,
    threshold: Annotated[float | None, option("Flag scores above it.", shown="detector's")] = None,
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
