"""What a reader is asked for and what it gives; one reader per data set, listed in ``sources.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from normscale._validate import IntArray
from normscale.data.image_set import Images


@dataclass(frozen=True)
class SplitRequest:
    """Read ``split`` from the files in ``folder``; photographs of any size are made ``height`` x ``width``."""

    folder: Path
    split: str
    height: int
    width: int

    def path(self, name: str) -> Path:
        """Where a downloaded file lies."""
        return self.folder / name


@dataclass(frozen=True)
class Content:
    """Images of shape (n, height, width, channels), labels of shape (n,), and names where the archive has them."""

    images: Images
    labels: IntArray
    class_names: tuple[str, ...] | None = None


Reader: TypeAlias = Callable[[SplitRequest], Content]
