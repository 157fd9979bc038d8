"""JSON that every strict parser reads, with one spelling for the numbers JSON has no word for.

Infinity, minus infinity and NaN are written as the strings ``"Infinity"``, ``"-Infinity"`` and ``"NaN"``, as in
Protocol Buffers' JSON; ``float()`` in Python and ``Number()`` in JavaScript read them. A text that happens to be one
of these words gets a backslash in front, so that :func:`read_json` gives back exactly what :func:`write_json` took.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_NUMBERS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def write_json(value: Any, *, indent: int | None = None) -> str:
    r"""Write numbers, texts, lists and mappings (numpy's scalars among them) as JSON, in ASCII.

    Tuples become lists, keys become texts. With ``indent`` lines are broken and indented by that much.

    Examples
    --------
    >>> print(write_json({"prior_weight": float("inf"), "classes": ["cat", "NaN"]}))
    {"prior_weight": "Infinity", "classes": ["cat", "\\NaN"]}
    """
    return json.dumps(_spelled(value), indent=indent, allow_nan=False)


def read_json(text: str | bytes | bytearray, *, words: bool = True) -> Any:
    """Read what :func:`write_json` wrote, or any strict JSON; ``ValueError`` for anything else.

    With ``words=False``, for JSON of other writers, the three words stay texts.

    Examples
    --------
    >>> read_json('{"prior_weight": "Infinity"}')
    {'prior_weight': inf}
    """
    try:
        if not isinstance(text, str):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        document = _STRICT.decode(text)
        return _meant(document) if words else document
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def number_for_json(number: float) -> float | str:
    """A number as JSON has it: itself, or its word."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _spelled(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return number_for_json(value)
    if isinstance(value, str):
        return f"\\{value}" if value.lstrip("\\") in _NUMBERS else value
    if isinstance(value, Mapping):
        return {str(key): _spelled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spelled(item) for item in value]
    return value


def _meant(value: Any) -> Any:
    if isinstance(value, str):
        if value in _NUMBERS:
            return _NUMBERS[value]
        return value[1:] if value.startswith("\\") and value.lstrip("\\") in _NUMBERS else value
    if isinstance(value, dict):
        return {key: _meant(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_meant(item) for item in value]
    return value


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse)
