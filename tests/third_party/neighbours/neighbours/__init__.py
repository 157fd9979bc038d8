"""Two detectors that are not normscale's: the entry point leads here, and importing them registers them."""

from neighbours.knn import NearestNeighbours
from neighbours.vim import VirtualLogit

__all__ = ["NearestNeighbours", "VirtualLogit"]
