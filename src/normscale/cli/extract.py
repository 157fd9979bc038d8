"""``normscale extract``: run a model over pictures or texts and write its outputs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from normscale.cli import option, say
from normscale.cli._options import AddressOption, EngineName, OnInvalid, SharedOptions, note, takes
from normscale.errors import InvalidInput

EXAMPLES = ("normscale extract timm:vit_small_patch16_224 pictures/ -o outputs.parquet",)
MODEL_HELP = "As hf:NAME, timm:NAME or a file."
_TEXTS = {
    "feature_layer": ("NAME", "Layer of the features."),
    "weights": ("FILE", "A state dictionary."),
    "classes": ("FILE", "The model's classes, a name in each line."),
    "column": ("NAME", "Column of the inputs (.parquet)."),
    "label": ("NAME", "Column of class numbers (.parquet)."),
    "device": ("NAME", "Such as cuda, or cuda:0,cuda:1."),
    "size": ("N|HxW", "Preprocessing by hand: size of the input."),
    "resize": ("N|HxW", "With --size: of the whole picture."),
    "mean": ("R,G,B", "With --size: mean of the pixels, from 0 to 1."),
    "std": ("R,G,B", "With --size: standard deviation of the pixels."),
}
MODEL_OPTIONS: SharedOptions = {
    "layers": (Annotated[list[str] | None, option("A further layer to keep.", "NAME")], None),
    **{name: (Annotated[str | None, option(text, metavar)], None) for name, (metavar, text) in _TEXTS.items()},
    "interpolation": (
        Annotated[str, option("Or nearest, bicubic, lanczos.")],
        "bilinear",
    ),
    "batch_size": (Annotated[int, option("Inputs at a time.", min=1)], 128),
    "dtype": (Annotated[Literal["float32", "bfloat16", "float16"], option("To run in.")], "float32"),
    "keep": (Annotated[Literal["float32", "float16"], option("To write.")], "float32"),
    "workers": (Annotated[int, option("Reading threads, or processes.", min=1)], 4),
    "on_invalid": (
        Annotated[OnInvalid, option("A picture that cannot be read.")],
        "raise",
    ),
}
"""What the commands that run a model share."""


@takes(MODEL_OPTIONS)
def extract_outputs(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    data: Annotated[str, typer.Argument(metavar="DATA", help="A folder of pictures, .parquet, .npz or .txt.")],
    *,
    output: Annotated[str, option("A table, or a folder.", "PATH", "--output", "-o")],
    ood: Annotated[bool, option("The inputs are OoD.", "--ood")] = False,
    features: Annotated[bool, option("Keep features.")] = True,
    piece_rows: Annotated[int, option("Rows of a piece.", min=1)] = 8192,
    engine: Annotated[EngineName, option("Where pieces are made.")] = "here",
    address: AddressOption = None,
    **given: Any,
) -> None:
    """Run a model over pictures or texts: logits, features and head.

    MODEL is hf:NAME, timm:NAME, torchvision:NAME, FILE.onnx or FILE.py:FUNCTION. OoD inputs have no labels of it.

    Begun again, it goes on where it stopped. The rows and their order are the same for any number of workers.
    """
    from normscale.extraction.to_tables import extract_to

    options = model_options(**given) | {"ood": ood, "features": features, "piece_rows": piece_rows}
    if engine != "here":
        options |= {"engine": engine, "processes": given["workers"], "address": address}
    done = extract_to(model, data, output, say=note, **options)
    say(f"{done.n_rows} rows in {output}")


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
    from normscale.extraction import Preprocessing

    prepare = names = None
    if size is not None:
        try:
            prepare = Preprocessing(
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
