"""How a picture or a text becomes the input of a network: from the network's own record, or by options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale.errors import InvalidInput, MissingExtra

_STEPS = ("do_resize", "size", "do_center_crop", "crop_size", "do_normalize", "image_mean", "image_std")
"""What is said of a processor of transformers."""


class Preprocessing:
    """Resize, cut out the middle, divide by 255, normalise.

    Parameters
    ----------
    size : int, or height and width
        Of the input.
    resize : int, or height and width, optional
        Of the shorter side, or of both, before the middle is cut out; by default ``size``.
    mean, std : sequence of float
        Of the pixels, divided by 255: three numbers, or one for all channels.
    interpolation : {"nearest", "bilinear", "bicubic", "lanczos"}
    grey : bool
        The input has one channel.

    Examples
    --------
    >>> print(Preprocessing(224, resize=256, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)))
    shorter side to 256 (bilinear), middle 224 x 224, mean 0.485 0.456 0.406, std 0.229 0.224 0.225
    """

    def __init__(
        self,
        size: int | Sequence[int],
        *,
        resize: int | Sequence[int] | None = None,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        interpolation: str = "bilinear",
        grey: bool = False,
    ) -> None:
        self.size = tuple(size) if isinstance(size, Sequence) else (size, size)
        self.resize = tuple(resize) if isinstance(resize, Sequence) else resize or self.size
        for side in (*self.size, *(self.resize if isinstance(self.resize, tuple) else (self.resize,))):
            _validate.at_least(side, "size", 1)
        if len(self.size) != 2 or (isinstance(self.resize, tuple) and len(self.resize) != 2):
            raise InvalidInput(f"size and resize must be one number, or height and width; got {size!r} and {resize!r}.")
        self.mode = "L" if grey else "RGB"
        if len(mean) != len(std) or len(mean) not in (1, len(self.mode)) or min(std) <= 0:
            raise InvalidInput(
                f"mean and std must be one number, or three, and std positive; got {mean!r} and {std!r}."
            )
        known = ("nearest", "bilinear", "bicubic", "lanczos")
        self.interpolation = _validate.one_of(interpolation, "interpolation", known)
        self.mean, self.std = (np.resize(np.array(values, np.float32), len(self.mode)) for values in (mean, std))

    def __str__(self) -> str:
        """Describe the steps in one line."""
        new, (height, width) = self.resize, self.size
        first = f"shorter side to {new}" if isinstance(new, int) else f"resized to {new[0]} x {new[1]}"
        middle = "" if new == self.size else f", middle {height} x {width}"
        mean, std = (" ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        return f"{first} ({self.interpolation}){middle}, mean {mean}, std {std}"

    def __call__(self, picture: Any) -> NDArray[np.float32]:
        """The input (channels, height, width) of a picture of Pillow."""
        from PIL import Image

        (height, width), new = self.size, self.resize
        if isinstance(new, int):
            longer = int(max(picture.size) * new / min(picture.size))  # as torchvision rounds
            new = (longer, new) if picture.height > picture.width else (new, longer)
        if (picture.height, picture.width) != new:
            picture = picture.resize((new[1], new[0]), getattr(Image.Resampling, self.interpolation.upper()))
        top, left = round((new[0] - height) / 2), round((new[1] - width) / 2)
        picture = picture.crop((left, top, left + width, top + height))  # black where it is too small
        pixels = np.asarray(picture.convert(self.mode), dtype=np.float32).reshape(height, width, -1)
        normal = (pixels / np.float32(255.0) - self.mean) / self.std
        return np.ascontiguousarray(normal.transpose(2, 0, 1), dtype=np.float32)


class RecordedPreprocessing(NamedTuple):
    """What a model's own record makes of a picture, or of a list of texts."""

    make: Callable[[Any], Any]
    description: str

    def __str__(self) -> str:
        """Describe the steps in one line."""
        return self.description

    def __call__(self, given: Any) -> Any:
        """The input (channels, height, width) of a picture; arrays for the model's forward of texts."""
        return self.make(given) if isinstance(given, list) else np.asarray(self.make(given.convert("RGB")), np.float32)


def of_transform(transform: Any, where: object) -> RecordedPreprocessing:
    """A transform of timm or torchvision, and where it is recorded."""
    return RecordedPreprocessing(transform, f"{' '.join(str(transform).split())} ({where})")


def of_timm(model: Any) -> RecordedPreprocessing | None:
    """timm's own transform by the model's ``pretrained_cfg``; None where that says nothing."""
    if not model.pretrained_cfg.get("input_size") or not model.pretrained_cfg.get("mean"):
        return None
    from timm.data import create_transform, resolve_model_data_config

    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    return of_transform(transform, "timm's pretrained_cfg")


def of_transformers(folder: str, *, texts: bool) -> RecordedPreprocessing | None:
    """The image processor or the tokenizer that lies beside a transformers model, or on the Hub; None without one."""
    try:
        from transformers import AutoImageProcessor, AutoTokenizer
    except (ImportError, RuntimeError) as error:
        raise MissingExtra(f"models of transformers need that package ({error}).") from error
    try:
        if texts:
            tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        else:
            processor: Any = AutoImageProcessor.from_pretrained(folder, backend="pil")
    except (OSError, ValueError, KeyError):
        return None
    if texts:
        longest = int(min(tokenizer.model_max_length, 512))
        options = {"padding": True, "truncation": True, "max_length": longest, "return_tensors": "np"}
        return RecordedPreprocessing(
            lambda given: {str(name): np.asarray(value) for name, value in tokenizer(given, **options).items()},
            f"{type(tokenizer).__name__}, at most {longest} tokens (the tokenizer of {folder})",
        )
    record = processor.to_dict()
    steps = ", ".join(f"{name} {record[name]}" for name in _STEPS if record.get(name) is not None)
    return RecordedPreprocessing(
        lambda picture: processor(images=[picture], return_tensors="np")["pixel_values"][0],
        f"{type(processor).__name__}: {steps} (its preprocessor_config.json)",
    )
