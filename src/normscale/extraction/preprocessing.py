"""How a picture or a text becomes the input of a network: from the network's own record, or by options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from PIL import Image

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")


class Preprocessing(NamedTuple):
    """Resize, cut out the middle, divide by 255, normalise.

    Examples
    --------
    >>> usual = Preprocessing((224, 224), resize=256, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    >>> print(usual)
    shorter side to 256 (bilinear), middle 224 x 224, mean 0.485 0.456 0.406, std 0.229 0.224 0.225
    """

    size: tuple[int, int]
    """Height and width of the input."""
    resize: int | tuple[int, int] | None = None
    """The shorter side, or height and width, before the middle is cut out; by default ``size``."""
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    """Of the pixels, divided by 255; one number means grey pictures."""
    interpolation: str = "bilinear"
    source: str = ""
    """Where it is recorded."""

    def __str__(self) -> str:
        """Describe the steps in one line."""
        resized = self.resize or self.size
        first = f"shorter side to {resized}" if isinstance(resized, int) else f"resized to {resized[0]} x {resized[1]}"
        numbers = [" ".join(f"{value:g}" for value in values) for values in (self.mean, self.std)]
        middle = "" if resized == self.size else f", middle {self.size[0]} x {self.size[1]}"
        where = f" ({self.source})" if self.source else ""
        return f"{first} ({self.interpolation}){middle}, mean {numbers[0]}, std {numbers[1]}{where}"

    def __call__(self, picture: Image.Image) -> NDArray[np.float32]:
        """The input (channels, height, width)."""
        from PIL import Image

        height, width = self.size
        new = self.resize or self.size
        if isinstance(new, int):
            share = new / min(picture.size)
            longer = int(max(picture.size) * share)  # as torchvision rounds
            new = (longer, new) if picture.height > picture.width else (new, longer)
        if (picture.height, picture.width) != new:
            picture = picture.resize((new[1], new[0]), getattr(Image.Resampling, self.interpolation.upper()))
        top, left = round((new[0] - height) / 2), round((new[1] - width) / 2)
        if (top, left) != (0, 0) or new != self.size:
            picture = picture.crop((left, top, left + width, top + height))  # black where it is too small
        pixels = np.asarray(picture.convert("L" if len(self.mean) == 1 else "RGB"), dtype=np.float32)
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        mean, std = (np.array(values, np.float32) for values in (self.mean, self.std))
        normal = (pixels / np.float32(255.0) - mean) / std
        return np.ascontiguousarray(normal.transpose(2, 0, 1), dtype=np.float32)


class Processor(NamedTuple):
    """The image processor of a transformers model."""

    processor: Any
    source: str

    def __str__(self) -> str:
        """Describe what the record says."""
        record = self.processor.to_dict()
        shown = (
            "do_resize",
            "size",
            "do_center_crop",
            "crop_size",
            "do_rescale",
            "do_normalize",
            "image_mean",
            "image_std",
        )
        parts = [f"{name} {_plain(record[name])}" for name in shown if record.get(name) is not None]
        return f"{type(self.processor).__name__}: {', '.join(parts)} ({self.source})"

    def __call__(self, picture: Image.Image) -> NDArray[np.float32]:
        """The input (channels, height, width)."""
        made = self.processor(images=[picture.convert("RGB")], return_tensors="np")
        return np.asarray(made["pixel_values"][0], dtype=np.float32)


class Tokenization(NamedTuple):
    """The tokenizer of a transformers model."""

    tokenizer: Any
    source: str

    def __str__(self) -> str:
        """Describe how texts are cut."""
        return f"{type(self.tokenizer).__name__}, at most {self.longest} tokens ({self.source})"

    @property
    def longest(self) -> int:
        """Tokenization of a text; the rest is cut off."""
        return int(min(self.tokenizer.model_max_length, 512))

    def __call__(self, texts: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Arrays for the model's forward, padded to the longest text."""
        options = {"padding": True, "truncation": True, "max_length": self.longest, "return_tensors": "np"}
        return {str(name): np.asarray(value) for name, value in self.tokenizer(list(texts), **options).items()}


Prepare: TypeAlias = "Preprocessing | Processor | Tokenization | Callable[[Any], Any]"
"""What makes inputs of pictures or texts."""


def preprocessing(
    size: int | Sequence[int],
    *,
    resize: int | Sequence[int] | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    interpolation: str = "bilinear",
    source: str = "",
) -> Preprocessing:
    """Check options and make a :class:`Preprocessing` of them; one number for mean and std serves three channels."""
    both = tuple(size) if isinstance(size, Sequence) else (size, size)
    before = tuple(resize) if isinstance(resize, Sequence) else resize
    for value in (*both, *(before if isinstance(before, tuple) else (before or 1,))):
        _validate.at_least(value, "size", 1)
    if len(both) != 2 or (isinstance(before, tuple) and len(before) != 2):
        raise InvalidInput(f"size and resize must be one number, or height and width; got {size!r} and {resize!r}.")
    if len(mean) != len(std) or len(mean) not in (1, 3) or min(std) <= 0:
        raise InvalidInput(f"mean and std must be one number, or three, and std positive; got {mean!r} and {std!r}.")
    _validate.one_of(interpolation, "interpolation", INTERPOLATIONS)
    means, stds = (tuple(float(v) for v in values) * (3 // len(values)) for values in (mean, std))
    return Preprocessing((both[0], both[1]), before, means, stds, interpolation, source)


def of_timm(record: Mapping[str, Any]) -> Preprocessing | None:
    """What timm's ``pretrained_cfg`` says; None where it says nothing."""
    if not record.get("input_size") or not record.get("mean"):
        return None
    _, height, width = record["input_size"]
    share = float(record.get("crop_pct") or 1.0)
    before: Any = math.floor(height / share)
    if record.get("crop_mode", "center") == "squash" or height != width:
        before = (math.floor(height / share), math.floor(width / share))
    elif record.get("crop_mode", "center") != "center":
        return None
    return preprocessing(
        (height, width),
        resize=before,
        mean=record["mean"],
        std=record["std"],
        interpolation=record.get("interpolation") or "bilinear",
        source="timm's pretrained_cfg",
    )


def of_torchvision(transforms: Any, source: str) -> Preprocessing:
    """What the transforms of torchvision's weights say."""
    size, before = transforms.crop_size, transforms.resize_size
    return preprocessing(
        size[0] if len(size) == 1 else size,
        resize=before[0] if len(before) == 1 else before,
        mean=transforms.mean,
        std=transforms.std,
        interpolation=str(transforms.interpolation.value),
        source=source,
    )


def of_folder(folder: str, *, texts: bool) -> Processor | Tokenization | None:
    """The image processor or the tokenizer that lies beside a transformers model, or on the Hub; None without one."""
    try:
        from transformers import AutoImageProcessor, AutoTokenizer
    except (ImportError, RuntimeError) as error:
        raise MissingExtra(f"models of transformers need that package ({error}).") from error
    try:
        if texts:
            return Tokenization(AutoTokenizer.from_pretrained(folder), f"the tokenizer of {folder}")
        return Processor(AutoImageProcessor.from_pretrained(folder, backend="pil"), "its preprocessor_config.json")
    except (OSError, ValueError, KeyError):
        return None


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key} {item}" for key, item in value.items())
    return " ".join(f"{item:g}" for item in value) if isinstance(value, (list, tuple)) else str(value)
