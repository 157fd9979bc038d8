"""Pictures and texts in folders and files: which there are, in what order, and batches of inputs made of them."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.picture_files import PICTURE_SUFFIXES
from normscale.errors import FileFormatError, InvalidInput, MissingExtra
from normscale.extraction.batch_reader import Batch
from normscale.rows import need_arrow

if TYPE_CHECKING:
    from PIL import Image

    from normscale.extraction.preprocessing import Prepare

_PICTURES = ("image", "img", "picture")
_LABELS = ("label", "labels", "target", "class")


class Item(NamedTuple):
    """A picture (bytes, path or pixels) or a text."""

    name: str
    """What messages call it."""
    content: Any
    label: int | None


class Items(ABC):
    """Pictures or texts in a fixed order."""

    texts: ClassVar[bool] = False
    class_names: tuple[str, ...] | None = None
    """What the labels number, where they come from names of folders."""

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def __len__(self) -> int:
        """Return how many there are."""

    @abstractmethod
    def between(self, start: int, stop: int) -> Iterator[Item]:
        """Some of them, in order."""

    @property
    def stamp(self) -> list[Any]:
        """What tells that these are other items than before: names, number, size and time of files."""
        return [os.path.abspath(self.path), len(self), *_stat(self.path)]


class PictureFolder(Items):
    """Picture files below a folder in the order of their names; a folder in it is a class."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        there = os.listdir(path)
        classes = sorted(one for one in there if os.path.isdir(os.path.join(path, one)) and not one.startswith("."))
        self._files = [(file, number) for number, name in enumerate(classes) for file in _pictures(path, name)]
        self.class_names = tuple(classes) if self._files else None
        if not self._files:
            self._files = [(file, -1) for file in _pictures(path, "")]
        elif any(map(_is_picture, there)):
            raise InvalidInput(f"{path} holds both pictures and folders of pictures; are the folders its classes?")
        if not self._files:
            raise InvalidInput(f"{path} holds no pictures ({', '.join(PICTURE_SUFFIXES)}) and no .parquet files.")

    def __len__(self) -> int:
        return len(self._files)

    def between(self, start: int, stop: int) -> Iterator[Item]:
        for file, number in self._files[start:stop]:
            yield Item(file, file, None if self.class_names is None else number)

    @property
    def stamp(self) -> list[Any]:
        return [*super().stamp, _digest(os.path.relpath(file, self.path) for file, _ in self._files)]


class ParquetColumn(Items):
    """A column of pictures (bytes, or Hugging Face's ``{bytes, path}``) or texts in one Parquet file or several."""

    def __init__(self, path: str, files: list[str], column: str | None, label: str | None) -> None:
        super().__init__(path)
        parquet = need_arrow("pyarrow.parquet", path)
        arrow = need_arrow("pyarrow", path)
        try:
            self._files = [parquet.ParquetFile(file) for file in files]
        except (OSError, arrow.ArrowException) as error:
            raise FileFormatError(f"{path} is not a readable Parquet file ({error}).") from error
        self._counts = [file.metadata.num_rows for file in self._files]
        schema = self._files[0].schema_arrow
        kinds = {name: _content_kind(schema.field(name).type, arrow.types) for name in schema.names}
        self.column = _chosen_column(path, {name: kind for name, kind in kinds.items() if kind}, column)
        self.texts = kinds[self.column] == "texts"  # type: ignore[misc]
        whole = [name for name in schema.names if arrow.types.is_integer(schema.field(name).type)]
        self.label = label or next((name for name in _LABELS if name in whole), None)
        if self.label is not None and self.label not in whole:
            raise InvalidInput(f"{path}: the label column {self.label!r} must hold whole numbers; such are {whole}.")

    def __len__(self) -> int:
        return sum(self._counts)

    def between(self, start: int, stop: int) -> Iterator[Item]:
        return islice(self._from(start), max(0, min(stop, len(self)) - start))

    def _from(self, start: int) -> Iterator[Item]:
        """All items from a row on; whole row groups before it are not read."""
        columns = [self.column, *([] if self.label is None else [self.label])]
        at = 0
        for file in self._files:
            for group in range(file.metadata.num_row_groups):
                n = file.metadata.row_group(group).num_rows
                if at + n > start:
                    for batch in file.iter_batches(256, row_groups=[group], columns=columns):
                        contents = batch.column(0).to_pylist() if at + batch.num_rows > start else []
                        labels = [None] * batch.num_rows if self.label is None else batch.column(1).to_pylist()
                        for row, content in enumerate(contents):
                            if at + row >= start:
                                yield Item(*self._item(at + row, content), labels[row])
                        at += batch.num_rows
                else:
                    at += n

    def _item(self, row: int, content: Any) -> tuple[str, Any]:
        name = f"row {row} of {self.path}"
        if isinstance(content, dict):
            name = f"{name} ({content['path']})" if content.get("path") else name
            content = content.get("bytes")
        if content is None:
            content = "" if self.texts else b""
        return name, content


class PixelArrays(Items):
    """Pixels (n, height, width, channels), uint8, in an .npz or .npy file."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
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
            raise InvalidInput(
                f"{path} must hold images, uint8 (n, height, width, channels); it holds {_shown(arrays)}."
            )
        self._images, self._labels = images, arrays.get("labels")

    def __len__(self) -> int:
        return len(self._images)

    def between(self, start: int, stop: int) -> Iterator[Item]:
        for row in range(start, min(stop, len(self))):
            label = None if self._labels is None else int(self._labels[row])
            yield Item(f"row {row} of {self.path}", self._images[row], label)


class LinesOfText(Items):
    """A text file with a text in every line."""

    texts = True

    def __init__(self, path: str) -> None:
        super().__init__(path)
        with open(path, encoding="utf-8") as file:
            self._lines = file.read().splitlines()

    def __len__(self) -> int:
        return len(self._lines)

    def between(self, start: int, stop: int) -> Iterator[Item]:
        for row, line in enumerate(self._lines[start:stop], start):
            yield Item(f"line {row + 1} of {self.path}", line, None)


def open_items(path: str, *, column: str | None = None, label: str | None = None) -> Items:
    """Pictures or texts by path: a folder of pictures, .parquet files, .npz, .npy or .txt."""
    suffix = os.path.splitext(path)[1].lower()
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
        tables = [os.path.join(path, one) for one in names if one.endswith(".parquet") and one[0] not in "._"]
        items: Items = ParquetColumn(path, tables, column, label) if tables else PictureFolder(path)
    elif not os.path.exists(path):
        raise InvalidInput(f"there is no file or folder {path}.")
    elif suffix == ".parquet":
        items = ParquetColumn(path, [path], column, label)
    elif suffix in (".npz", ".npy"):
        items = PixelArrays(path)
    elif suffix == ".txt":
        items = LinesOfText(path)
    else:
        raise InvalidInput(f"{path} is no folder of pictures and no .parquet, .npz, .npy or .txt file.")
    if not len(items):
        raise InvalidInput(f"{path} holds no inputs; at least one is needed.")
    return items


def opened_picture(item: Item) -> Image.Image:
    """A picture, read whole; as torchvision and timm, without turning it as the camera was held."""
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
        raise FileFormatError(
            f'{item.name} cannot be read as a picture ({error}). Remove it, or pass on_invalid="skip".'
        ) from error


def item_batches(
    items: Items,
    prepare: Prepare,
    *,
    start: int = 0,
    stop: int | None = None,
    batch_size: int,
    workers: int = 1,
    skipped: Callable[[str], object] | None = None,
) -> Iterator[Batch]:
    """Batches of inputs in the order of the items, made by threads ahead of the network.

    A picture that cannot be read raises, or is left out and its name given to ``skipped``.
    """
    make: Any = prepare
    chosen = items.between(start, len(items) if stop is None else stop)
    if items.texts:
        while group := list(islice(chosen, batch_size)):
            yield Batch(make([item.content for item in group]), _labels(group))
        return
    waiting: list[tuple[Item, NDArray[Any]]] = []
    for item, made in _ahead(chosen, make, workers, 2 * batch_size):
        try:
            waiting.append((item, made.result()))
        except FileFormatError as error:
            if skipped is None:
                raise
            skipped(f"{item.name}: {error}")
        if len(waiting) == batch_size:
            yield _stacked(waiting)
            waiting = []
    if waiting:
        yield _stacked(waiting)


def _ahead(items: Iterable[Item], prepare: Any, workers: int, most: int) -> Iterator[tuple[Item, Future[Any]]]:
    """Prepare items in threads (Pillow releases the interpreter), in their order."""
    with ThreadPoolExecutor(workers) as pool:
        under_way: deque[tuple[Item, Future[Any]]] = deque()
        try:
            for item in items:
                under_way.append((item, pool.submit(lambda one: prepare(opened_picture(one)), item)))
                if len(under_way) >= most:
                    yield under_way.popleft()
            while under_way:
                yield under_way.popleft()
        finally:
            for _, future in under_way:
                future.cancel()


def _stacked(waiting: list[tuple[Item, Any]]) -> Batch:
    arrays = [np.asarray(array) for _, array in waiting]
    for (item, _), array in zip(waiting, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise InvalidInput(
                f"{item.name} became an input of shape {array.shape} and {waiting[0][0].name} one of "
                f"{arrays[0].shape}; the preprocessing must give all one size."
            )
    return Batch(np.stack(arrays), _labels([item for item, _ in waiting]))


def _labels(items: list[Item]) -> NDArray[np.int64] | None:
    if all(item.label is None for item in items):
        return None
    return np.array([-1 if item.label is None else item.label for item in items], dtype=np.int64)


def _content_kind(kind: Any, types: Any) -> str | None:
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "pictures"
    if types.is_struct(kind) and any(kind.field(i).name == "bytes" for i in range(kind.num_fields)):
        return "pictures"
    return "texts" if types.is_string(kind) or types.is_large_string(kind) else None


def _chosen_column(path: str, kinds: dict[str, str], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in kinds:
            raise InvalidInput(f"{path} has no column {wanted!r} of pictures or texts; such are {', '.join(kinds)}.")
        return wanted
    pictures = [name for name, kind in kinds.items() if kind == "pictures"]
    likely = [name for name in pictures if name in _PICTURES] or pictures or list(kinds)
    if len(likely) != 1:
        there = ", ".join(f"{name} ({kind})" for name, kind in kinds.items()) or "none"
        raise InvalidInput(f"{path}: which column holds the inputs? It has {there}; pass column='NAME'.")
    return likely[0]


def _pictures(root: str, below: str) -> list[str]:
    """Picture files anywhere below a folder, in a fixed order; links to folders are not followed."""
    found = []
    for parent, folders, files in os.walk(os.path.join(root, below)):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [os.path.join(parent, name) for name in sorted(files) if _is_picture(name)]
    return found


def _is_picture(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(PICTURE_SUFFIXES)


def _stat(path: str) -> list[int]:
    found = os.stat(path)
    return [] if os.path.isdir(path) else [found.st_size, found.st_mtime_ns]


def _digest(names: Iterable[str]) -> str:
    import hashlib

    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def _shown(arrays: dict[str, Any]) -> str:
    return ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in arrays.items())
