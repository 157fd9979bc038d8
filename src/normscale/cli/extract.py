"""``normscale extract``: run a model over pictures or texts and write its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

import typer

from normscale.cli._options import AddressOption, EngineOption, OnInvalid, note
from normscale.errors import InvalidInput

EXAMPLE = "Example: [bold]normscale extract timm:vit_small_patch16_224 pictures/ -o outputs.parquet[/bold]"

MODEL_HELP = "hf:NAME, timm:NAME, torchvision:NAME, FILE.onnx or FILE.py:FUNCTION."
DATA_HELP = "A folder of pictures, .parquet, .npz or .txt files."
_Command = TypeVar("_Command", bound=Callable[..., None])

_TEXTS = {
    "feature_layer": ("NAME", "The layer whose output are the features; default: found."),
    "weights": ("FILE", "A state dictionary for the model, instead of fetching one."),
    "classes": ("FILE", "The model's classes, a name in each line, to match folders with."),
    "column": ("NAME", "The column of a .parquet file that holds the inputs."),
    "label": ("NAME", "The column of a .parquet file that holds class numbers."),
    "device": ("NAME", "Where to run, such as cuda; several with commas take turns."),
    "size": ("N|HxW", "Preprocessing by hand: size of the input."),
    "resize": ("N|HxW", "With --size: shorter side, or size, before the middle is cut out."),
    "mean": ("R,G,B", "With --size: mean of the pixels, from 0 to 1."),
    "std": ("R,G,B", "With --size: standard deviation of the pixels."),
}
MODEL_OPTIONS: dict[str, tuple[Any, Any, Any]] = {
    "layers": (list[str] | None, None, typer.Option(metavar="NAME", help="A further layer to keep; may be repeated.")),
    **{name: (str | None, None, typer.Option(metavar=kind, help=text)) for name, (kind, text) in _TEXTS.items()},
    "interpolation": (str, "bilinear", typer.Option(help="With --size: nearest, bilinear, bicubic or lanczos.")),
    "batch_size": (int, 128, typer.Option(min=1, help="Inputs at a time.")),
    "dtype": (
        Literal["float32", "bfloat16", "float16"],
        "float32",
        typer.Option(help="What to run in; a lower one is compared with float32."),
    ),
    "keep": (Literal["float32", "float16"], "float32", typer.Option(help="What the tables are written in.")),
    "workers": (int, 4, typer.Option(min=1, help="Threads that read pictures; with --engine, processes.")),
    "on_invalid": (OnInvalid, "raise", typer.Option(help="A picture that cannot be read: stop, or leave it out.")),
}
"""What the commands that run a model share: type, default, and what typer shows."""


def with_model_options(command: _Command) -> _Command:
    """Give a command the options of :data:`MODEL_OPTIONS`, which it takes as ``**given``."""
    own = inspect.signature(command, eval_str=True)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
        for name, (kind, default, option) in MODEL_OPTIONS.items()
    ]
    parameters = [*[one for one in own.parameters.values() if one.name != "given"], *shared]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


@with_model_options
def extract_outputs(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)],
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", help="A file (.parquet .npz .safetensors), or a folder for many rows.")
    ],
    ood: Annotated[bool, typer.Option("--ood", help="The inputs are OoD: their labels are not the model's.")] = False,
    features: Annotated[bool, typer.Option(help="Keep the penultimate layer.")] = True,
    piece_rows: Annotated[int, typer.Option(min=1, help="Rows of a piece; a finished piece is not made again.")] = 8192,
    engine: EngineOption = None,
    address: AddressOption = None,
    **given: Any,
) -> None:
    """Run a model over pictures or texts: logits, features and head, for every detector.

    Begun again, it goes on where it stopped. The rows and their order are the same for any number of workers.
    """
    from normscale.extraction.to_tables import extract_to

    options = model_options(**given) | {"ood": ood, "features": features, "piece_rows": piece_rows}
    if engine is not None:
        options |= {"engine": engine.value, "processes": given["workers"], "address": address}
    done = extract_to(model, data, output, say=note, **options)
    typer.echo(f"{done.n_rows} rows in {done.path}", err=True)


def model_options(
    *,
    classes: str | None,
    size: str | None,
    resize: str | None,
    mean: str | None,
    std: str | None,
    interpolation: str,
    layers: list[str] | None,
    **given: Any,
) -> dict[str, Any]:
    """What :func:`normscale.extraction.to_tables.extract_to` takes of the options that the commands share."""
    from normscale.extraction import preprocessing

    prepare = names = None
    if size is not None:
        try:
            prepare = preprocessing(
                _size(size),
                resize=None if resize is None else _size(resize),
                mean=[float(value) for value in (mean or "0").split(",")],
                std=[float(value) for value in (std or "1").split(",")],
                interpolation=interpolation,
            )
        except ValueError as error:
            raise InvalidInput(
                f"--size, --resize, --mean and --std are numbers, such as 224 and .5,.5,.5: {error}"
            ) from None
        note(f"preprocessing by options: {prepare}")
    elif resize or mean or std:
        raise InvalidInput("--resize, --mean and --std need --size, the size of the model's input.")
    if classes is not None:
        with open(classes, encoding="utf-8") as file:
            names = file.read().removesuffix("\n").split("\n")
    plain = {name: value.value if isinstance(value, StrEnum) else value for name, value in given.items()}
    return {**plain, "layers": layers or None, "preprocess": prepare, "class_names": names}


def _size(text: str) -> int | list[int]:
    parts = [int(part) for part in text.split("x")]
    return parts[0] if len(parts) == 1 else parts
