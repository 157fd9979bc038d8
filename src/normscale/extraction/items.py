"""Pictures and texts in folders and files: which there are, in what order, and batches of inputs made of them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from normscale.errors import FileFormatError, InvalidInput, MissingExtra
from normscale.extraction.batch_reader import Batch
from normscale.rows import need_arrow

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_PICTURES = ("image", "img", "picture")
_LABELS = ("label", "labels", "target", "class")


class Item(NamedTuple):
    """A picture (bytes, path or pixels) or a text."""

    name: str
    """What messages call it."""
    content: Any
    label: int | None
    path: str = ""
    """Where it is below the folder, or which row of a Parquet file it is."""


class Items(NamedTuple):
    """Pictures or texts in a fixed order."""

    path: str
    n: int
    between: Callable[[int, int], Iterable[Item]]
    """Some of them, in order, by the first and the end."""
    texts: bool = False
    class_names: tuple[str, ...] | None = None
    """What the labels number, where they come from names of folders."""
    digest: str = ""
    """Of the names of files in a folder."""

    @property
    def stamp(self) -> list[Any]:
        """What tells that these are other items than before: names, number, size and time of files."""
        found = os.stat(self.path)
        of_file = [] if os.path.isdir(self.path) else [found.st_size, found.st_mtime_ns]
        return [os.path.abspath(self.path), self.n, *of_file, self.digest]


def open_items(path: str, *, column: str | None = None, label: str | None = None, on_invalid: str = "raise") -> Items:
    """Pictures or texts by path: a folder of pictures, FOLDER@LIST.txt, .parquet files, .npz, .npy or .txt."""
    suffix = os.path.splitext(path)[1].lower()
    folder, at, listing = path.rpartition("@")
    if at and os.path.isdir(folder) and os.path.isfile(listing):
        items = _listed_pictures(folder, listing, on_invalid)
    elif os.path.isdir(path):
        names = sorted(os.listdir(path))
        tables = [os.path.join(path, one) for one in names if one.endswith(".parquet") and one[0] not in "._"]
        items = _parquet_column(path, tables, column, label) if tables else _picture_folder(path)
    elif not os.path.exists(path):
        raise InvalidInput(f"there is no file or folder {path}.")
    elif suffix == ".parquet":
        items = _parquet_column(path, [path], column, label)
    elif suffix in (".npz", ".npy"):
        items = _pixel_arrays(path)
    elif suffix == ".txt":
        with open(path, encoding="utf-8") as file:
            lines = [Item(f"line {row} of {path}", line, None) for row, line in enumerate(file.read().splitlines(), 1)]
        items = Items(path, len(lines), lambda start, stop: lines[start:stop], texts=True)
    else:
        raise InvalidInput(f"{path} is no folder of pictures and no .parquet, .npz, .npy or .txt file.")
    if not items.n:
        raise InvalidInput(f"{path} holds no inputs; at least one is needed.")
    return items


def _picture_folder(path: str) -> Items:
    """Picture files below a folder in the order of their names; a folder in it is a class."""
    there = sorted(name for name in os.listdir(path) if not name.startswith("."))
    classes = [name for name in there if os.path.isdir(os.path.join(path, name))]
    files = [
        _file(path, os.path.join(name, below), number)
        for number, name in enumerate(classes)
        for below in _pictures(os.path.join(path, name))
    ]
    loose = [_file(path, name) for name in filter(_is_picture, there)]
    if files and loose:
        raise InvalidInput(f"{path} holds both pictures and folders of pictures; are the folders its classes?")
    if not files and not loose:
        raise InvalidInput(f"{path} holds no pictures ({', '.join(PICTURE_SUFFIXES)}) and no .parquet files.")
    return _of_files(path, files or loose, tuple(classes) if files else None)


def _pictures(folder: str) -> Iterator[str]:
    """Picture files anywhere below a folder, in a fixed order; links to folders are not followed."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.relpath(os.path.join(parent, name), folder) for name in sorted(files) if _is_picture(name))


def _is_picture(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(PICTURE_SUFFIXES)


def _file(folder: str, name: str, label: int | None = None) -> Item:
    path = os.path.join(folder, name)
    return Item(path, path, label, name.replace(os.sep, "/"))


def _of_files(path: str, files: list[Item], class_names: tuple[str, ...] | None = None) -> Items:
    digest = hashlib.sha256("\n".join(file.path for file in files).encode()).hexdigest()[:16]
    return Items(path, len(files), lambda start, stop: files[start:stop], False, class_names, digest)


def listed_files(folder: str, listing: str) -> tuple[list[Item], list[str]]:
    """The pictures of a list that are below a folder, and the names of those that are not.

    A line is a path below the folder, and maybe a class number after the last space: the form of OpenOOD's lists.
    """
    there: list[Item] = []
    missing: list[str] = []
    with open(listing, encoding="utf-8") as file:
        for line in filter(None, map(str.strip, file)):
            name, _, number = line.rpartition(" ")
            has_number = name and number.removeprefix("-").isdigit()
            one = _file(folder, name, int(number)) if has_number else _file(folder, line, -1)
            if os.path.isfile(one.content):
                there.append(one)
            else:
                missing.append(one.path)
    return there, missing


def _listed_pictures(folder: str, listing: str, on_invalid: str) -> Items:
    files, missing = listed_files(folder, listing)
    if missing and on_invalid != "skip":
        raise InvalidInput(
            f"{listing} names {len(missing)} pictures that are not below {folder}, such as {missing[0]!r}. Fetch them, "
            'or pass on_invalid="skip" to run on the others.'
        )
    return _of_files(listing, files)


def _parquet_column(path: str, files: list[str], column: str | None, label: str | None) -> Items:
    """A column of pictures (bytes, or Hugging Face's ``{bytes, path}``) or texts in one Parquet file or several."""
    parquet = need_arrow("pyarrow.parquet", path)
    arrow = need_arrow("pyarrow", path)
    try:
        opened = [parquet.ParquetFile(file) for file in files]
    except (OSError, arrow.ArrowException) as error:
        raise FileFormatError(f"{path} is not a readable Parquet file ({error}).") from error
    schema = opened[0].schema_arrow
    chosen, texts = _input_column(path, schema, arrow.types, column)
    whole = [name for name in schema.names if arrow.types.is_integer(schema.field(name).type)]
    label = label or next((name for name in _LABELS if name in whole), None)
    if label is not None and label not in whole:
        raise InvalidInput(f"{path}: the label column {label!r} must hold whole numbers; such are {whole}.")
    columns = [chosen] if label is None else [chosen, label]
    n = sum(file.metadata.num_rows for file in opened)

    def item(row: int, content: Any, number: int | None = None) -> Item:
        name, content = (content.get("path"), content.get("bytes")) if isinstance(content, dict) else ("", content)
        content = ("" if texts else b"") if content is None else content
        return Item(f"row {row} of {path}" + (f" ({name})" if name else ""), content, number, name or f"row {row}")

    def between(start: int, stop: int) -> Iterator[Item]:
        at = 0
        for file in opened:
            for group in range(file.metadata.num_row_groups):
                first, at = at, at + file.metadata.row_group(group).num_rows
                if at <= start or first >= stop:
                    continue  # a row group without any of these rows is not read
                for batch in file.iter_batches(256, row_groups=[group], columns=columns):
                    low, high = (min(max(0, end - first), batch.num_rows) for end in (start, stop))
                    parts = [batch.column(name)[low:high].to_pylist() for name in columns]
                    yield from map(item, range(first + low, first + high), *parts)
                    first += batch.num_rows

    return Items(path, n, between, texts)


def _input_column(path: str, schema: Any, types: Any, column: str | None) -> tuple[str, bool]:
    """The column of the inputs, and whether they are texts."""
    kinds = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        is_struct = types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        if is_struct or types.is_binary(kind) or types.is_large_binary(kind):
            kinds[name] = "pictures"
        elif types.is_string(kind) or types.is_large_string(kind):
            kinds[name] = "texts"
    if column is not None and column not in kinds:
        raise InvalidInput(f"{path} has no column {column!r} of pictures or texts; such are {', '.join(kinds)}.")
    pictures = [name for name, kind in kinds.items() if kind == "pictures"]
    likely = [column] if column else [name for name in pictures if name in _PICTURES] or pictures or list(kinds)
    if len(likely) != 1:
        there = ", ".join(f"{name} ({kind})" for name, kind in kinds.items()) or "none"
        raise InvalidInput(f"{path}: which column holds the inputs? It has {there}; pass column='NAME'.")
    return likely[0], kinds[likely[0]] == "texts"


def _pixel_arrays(path: str) -> Items:
    """Pixels (n, height, width, channels), uint8, in an .npz or .npy file."""
    try:
        if path.lower().endswith(".npy"):
            arrays = {"images": np.load(path, mmap_mode="r", allow_pickle=False)}
        else:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as loaded:
                arrays = dict(loaded)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise FileFormatError(f"{path} is not a readable .npz or .npy file ({error}).") from error
    images = arrays.get("images", next(iter(arrays.values())) if len(arrays) == 1 else None)
    if images is None or images.ndim not in (3, 4) or images.dtype != np.uint8:
        there = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in arrays.items())
        raise InvalidInput(f"{path} must hold images, uint8 (n, height, width, channels); it holds {there}.")
    labels = arrays.get("labels")

    def between(start: int, stop: int) -> Iterator[Item]:
        for row in range(start, min(stop, len(images))):
            yield Item(f"row {row} of {path}", images[row], None if labels is None else int(labels[row]))

    return Items(path, len(images), between)


def opened_picture(item: Item) -> Any:
    """A picture of Pillow, read whole; as torchvision and timm, without turning it as the camera was held."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pictures need Pillow; pip install 'normscale[torch]'.") from None
    if isinstance(item.content, np.ndarray):
        pixels = item.content.squeeze(-1) if item.content.ndim == 3 and item.content.shape[2] == 1 else item.content
        return Image.fromarray(np.ascontiguousarray(pixels))
    try:
        with Image.open(item.content if isinstance(item.content, str) else io.BytesIO(item.content)) as picture:
            picture.load()
            if picture.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
                return Image.fromarray((np.asarray(picture).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
            return picture.convert("RGBA").convert("RGB") if "transparency" in picture.info else picture.copy()
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise FileFormatError(f"{item.name} cannot be read as a picture ({error}).") from error


def item_batches(
    items: Items,
    prepare: Callable[[Any], Any],
    rows: tuple[int, int],
    batch_size: int,
    workers: int,
    skipped: Callable[[str], object] | None,
) -> Iterator[Batch]:
    """Batches of inputs in the order of the items; threads prepare one batch while the network runs another.

    A picture that cannot be read raises, or is left out and its name given to ``skipped``.
    """
    chosen = iter(items.between(*rows))
    groups = iter(lambda: list(islice(chosen, batch_size)), [])
    if items.texts:
        yield from (_batch(group, prepare([item.content for item in group])) for group in groups)
        return
    with ThreadPoolExecutor(workers) as pool:  # Pillow releases the interpreter

        def begun(group: list[Item]) -> list[tuple[Item, Future[Any]]]:
            return [(item, pool.submit(lambda one: prepare(opened_picture(one)), item)) for item in group]

        try:
            for group, _ in pairwise(chain(map(begun, groups), [[]])):
                yield from _stacked(group, skipped)
        finally:
            pool.shutdown(cancel_futures=True)


def _stacked(group: list[tuple[Item, Future[Any]]], skipped: Callable[[str], object] | None) -> Iterator[Batch]:
    """The inputs that could be made, as a batch; none where there is no such input."""
    items: list[Item] = []
    inputs: list[NDArray[Any]] = []
    for item, future in group:
        try:
            inputs.append(np.asarray(future.result()))
            items.append(item)
        except FileFormatError as error:
            if skipped is None:
                raise FileFormatError(f'{error} Remove it, or pass on_invalid="skip".') from error
            skipped(str(error))
    for item, array in zip(items, inputs, strict=True):
        if array.shape != inputs[0].shape:
            raise InvalidInput(
                f"{item.name} became an input of shape {array.shape} and {items[0].name} one of "
                f"{inputs[0].shape}; the preprocessing must give all one size."
            )
    if inputs:
        yield _batch(items, np.stack(inputs))


def _batch(items: list[Item], inputs: Any) -> Batch:
    labels = [-1 if item.label is None else item.label for item in items]
    has_labels = any(item.label is not None for item in items)
    return Batch(inputs, np.array(labels) if has_labels else None, [item.path for item in items if item.path])
