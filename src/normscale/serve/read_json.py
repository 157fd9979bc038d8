"""Numbers in JSON, decoded straight into the one type they may have.

A typed decode refuses by itself what JSON or the type does not know: NaN, 1e400, null, strings, booleans, other
fields, lists nested deeper than the array has axes, a byte order mark, invalid UTF-8. Two things are left to do. A
repeated key would win over the first silently; where only numbers are allowed, quotes come from keys alone, so two of
them mean one key. And a list of numbers takes sixteen times the memory of its text: the commas say how many there will
be before one is made.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from normscale.serve.bad_request import BadRequest, Body, shown


class _Logits(msgspec.Struct, forbid_unknown_fields=True):
    logits: list[float | list[float]]


_LOGITS = msgspec.json.Decoder(_Logits)


def read_logits(body: Body, width: int, max_rows: int) -> NDArray[np.float64]:
    """``{"logits": [[...], ...]}``, or one row as ``{"logits": [...]}``; shape (n, width).

    Examples
    --------
    >>> read_logits(b'{"logits": [1, 2.5]}', 2, 10)
    array([[1. , 2.5]])
    """
    logits = _decoded(_LOGITS, body, "logits", max_rows * width).logits
    try:
        return _one_row(logits, width) if logits and type(logits[0]) is float else _all_rows(logits, width)
    except (TypeError, ValueError):
        raise BadRequest(
            422, f'"logits" must be one row of {width} numbers or a list of such rows, not a mix.'
        ) from None


def read_array(body: Body, axes: int, dtype: DTypeLike, max_elements: int) -> NDArray[Any]:
    """``{"inputs": ...}`` with lists nested ``axes`` deep, or one level less for a single input.

    Examples
    --------
    >>> read_array(b'{"inputs": [[1, 2], [3, 4]]}', 2, "float32", 10)
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    kind = float if np.dtype(dtype).kind == "f" else int
    # The text itself says how deep it is; a decoder for any depth would have to look at every number for its type.
    depth = _depth(body, axes)
    inputs = _decoded(_inputs_decoder(depth, kind), body, "inputs", max_elements).inputs
    try:
        with np.errstate(over="ignore"):  # too large for the model's type: infinite, and refused as such
            array = np.array(inputs, dtype=dtype)
    except ValueError:
        raise BadRequest(422, '"inputs" holds lists of unequal length; every input must have the same shape.') from None
    except OverflowError:
        raise BadRequest(422, f'"inputs" holds a number outside {np.dtype(dtype)}, which the model takes.') from None
    return array if depth == axes else array[None]


def _decoded(decoder: msgspec.json.Decoder[Any], body: Body, field: str, max_elements: int) -> Any:
    if body.count(b",") >= max_elements:
        raise BadRequest(413, f"more than {max_elements} numbers in one request. Send them in parts.")
    try:
        document = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(422, f'the body must be {{"{field}": [numbers]}}: {shown(error)}.') from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(400, f"the body is not JSON: {shown(error)}.") from None
    if body.count(b'"') != 2:
        raise BadRequest(422, f'the body names "{field}" more than once; name it once.')
    return document


def _one_row(numbers: list[Any], width: int) -> NDArray[np.float64]:
    if len(numbers) != width:
        raise BadRequest(422, f'"logits" must hold {width} numbers, one for each class; got {len(numbers)}.')
    return np.array([numbers], dtype=np.float64)


def _all_rows(rows: list[Any], width: int) -> NDArray[np.float64]:
    if not rows:
        raise BadRequest(422, '"logits" holds no rows; at least one is needed.')
    lengths = set(map(len, rows))
    if lengths != {width}:
        bad = next(index for index, row in enumerate(rows) if len(row) != width)
        raise BadRequest(
            422, f'"logits" row {bad} must hold {width} numbers, one for each class; got {len(rows[bad])}.'
        )
    count = len(rows) * width
    return np.fromiter(chain.from_iterable(rows), np.float64, count).reshape(-1, width)


def _depth(body: Body, axes: int) -> int:
    """How deep the lists of a document with one field are nested, as far as that matters: ``axes`` or one less."""
    start = body.find(b"[")
    opening = body[start : start + 64 * axes].translate(None, b" \t\r\n") if start >= 0 else b""
    return axes - 1 if axes > 1 and len(opening) - len(opening.lstrip(b"[")) == axes - 1 else axes


@lru_cache(maxsize=64)
def _inputs_decoder(depth: int, kind: type) -> msgspec.json.Decoder[Any]:
    nested: Any = kind
    for _ in range(depth):
        nested = list[nested]
    return msgspec.json.Decoder(msgspec.defstruct("Inputs", [("inputs", nested)], forbid_unknown_fields=True))
