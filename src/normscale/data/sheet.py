"""A contact sheet: some pictures of every class on one image, to look at before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscale._validate import at_least
from normscale.data.decode import pillow
from normscale.data.image_set import ImageSet
from normscale.errors import InvalidInput

if TYPE_CHECKING:
    from PIL import Image

_INK, _PAPER, _FAINT = (30, 30, 30), (255, 255, 255), (110, 110, 110)
_GAP, _MARGIN, _TEXT = 3, 14, 14
_NAME_PIXELS = 160


def contact_sheet(
    image_set: ImageSet,
    *,
    columns: int = 12,
    rows: int = 20,
    picture_size: int = 48,
    like: ImageSet | None = None,
) -> Image.Image:
    """Draw a contact sheet with Pillow.

    Parameters
    ----------
    image_set : ImageSet
    columns, rows : int
        How many pictures side by side, and how many rows at most. With labels a row is a class, with its name; when
        there are more classes than rows, classes are taken at equal distances. Without labels it is a plain grid.
    picture_size : int, default 48
        Pixels of the longer side of each picture on the sheet.
    like : ImageSet, optional
        For noise in normalised space: the set whose mean and standard deviation lead back to pixels.
    """
    image_module = pillow()
    at_least(columns, "columns", 1)
    at_least(rows, "rows", 1)
    at_least(picture_size, "picture_size", 4)
    if not len(image_set):
        raise InvalidInput(f"{image_set.name!r} is empty; there is nothing to show.")
    chosen, names = _choose(image_set, columns, rows)
    height, width, _ = image_set.shape
    scale = picture_size / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    filter = image_module.Resampling.NEAREST if scale >= 1 else image_module.Resampling.BILINEAR
    name_width = _name_width(names)
    top = _MARGIN + _TEXT + 12
    sheet: Image.Image = image_module.new(
        "RGB",
        (
            2 * _MARGIN + name_width + columns * (size[0] + _GAP) - _GAP,
            top + len(chosen) * (size[1] + _GAP) - _GAP + _MARGIN,
        ),
        _PAPER,
    )
    shown = sum(len(row) for row in chosen)
    _write(sheet, _MARGIN, _MARGIN + _TEXT // 2, _title(image_set, shown, names), _INK, sheet.width - 2 * _MARGIN)
    for number, row in enumerate(chosen):
        y = top + number * (size[1] + _GAP)
        if names:
            _write(sheet, _MARGIN, y + size[1] // 2, names[number], _FAINT, name_width - 8)
        for position, picture in enumerate(_pixels(image_set[row], like)):
            tile = image_module.fromarray(picture.squeeze(axis=2) if picture.shape[2] == 1 else picture)
            tile = tile.resize(size, filter)
            sheet.paste(tile, (_MARGIN + name_width + position * (size[0] + _GAP), y))
    return sheet


def _choose(image_set: ImageSet, columns: int, rows: int) -> tuple[list[NDArray[Any]], list[str]]:
    """Indices of the pictures in each row, and the rows' names where they are classes."""
    classes = np.unique(image_set.labels[image_set.labels >= 0])
    if not len(classes):
        spread = np.unique(np.linspace(0, len(image_set) - 1, columns * rows).round().astype(int))
        return [spread[start : start + columns] for start in range(0, len(spread), columns)], []
    if len(classes) > rows:
        classes = classes[np.linspace(0, len(classes) - 1, rows).round().astype(int)]
    known = image_set.class_names
    names = [known[number] if known else f"class {number}" for number in classes]
    return [np.flatnonzero(image_set.labels == number)[:columns] for number in classes], names


def _pixels(image_set: ImageSet, like: ImageSet | None) -> NDArray[np.uint8]:
    """Pixels of a set, also of one that is in normalised space."""
    if not image_set.normalised:
        return image_set.images
    if like is None or like.mean is None or like.std is None:
        raise InvalidInput(f"{image_set.name!r} is in normalised space; pass like= a set with mean and std to show it.")
    values = image_set.images * np.array(like.std, np.float32) + np.array(like.mean, np.float32)
    pixels: NDArray[np.uint8] = np.rint(values * 255).clip(0, 255).astype(np.uint8)
    return pixels


def _title(image_set: ImageSet, shown: int, names: list[str]) -> str:
    height, width, channels = image_set.shape
    kind = "colour" if channels == 3 else "grey"
    n_classes = len(np.unique(image_set.labels[image_set.labels >= 0]))
    classes = ""
    if n_classes:
        classes = f", {len(names)} of {n_classes} classes" if len(names) < n_classes else f", {n_classes} classes"
    return f"{image_set.name}: {shown} of {len(image_set)} pictures, {height} x {width} {kind}{classes}"


def _font() -> Any:
    from PIL import ImageFont

    try:
        return ImageFont.load_default(_TEXT)
    except ImportError:  # a Pillow without FreeType
        return ImageFont.load_default()


def _name_width(names: list[str]) -> int:
    """Room for the longest name, within bounds."""
    if not names:
        return 0
    font = _font()
    return min(_NAME_PIXELS, 10 + max(int(font.getlength(name)) for name in names))


def _write(sheet: Image.Image, x: int, middle: int, text: str, colour: tuple[int, int, int], room: int) -> None:
    """Write a line, shortened to the room there is."""
    from PIL import ImageDraw

    font = _font()
    if font.getlength(text) > room:
        while text and font.getlength(text + "...") > room:
            text = text[:-1]
        text = text.rstrip() + "..."
    draw = ImageDraw.Draw(sheet)
    left, top, _, bottom = draw.textbbox((0, 0), "Hg", font=font)
    draw.text((x - left, middle - (top + bottom) // 2), text, fill=colour, font=font)
