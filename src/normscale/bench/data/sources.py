"""Every data set by name: where it officially lies, how large it is, its checksum and terms; read from sources.json.

MD5 sums are torchvision's (a test compares them), SHA-256 and sizes TensorFlow Datasets'; TinyImageNet, which has no
published checksum, has those that public loaders agree on. Means and standard deviations are of the training pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscale._validate import named
from normscale.encoding.json_text import read_json
from normscale.errors import InvalidInput


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its address, its size, its checksum, and where below the set's folder it is kept."""

    path: str
    url: str
    size: int
    digest: str
    """MD5 (32 digits) or SHA-256 (64 digits)."""
    splits: tuple[str, ...] = ("train", "test")
    """Which splits need it."""

    def describe(self) -> str:
        """Size and checksum, for a person who fetches it by hand."""
        return f"{self.size} bytes, {'MD5' if len(self.digest) == 32 else 'SHA-256'} {self.digest}"


@dataclass(frozen=True)
class Source:
    """What is known of a data set before it is loaded."""

    name: str
    title: str
    images: dict[str, int]
    """Number of pictures of each split; empty for noise, which is as large as the set it is drawn for."""
    licence: str
    shape: tuple[int, int, int] | None = None
    """Height, width, channels; None where every photograph has its own size, or noise takes another set's."""
    homepage: str = ""
    files: tuple[RemoteFile, ...] = ()
    """Empty for what is embedded or drawn."""
    class_names: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    flip: bool = True
    """Whether a picture in the mirror is still of its class."""
    note: str = ""

    @property
    def kind(self) -> str:
        """``embedded``, ``noise`` or ``download``."""
        return "download" if self.files else "embedded" if self.images else "noise"

    def files_of(self, split: str) -> list[RemoteFile]:
        """The published files that a split needs."""
        return [file for file in self.files if split in file.splits]

    def checked_split(self, split: str | None) -> str:
        """The split, by default train where there is one, otherwise the only one; an error where it does not exist."""
        if split is None:
            return "train" if "train" in self.images or not self.images else next(iter(self.images))
        if split not in self.images:
            raise InvalidInput(f"{self.name} has no split {split!r}; it has {', '.join(map(repr, self.images))}.")
        return split


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}


def _source(record: dict[str, Any]) -> Source:
    files = tuple(RemoteFile(**_tuples(file)) for file in record.pop("files", ()))
    return Source(**_tuples(record), files=files)


_TABLE = Path(__file__).with_name("sources.json")
SOURCES: dict[str, Source] = {one["name"]: _source(one) for one in read_json(_TABLE.read_text(encoding="utf-8"))}


def list_sets() -> tuple[Source, ...]:
    """Every data set known by name.

    Examples
    --------
    >>> [source.name for source in list_sets() if source.kind == "embedded"]
    ['digits', 'fashion', 'letters', 'photos', 'surfaces']
    """
    return tuple(SOURCES.values())


def find_source(name: str) -> Source:
    """The record of a data set; a name that is not known is an error with the nearest one."""
    return named(name, SOURCES, "data set", ("npz:PATH", "folder:PATH"))


def short_name(source: str) -> str:
    """What a data set is called in files and tables."""
    _, colon, path = source.partition(":")
    return Path(path).stem if colon else source
