"""Data sets: by name with their official sources, downloads, formats, noise, your own pictures, and batches.

``load`` and ``list_sets`` need numpy alone; picture files need Pillow, :class:`Batches` needs torch
(``pip install 'normscale[torch]'`` brings both), published sets need torchvision (``'normscale[data]'``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normscale.bench.data.image_set import ImageSet, channel_moments
from normscale.bench.data.loading import data_root, get, is_here, load
from normscale.bench.data.own_data import from_folder, from_npz, from_torch
from normscale.bench.data.published_sets import DownloadFailed
from normscale.bench.data.sources import Source, find_source, list_sets, short_name

if TYPE_CHECKING:
    from normscale.bench.data.batches import Batches

__all__ = [
    "Batches",
    "DownloadFailed",
    "ImageSet",
    "Source",
    "channel_moments",
    "data_root",
    "find_source",
    "from_folder",
    "from_npz",
    "from_torch",
    "get",
    "is_here",
    "list_sets",
    "load",
    "short_name",
]


def __getattr__(name: str) -> Any:
    """Load torch only when batches are asked for."""
    if name == "Batches":
        from normscale.bench.data.batches import Batches

        return Batches
    raise AttributeError(f"module 'normscale.bench.data' has no attribute {name!r}")
