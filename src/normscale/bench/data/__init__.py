"""Data sets: by name with their official sources, downloads, noise, and your own pictures.

``load`` and ``list_sets`` need numpy alone; picture files need Pillow, ``batches`` needs torch
(``pip install 'normscale[torch]'`` brings both), published sets need torchvision (``'normscale[data]'``).
"""

from normscale.bench.data.image_set import ImageSet, channel_moments
from normscale.bench.data.loading import data_root, from_folder, from_npz, get, is_here, load
from normscale.bench.data.published_sets import DownloadFailed
from normscale.bench.data.sources import Source, find_source, list_sets, short_name

__all__ = [
    "DownloadFailed",
    "ImageSet",
    "Source",
    "channel_moments",
    "data_root",
    "find_source",
    "from_folder",
    "from_npz",
    "get",
    "is_here",
    "list_sets",
    "load",
    "short_name",
]
