"""What the shell offers where a name is typed."""

from __future__ import annotations

from normscale.detectors.choosing import AUTO
from normscale.detectors.registry import list_detectors


def complete_detector(incomplete: str) -> list[str]:
    """Names of detectors that begin as typed; behind a ``+`` those that may score."""
    before, plus, last = incomplete.rpartition("+")
    names = list_detectors() if plus else [AUTO, *list_detectors()]
    return [f"{before}{plus}{name}" for name in names if name.startswith(last)]
