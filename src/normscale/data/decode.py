"""Picture files to pixels, through Pillow, in several threads (Pillow releases the interpreter while it decodes)."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
    try:
        with image_module.open(source if isinstance(source, str) else io.BytesIO(source)) as opened:
            image = grey_or_colour(_upright(opened))
    except image_module.DecompressionBombError as error:
        raise FileFormatError(f"{name} is too large to be a picture of a data set ({error}).") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise FileFormatError(f"{name} cannot be read as a picture ({error}). Remove it or mend it.") from error
    if height is not None and width is not None:
        image = _fitted(image, height, width, image_module.Resampling.BILINEAR)
    pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def decode_all(
    pictures: Iterable[Picture], height: int | None = None, width: int | None = None, *, done: Callable[[int], None]
) -> Iterator[NDArray[np.uint8]]:
    """Decode pictures in their order; ``done(1)`` is called after each."""
    pillow()
    workers = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[NDArray[np.uint8]]] = deque()
        for picture in pictures:
            waiting.append(pool.submit(decode, picture, height, width))
            if len(waiting) >= 8 * workers:  # so that an archive is never in memory whole
                yield waiting.popleft().result()
                done(1)
        while waiting:
            yield waiting.popleft().result()
            done(1)


def stack_colour(pictures: Iterable[NDArray[np.uint8]], shape: tuple[int, int], at_most: int) -> NDArray[np.uint8]:
    """Pictures of one size as one array in colour, without holding them twice."""
    images = np.empty((at_most, *shape, 3), np.uint8)
    count = 0
    for pixels in pictures:
        images[count] = pixels  # grey is repeated
        count += 1
    return images[:count]


def grey_or_colour(image: Image.Image) -> Image.Image:
    """A picture of any mode as 8 bits of grey or of three colours."""
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        shades = np.asarray(image).astype(np.int64) >> 8
        return pillow().fromarray(shades.clip(0, 255).astype(np.uint8))  # type: ignore[no-any-return]
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


def _upright(image: Image.Image) -> Image.Image:
    """Turn a photograph the way its camera was held."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(image) if image.getexif().get(0x0112, 1) != 1 else image


def _fitted(image: Image.Image, height: int, width: int, filter: Any) -> Image.Image:
    """Resize so that the picture covers the size, by way of the part in the middle that has its proportions."""
    if image.size == (width, height):
        return image
    scale = max(width / image.width, height / image.height)
    cut_width, cut_height = width / scale, height / scale
    left, top = (image.width - cut_width) / 2, (image.height - cut_height) / 2
    return image.resize((width, height), filter, box=(left, top, left + cut_width, top + cut_height))
