"""Numbers in JSON, decoded straight into the one type they may have.

A typed decode refuses by itself what JSON or the type does not know: NaN, 1e400, null, strings, booleans, other
fields, lists nested deeper than the array has axes, a byte order mark, invalid UTF-8. Two things are left to do. A
repeated key would win over the first silently; where only numbers are allowed, quotes come from keys alone, so two of
them for each array mean that each key came once. And a list of numbers takes sixteen times the memory of its text: the
commas say how many there will be before one is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from normscale.outputs import LOGITS
from normscale.serve.bad_request import BadRequest, Body, shown


def read_arrays(body: Body, widths: Mapping[str, int], max_rows: int) -> dict[str, NDArray[np.float64]]:
    """``{"logits": [[...], ...], ...}``, or one row as ``{"logits": [...], ...}``; each of shape (n, its width).

    Examples
    --------
    >>> read_arrays(b'{"logits": [1, 2.5]}', {"logits": 2}, 10)
    {'logits': array([[1. , 2.5]])}
    """
    names = tuple(widths)
    document = _decoded(_rows_decoder(names), body, names, max_rows * sum(widths.values()))
    arrays = {name: _rows(getattr(document, name), name, widths[name]) for name in names}
    require_equal_rows(arrays)
    return arrays


def require_equal_rows(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse arrays that do not have one row for each input."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise BadRequest(422, f"every array must have one row for each input; got {found} rows.")


def _rows(numbers: list[Any], name: str, width: int) -> NDArray[np.float64]:
    """The rows of an array, or its only row, as (n, width)."""
    is_row = bool(numbers) and type(numbers[0]) is float
    rows = [numbers] if is_row else numbers
    if not rows:
        raise BadRequest(422, f'"{name}" holds no rows; at least one is needed.')
    try:
        if set(map(len, rows)) == {width}:
            return np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * width).reshape(-1, width)
        bad = next(index for index, row in enumerate(rows) if len(row) != width)
    except (TypeError, ValueError):
        raise BadRequest(
            422, f'"{name}" must be one row of {width} numbers or a list of such rows, not a mix.'
        ) from None
    where, each = "" if is_row else f" row {bad}", ", one for each class" if name == LOGITS else ""
    raise BadRequest(422, f'"{name}"{where} must hold {width} numbers{each}; got {len(rows[bad])}.')


def read_inputs_array(body: Body, axes: int, dtype: DTypeLike, max_elements: int) -> NDArray[Any]:
    """``{"inputs": ...}`` with lists nested ``axes`` deep, or one level less for a single input.

    Examples
    --------
    >>> read_inputs_array(b'{"inputs": [[1, 2], [3, 4]]}', 2, "float32", 10)
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    number_type = float if np.dtype(dtype).kind == "f" else int
    # The text itself says how deep it is; a decoder for any depth would have to look at every number for its type.
    depth = _depth(body, axes)
    inputs = _decoded(_inputs_decoder(depth, number_type), body, ("inputs",), max_elements).inputs
    try:
        with np.errstate(over="ignore"):  # too large for the model's type: infinite, and refused as such
            array = np.array(inputs, dtype=dtype)
    except ValueError:
        raise BadRequest(422, '"inputs" holds lists of unequal length; every input must have the same shape.') from None
    except OverflowError:
        raise BadRequest(422, f'"inputs" holds a number outside {np.dtype(dtype)}, which the model takes.') from None
    return array if depth == axes else array[None]


def _decoded(decoder: msgspec.json.Decoder[Any], body: Body, names: tuple[str, ...], max_elements: int) -> Any:
    if body.count(b",") >= max_elements + len(names) - 1:
        raise BadRequest(413, f"more than {max_elements} numbers in one request. Send them in parts.")
    try:
        document = decoder.decode(body)
    except msgspec.ValidationError as error:
        wanted = ", ".join(f'"{name}": [numbers]' for name in names)
        raise BadRequest(422, f"the body must be {{{wanted}}}: {shown(error)}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(400, f"the body is not JSON: {shown(error)}.") from None
    if body.count(b'"') != 2 * len(names):
        quoted = " or ".join(f'"{name}"' for name in names)
        raise BadRequest(422, f"the body names {quoted} more than once; name it once.")
    return document


def _depth(body: Body, axes: int) -> int:
    """How deep the lists of a document with one field are nested, as far as that matters: ``axes`` or one less."""
    start = body.find(b"[")
    opening = body[start : start + 64 * axes].translate(None, b" \t\r\n") if start >= 0 else b""
    return axes - 1 if axes > 1 and len(opening) - len(opening.lstrip(b"[")) == axes - 1 else axes


@lru_cache(maxsize=8)
def _rows_decoder(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    fields: list[Any] = [(name, list[float | list[float]]) for name in names]
    return msgspec.json.Decoder(msgspec.defstruct("Outputs", fields, forbid_unknown_fields=True))


@lru_cache(maxsize=64)
def _inputs_decoder(depth: int, number_type: type) -> msgspec.json.Decoder[Any]:
    nested: Any = number_type
    for _ in range(depth):
        nested = list[nested]
    return msgspec.json.Decoder(msgspec.defstruct("Inputs", [("inputs", nested)], forbid_unknown_fields=True))
