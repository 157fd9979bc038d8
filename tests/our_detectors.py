"""The detectors of this package; test modules register some of their own beside them."""

from __future__ import annotations

from normscale.detectors.registry import detector_class, list_detectors

OUR_DETECTORS = [name for name in list_detectors() if detector_class(name).__module__.startswith("normscale.")]
