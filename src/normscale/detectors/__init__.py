"""Detectors: one per file, all with the contract of :class:`~normscale.detectors.base.Detector`.

``__init__.pyi`` lists the public names, one a line, for type checkers and for this module. Each is loaded when first
used (PEP 562), so that ``import normscale`` stays light.
"""

from importlib import import_module
from typing import Any

_LISTED = [line.split() for line in __loader__.get_data(f"{__file__}i").decode().splitlines() if line[:5] == "from "]
_HOME_OF = {words[-1]: words[1] for words in _LISTED}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Load a public name from its module the first time it is asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'normscale.detectors' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOME_OF[name]), name)
    return value
