"""``normscale extract``: run a model over pictures or texts and write its outputs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from normscale.cli._options import AddressOption, EngineOption, OnInvalid, note
from normscale.errors import InvalidInput

EXAMPLE = "Example: [bold]normscale extract timm:vit_small_patch16_224 pictures/ -o outputs.parquet[/bold]"

MODEL_HELP = (
    "hf:ORG/NAME, a folder of save_pretrained, timm:NAME, torchvision:NAME (also timm:NAME:num_classes=10), FILE.onnx, "
    "or FILE.py:FUNCTION that makes a model."
)
DATA_HELP = (
    "A folder of pictures, .parquet files with a column of pictures or texts, pixels in an .npz file, or a .txt file."
)


class Precision(StrEnum):
    """What a network is run in."""

    FLOAT32 = "float32"
    BF16 = "bf16"
    FP16 = "fp16"


class TablePrecision(StrEnum):
    """What tables are written in."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


_TYPES = {Precision.FLOAT32: "float32", Precision.BF16: "bfloat16", Precision.FP16: "float16"}

LayersOption = Annotated[
    list[str] | None, typer.Option("--layers", metavar="NAME", help="A further layer to keep; may be repeated.")
]
FeatureLayerOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The layer whose output are the features; default: found.")
]
WeightsOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="A state dictionary for the model, instead of fetching one.")
]
ClassesOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="The model's classes, a name in each line, to match folders with.")
]
ColumnOption = Annotated[str | None, typer.Option(help="The column of a .parquet file that holds the inputs.")]
LabelOption = Annotated[str | None, typer.Option(help="The column of a .parquet file that holds class numbers.")]
SizeOption = Annotated[str | None, typer.Option(metavar="N|HxW", help="Preprocessing by hand: size of the input.")]
ResizeOption = Annotated[
    str | None, typer.Option(metavar="N|HxW", help="With --size: shorter side, or size, before the middle is cut out.")
]
MeanOption = Annotated[str | None, typer.Option(metavar="R,G,B", help="With --size: mean of the pixels, from 0 to 1.")]
StdOption = Annotated[str | None, typer.Option(metavar="R,G,B", help="With --size: standard deviation of the pixels.")]
InterpolationOption = Annotated[str, typer.Option(help="With --size: nearest, bilinear, bicubic or lanczos.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Inputs at a time.")]
DeviceOption = Annotated[str | None, typer.Option(help="Where to run, such as cuda; several with commas take turns.")]
PrecisionOption = Annotated[
    Precision, typer.Option("--dtype", help="What to run in; a lower one is compared with float32.")
]
KeepOption = Annotated[TablePrecision, typer.Option("--keep", help="What the tables are written in.")]
ThreadsOption = Annotated[
    int, typer.Option("--workers", min=1, help="Threads that read pictures; with --engine, processes.")
]
InvalidOption = Annotated[OnInvalid, typer.Option(help="A picture that cannot be read: stop, or leave it out.")]


def extract_outputs(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)],
    output: Annotated[
        str, typer.Option("--output", "-o", help="A file (.parquet .npz .safetensors), or a folder for many rows.")
    ],
    ood: Annotated[bool, typer.Option("--ood", help="The inputs are OoD: their labels are not the model's.")] = False,
    layers: LayersOption = None,
    feature_layer: FeatureLayerOption = None,
    features: Annotated[bool, typer.Option(help="Keep the penultimate layer.")] = True,
    weights: WeightsOption = None,
    classes: ClassesOption = None,
    column: ColumnOption = None,
    label: LabelOption = None,
    size: SizeOption = None,
    resize: ResizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    interpolation: InterpolationOption = "bilinear",
    batch_size: BatchOption = 128,
    device: DeviceOption = None,
    dtype: PrecisionOption = Precision.FLOAT32,
    keep: KeepOption = TablePrecision.FLOAT32,
    workers: ThreadsOption = 4,
    on_invalid: InvalidOption = OnInvalid.RAISE,
    piece_rows: Annotated[int, typer.Option(min=1, help="Rows of a piece; a finished piece is not made again.")] = 8192,
    engine: EngineOption = None,
    address: AddressOption = None,
) -> None:
    """Run a model over pictures or texts: logits, features and head, for every detector.

    Begun again, it goes on where it stopped. The rows and their order are the same for any number of workers.
    """
    from normscale.extraction.to_tables import extract_to

    options = model_options(
        weights, classes, size, resize, mean, std, interpolation, batch_size, dtype, workers, on_invalid, column, label
    )
    done = extract_to(
        model,
        data,
        output,
        keep=keep.value,
        piece_rows=piece_rows,
        device=device,
        engine=None if engine is None else engine.value,
        processes=None if engine is None else workers,
        address=address,
        say=note,
        ood=ood,
        layers=layers or None,
        feature_layer=feature_layer,
        features=features,
        **options,
    )
    typer.echo(f"{done.n_rows} rows in {done.path}", err=True)


def model_options(
    weights: str | None,
    classes: str | None,
    size: str | None,
    resize: str | None,
    mean: str | None,
    std: str | None,
    interpolation: str,
    batch_size: int,
    dtype: Precision,
    workers: int,
    on_invalid: OnInvalid,
    column: str | None = None,
    label: str | None = None,
) -> dict[str, Any]:
    """What :func:`normscale.extraction.extract` takes of the options that the commands share."""
    from normscale.extraction import preprocessing

    prepare = None
    if size is not None:
        try:
            prepare = preprocessing(
                _size(size),
                resize=None if resize is None else _size(resize),
                mean=[float(value) for value in (mean or "0").split(",")],
                std=[float(value) for value in (std or "1").split(",")],
                interpolation=interpolation,
                source="by options",
            )
        except ValueError as error:
            raise InvalidInput(
                f"--size, --resize, --mean and --std are numbers, such as 224 and .5,.5,.5: {error}"
            ) from None
        note(f"preprocessing: {prepare}")
    elif resize or mean or std:
        raise InvalidInput("--resize, --mean and --std need --size, the size of the model's input.")
    names = None
    if classes is not None:
        with open(classes, encoding="utf-8") as file:
            names = file.read().split("\n")
        names = names[:-1] if names and not names[-1] else names
    return {
        "preprocess": prepare,
        "weights": weights,
        "class_names": names,
        "batch_size": batch_size,
        "dtype": _TYPES[dtype],
        "workers": workers,
        "on_invalid": on_invalid.value,
        "column": column,
        "label": label,
    }


def _size(text: str) -> int | list[int]:
    parts = [int(part) for part in text.split("x")]
    return parts[0] if len(parts) == 1 else parts
