"""Pictures as a worse camera gives them: five kinds of corruption at three strengths."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale.bench.data.image_set import ImageSet

Picture = NDArray[np.uint8]
STRENGTHS: dict[str, tuple[float, float, float]] = {
    "blur": (0.6, 1.0, 1.6),
    "noise": (8.0, 16.0, 32.0),
    "jpeg": (40.0, 20.0, 8.0),
    "contrast": (0.7, 0.5, 0.3),
    "brightness": (25.0, 50.0, 90.0),
}
"""Standard deviation of a Gaussian blur in pixels, of noise in grey levels; JPEG quality; factor about the picture's
mean; grey levels that are added."""


def corrupted(images: ImageSet, seed: int = 0) -> Iterator[tuple[str, ImageSet]]:
    """The same pictures, corrupted in every way, by name, such as ``blur 2``."""
    for number, (corruption, strengths) in enumerate(STRENGTHS.items()):
        for place, strength in enumerate(strengths, 1):
            rng = np.random.default_rng([seed, number, place])
            made = np.stack([_KINDS[corruption](one, strength, rng) for one in images.images])
            yield f"{corruption} {place}", replace(images, images=made)


def _clipped(values: NDArray[Any]) -> Picture:
    clipped: Picture = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return clipped


def _blur(one: Picture, strength: float) -> Picture:
    from PIL import ImageFilter

    return _like(one, _image(one).filter(ImageFilter.GaussianBlur(strength)))


def _jpeg(one: Picture, strength: float) -> Picture:
    from PIL import Image

    file = io.BytesIO()
    _image(one).save(file, "JPEG", quality=int(strength))
    return _like(one, Image.open(file))


def _image(one: Picture) -> Any:
    from PIL import Image

    return Image.fromarray(one[..., 0] if one.shape[2] == 1 else one)


def _like(one: Picture, image: Any) -> Picture:
    return np.asarray(image, np.uint8).reshape(one.shape)


_KINDS: dict[str, Callable[[Picture, float, np.random.Generator], Picture]] = {
    "blur": lambda one, strength, rng: _blur(one, strength),
    "noise": lambda one, strength, rng: _clipped(one + strength * rng.standard_normal(one.shape)),
    "jpeg": lambda one, strength, rng: _jpeg(one, strength),
    "contrast": lambda one, strength, rng: _clipped(one.mean() + strength * (one - one.mean())),
    "brightness": lambda one, strength, rng: _clipped(one + strength),
}
