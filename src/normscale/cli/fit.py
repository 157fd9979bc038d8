"""``normscale fit``: learn a detector from the outputs on a training set."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from normscale.cli._inputs import Input
from normscale.cli._many_files import (
    AddressOption,
    DryRunOption,
    EngineOption,
    ManyFiles,
    PieceRowsOption,
    WorkersOption,
    fit_many,
)
from normscale.detectors.registry import DEFAULT, list_detectors, make_detector
from normscale.engines.pieces import Layout
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS
from normscale.tables.table_writer import check_folder

EXAMPLE = (
    "Example: [bold]normscale fit sample:train -o detector.safetensors --threshold-on sample:validation "
    "--keep 0.95[/bold]"
)


def fit(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TRAIN...",
            help="Outputs to fit on: the arrays that the detector reads, and labels and head if it needs. Files, "
            "folders and globs, here or in an object store.",
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Where the detector goes (.safetensors).")],
    detector: Annotated[
        str,
        typer.Option(
            "--detector",
            "-d",
            help=f"One of: {', '.join(list_detectors())}. STEP+SCORE, such as react+energy, lets a step change the "
            "outputs before they are scored.",
        ),
    ] = DEFAULT,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", help="A parameter, as name=value; may be repeated. E.g. prior_weight=inf"),
    ] = None,
    threshold_on: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="In-distribution outputs that set the threshold; not the training set."),
    ] = None,
    keep: Annotated[
        float | None, typer.Option(help="Share of in-distribution inputs to accept; 0.95 unless given.")
    ] = None,
    conformal: Annotated[
        bool, typer.Option("--conformal", help="Finite-sample correction: a NEW input is kept with at least KEEP.")
    ] = False,
    per_class: Annotated[bool, typer.Option("--per-class", help="One threshold for each predicted class.")] = False,
    class_names: Annotated[str | None, typer.Option(help="Names of the classes, separated by commas.")] = None,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
    piece_rows: PieceRowsOption = None,
    on_invalid: Annotated[
        str, typer.Option(help="With many files, a row with NaN or infinity: raise, or skip.")
    ] = "raise",
    dry_run: DryRunOption = False,
) -> None:
    """Fit a detector on the outputs of a training set and save it."""
    if not output.endswith(".safetensors"):
        raise InvalidInput(f"a detector file ends in .safetensors; got {output!r}.")
    check_folder(output)
    if threshold_on is None and (keep is not None or conformal or per_class):
        raise InvalidInput("--keep, --conformal and --per-class say how to set a threshold; add --threshold-on TABLE.")
    model = make_detector(detector, **parse_parameters(param or []))
    wanted = [*model.reads, *model.reads_in_fit, LOGITS]
    source: Input | Layout
    many = ManyFiles(engine, workers, address, piece_rows, dry_run)
    if many.wanted(tables):
        result = fit_many(tables, model, many, on_invalid)
        if result is None:
            return
        source = result.layout
    else:
        source = Input(tables[0], wanted)
        model.fit_chunks(source.chunks(f"fitting {model.name}"))
    names = tuple(class_names.split(",")) if class_names else source.class_names
    if names is not None and len(names) != source.n_classes:
        known = "the table tells of none" if source.n_classes is None else f"must name {source.n_classes} classes"
        raise InvalidInput(f"--class-names {known}; got {len(names)}.")
    model.class_names = names
    if threshold_on is not None:
        kept = 0.95 if keep is None else keep
        model.set_threshold(Input(threshold_on, wanted).read(), kept, conformal=conformal, per_class=per_class)
    model.save(output)
    on = "" if source.n_classes is None else f" on {source.n_classes} classes"
    typer.echo(f"fitted {model!r}{on}; saved to {output}", err=True)
    if model.threshold_ is None:
        typer.echo("no threshold yet: add --threshold-on VALIDATION to let it answer yes or no", err=True)
    else:
        limit = model.threshold_
        typer.echo(f"threshold {limit.value:.6g} keeps {limit.keep:.1%} of {limit.n} inputs", err=True)


def parse_parameters(pairs: list[str]) -> dict[str, Any]:
    """Read name=value pairs; a value with commas is a list.

    Examples
    --------
    >>> parse_parameters(["prior_weight=inf", "score=energy", "layers=layer3,features"])
    {'prior_weight': inf, 'score': 'energy', 'layers': ['layer3', 'features']}
    """
    parameters: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--param must look like name=value; got {pair!r}.")
        parts = [_value(part) for part in text.split(",")]
        parameters[name] = parts if len(parts) > 1 else parts[0]
    return parameters


def _value(text: str) -> Any:
    """A number where it looks like one, ``inf`` included; true or false; else a word."""
    try:
        return float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text, text)
