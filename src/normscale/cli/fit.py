"""``normscale fit``: learn a detector from the logits of a training set."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from normscale.cli._inputs import Input
from normscale.detectors.registry import list_detectors, make_detector
from normscale.errors import InvalidInput

EXAMPLE = (
    "Example: [bold]normscale fit sample:train -o guard.safetensors --calibrate sample:validation --keep 0.95[/bold]"
)


def fit(
    train: Annotated[str, typer.Argument(help="Outputs on the training set (logits; features and labels if needed).")],
    output: Annotated[str, typer.Option("--output", "-o", help="Where the detector goes (.safetensors).")],
    detector: Annotated[
        str, typer.Option("--detector", "-d", help=f"One of: {', '.join(list_detectors())}.")
    ] = "norm_scaling",
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", help="A parameter, as name=value; may be repeated. E.g. prior_weight=inf"),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="In-distribution outputs that set the threshold; not the training set."),
    ] = None,
    keep: Annotated[float, typer.Option(help="Share of in-distribution inputs to accept.")] = 0.95,
    conformal: Annotated[
        bool, typer.Option(help="Finite-sample correction: a NEW input is kept with >= KEEP.")
    ] = False,
    per_class: Annotated[bool, typer.Option(help="One threshold for each predicted class.")] = False,
    class_names: Annotated[str | None, typer.Option(help="Names of the classes, separated by commas.")] = None,
) -> None:
    """Fit a detector on the outputs of a training set and save it."""
    if not output.endswith(".safetensors"):
        raise InvalidInput(f"a detector file ends in .safetensors; got {output!r}.")
    model = make_detector(detector, **parse_parameters(param or []))
    source = Input(train)
    model.fit_chunks(source.chunks(f"fitting {model.name}"))
    names = tuple(class_names.split(",")) if class_names else source.class_names
    if names is not None and len(names) != source.n_classes:
        raise InvalidInput(f"--class-names must name {source.n_classes} classes; got {len(names)}.")
    model.class_names = names
    if calibrate is not None:
        model.calibrate(Input(calibrate).read(), keep, conformal=conformal, per_class=per_class)
    model.save(output)
    typer.echo(f"fitted {model!r} on {source.n_classes} classes; saved to {output}", err=True)
    if model.threshold_ is None:
        typer.echo("no threshold yet: add --calibrate VALIDATION to let it answer yes or no", err=True)
    else:
        limit = model.threshold_
        typer.echo(f"threshold {limit.value:.6g} keeps {limit.keep:.1%} of {limit.n} inputs", err=True)


def parse_parameters(pairs: list[str]) -> dict[str, Any]:
    """Read name=value pairs; a value is a number where it looks like one, ``inf`` included, else a word."""
    parameters: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--param must look like name=value; got {pair!r}.")
        try:
            parameters[name] = float(text)
        except ValueError:
            parameters[name] = json.loads(text) if text in ("true", "false") else text
    return parameters
