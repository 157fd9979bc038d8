"""What the shell offers where a name is typed."""

from __future__ import annotations

from normscale.detectors.registry import list_detectors


def complete_detector(incomplete: str) -> list[str]:
    """Names of detectors that begin as typed; behind a ``+`` those that may score."""
    before, plus, last = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in list_detectors() if name.startswith(last)]
