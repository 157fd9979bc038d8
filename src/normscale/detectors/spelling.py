"""How a detector is typed, with its parameters and with what follows it: ``react:percentile=90+energy``.

One grammar for every place that takes a detector as text. A name, then ``:parameter=value`` for each parameter, then
``+`` and the detector that scores what a step made, with parameters of its own::

    knn:k=20
    react:percentile=90+energy:temperature=2
    mahalanobis:layers=stage1,features
"""

from __future__ import annotations

from typing import Any, NamedTuple

from normscale.errors import InvalidInput

JOIN, BEFORE_PARAMETER, EQUALS, BETWEEN_VALUES = "+", ":", "=", ","
_WORDS = {"true": True, "false": False, "none": None}


class SpelledDetector(NamedTuple):
    """One detector of a spelling."""

    name: str
    parameters: dict[str, Any]


def read_spelling(text: str) -> list[SpelledDetector]:
    """The detectors that a text names, the first step first.

    Values that look like numbers are numbers (``inf`` too); ``true``, ``false`` and ``none`` are what Python has for
    them; several values with commas between them are a list; all else is a word.

    Parameters
    ----------
    text : str

    Raises
    ------
    InvalidInput
        Where something between two ``:`` is not ``parameter=value``.

    Examples
    --------
    >>> read_spelling("react:percentile=90+energy")
    [SpelledDetector(name='react', parameters={'percentile': 90}), SpelledDetector(name='energy', parameters={})]
    >>> read_spelling("mahalanobis:layers=stage1,features:shrinkage=1e-3")[0].parameters
    {'layers': ['stage1', 'features'], 'shrinkage': 0.001}
    """
    parts = []
    for typed in str(text).split(JOIN):
        name, *pairs = typed.split(BEFORE_PARAMETER)
        if not name.strip():
            raise InvalidInput(f"a detector's name is missing in {text!r}; write NAME, NAME:parameter=value or A+B.")
        parts.append(SpelledDetector(name.strip(), dict(_read_pair(pair, text) for pair in pairs)))
    return parts


def _read_pair(pair: str, text: str) -> tuple[str, Any]:
    name, equals, value = pair.partition(EQUALS)
    if not name or not equals or not value:
        raise InvalidInput(
            f"parameters of a detector look like NAME:parameter=value; got {pair!r} in {text!r}. For example knn:k=20."
        )
    values = [_read_value(one) for one in value.split(BETWEEN_VALUES)]
    return name, values if len(values) > 1 else values[0]


def _read_value(text: str) -> Any:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return _WORDS.get(text.lower(), text)
