"""Picture files to pixels, and pictures in another size, through Pillow."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscale._progress import bar
from normscale.errors import FileFormatError, MissingExtra

if TYPE_CHECKING:
    from PIL import Image

Picture = tuple[str, bytes | str]
"""What to call it in a message, and its bytes or path."""


def pillow() -> Any:
    """The module ``PIL.Image``, or advice."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("picture files need Pillow; pip install 'normscale[torch]'.") from None
    return Image


def decode(picture: Picture, height: int | None = None, width: int | None = None) -> NDArray[np.uint8]:
    """Pixels of shape (h, w, 3), or (h, w, 1) when the file is grey.

    With a size, the shorter side is made to fit (bilinear, antialiased) and the middle is cut out.
    """
    name, source = picture
    image_module = pillow()
    from PIL import ImageOps

    try:
        with image_module.open(source if isinstance(source, str) else io.BytesIO(source)) as opened:
            turned = opened.getexif().get(0x0112, 1) != 1  # how the camera was held
            image = grey_or_colour(ImageOps.exif_transpose(opened) if turned else opened)
    except image_module.DecompressionBombError as error:
        raise FileFormatError(f"{name} is too large to be a picture of a data set ({error}).") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise FileFormatError(f"{name} cannot be read as a picture ({error}). Remove it or mend it.") from error
    if height is not None and width is not None:
        image = ImageOps.fit(image, (width, height), image_module.Resampling.BILINEAR)
    pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def decode_all(
    pictures: Sequence[Picture], height: int | None = None, width: int | None = None, *, doing: str
) -> Iterator[NDArray[np.uint8]]:
    """Decode pictures in their order, in several threads (Pillow releases the interpreter), with a progress bar."""
    pillow()
    workers = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool, bar(doing, len(pictures)) as line:
        waiting: deque[Future[NDArray[np.uint8]]] = deque()
        for picture in pictures:
            waiting.append(pool.submit(decode, picture, height, width))
            if len(waiting) >= 8 * workers:  # so that the photographs are never in memory at their full size
                yield waiting.popleft().result()
                line.advance(1)
        while waiting:
            yield waiting.popleft().result()
            line.advance(1)


def grey_or_colour(image: Image.Image) -> Image.Image:
    """A picture of any mode as 8 bits of grey or of three colours."""
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        shades = np.asarray(image).astype(np.int64) >> 8
        return pillow().fromarray(shades.clip(0, 255).astype(np.uint8))  # type: ignore[no-any-return]
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


def resize(images: NDArray[Any], height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """uint8 pictures (n, h, w, c) in another size (bilinear, antialiased), grey (luma) or in colour."""
    image_module = pillow()
    resized = np.empty((len(images), height, width, channels), np.uint8)
    for new, old in zip(resized, images, strict=True):
        image = image_module.fromarray(old.squeeze(axis=2) if old.shape[2] == 1 else old)
        image = image.convert("L" if channels == 1 else "RGB")
        image = image.resize((width, height), image_module.Resampling.BILINEAR)
        new[...] = np.asarray(image).reshape(height, width, channels)
    return resized
