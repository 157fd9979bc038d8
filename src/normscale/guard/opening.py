"""Open a guard on a store by name: whatever is wrong with the detector is said before the store is made."""

from __future__ import annotations

import os

from normscale.detectors.base import Detector
from normscale.guard.detector_check import required_widths
from normscale.guard.guard import Guard
from normscale.guard.policy import Policy
from normscale.guard.stores import open_store


def open_guard(
    detector: Detector, where: str | os.PathLike[str], policy: Policy | None = None, *, adopt: bool = False
) -> Guard:
    """Open the store ``where`` (see :func:`open_store`) and the guard on it.

    With ``adopt`` a store of another detector with the same classes is taken over.

    A detector or policy that is refused leaves no store behind; a store that is refused is closed.
    """
    required_widths(detector)
    policy = (Policy() if policy is None else policy).checked()
    store = open_store(where)
    try:
        return Guard(detector, store, policy, adopt=adopt)
    except BaseException:
        store.close()
        raise
