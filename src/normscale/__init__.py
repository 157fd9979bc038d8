"""normscale tells, for every answer of a classifier, whether the input was one it was trained for.

>>> import normscale as ns
>>> sample = ns.load_sample()
>>> detector = ns.NormScaling().fit(sample.train).set_threshold(sample.validation, keep=0.95)
>>> scores = detector.score(sample.test)          # higher = more out-of-distribution
>>> is_ood = detector.predict(sample.test)        # True = not what the classifier was trained for

The public names are listed in ``__init__.pyi`` and loaded when first used (PEP 562), so that ``import normscale`` costs
next to nothing.
"""

from importlib import import_module
from typing import Any

from normscale import detectors as _detectors

_LISTED = [line.split() for line in __loader__.get_data(f"{__file__}i").decode().splitlines() if " as " in line]
_HOME_OF = {words[-1]: words[1] for words in _LISTED} | dict.fromkeys(_detectors._HOME_OF, "normscale.detectors")

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Load a public name from its module the first time it is asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'normscale' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not, and what every module has."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
