"""The JSON body of a request: ``{"logits": [[...], ...], ...}``, decoded straight into the one type it may have.

A typed decode refuses by itself what JSON or the type does not know: NaN, 1e400, null, strings, booleans, other
fields, lists nested deeper than the array has axes, a byte order mark, invalid UTF-8. Two things are left to do. A
repeated key would win over the first silently; where only numbers are allowed, quotes come from keys alone, so two of
them for each array mean that each key came once. And a list of numbers takes sixteen times the memory of its text: the
commas say how many there will be before one is made.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from normscale.errors import BodyRefused, InvalidInput
from normscale.outputs import LOGITS
from normscale.rows.format import ArrayMap, Body, BodyLimits, TableFormat, quoted, register_format
from normscale.rows.reader import ReadOptions, TableReader
from normscale.rows.source import ByteSource

if TYPE_CHECKING:
    import msgspec


@register_format
class Json(TableFormat):
    """One object with a list of rows, or one row, for each array."""

    name, described = "json", "a JSON body"
    media_types = ("application/json",)

    def open(self, source: ByteSource, options: ReadOptions) -> TableReader:
        """Refuse: a file is read line by line."""
        raise InvalidInput(f"{source.shown}: a file holds one object a line (.jsonl).")

    def parse(self, body: Body, limits: BodyLimits) -> ArrayMap:
        """Each array of shape (n, its width)."""
        names = tuple(limits.widths)
        document = _decoded(_rows_decoder(names), body, names, limits.rows * sum(limits.widths.values()))
        return {name: _rows(getattr(document, name), name, limits.widths[name]) for name in names}


def _rows(numbers: list[Any], name: str, width: int) -> NDArray[np.float64]:
    """The rows of an array, or its only row, as (n, width)."""
    is_row = bool(numbers) and type(numbers[0]) is float
    rows = [numbers] if is_row else numbers
    if not rows:
        raise BodyRefused("rule", f'"{name}" holds no rows; at least one is needed.')
    try:
        if set(map(len, rows)) == {width}:
            return np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * width).reshape(-1, width)
        bad = next(index for index, row in enumerate(rows) if len(row) != width)
    except (TypeError, ValueError):
        raise BodyRefused(
            "rule", f'"{name}" must be one row of {width} numbers or a list of such rows, not a mix.'
        ) from None
    where, each = "" if is_row else f" row {bad}", ", one for each class" if name == LOGITS else ""
    raise BodyRefused("rule", f'"{name}"{where} must hold {width} numbers{each}; got {len(rows[bad])}.')


def parse_nested(body: Body, axes: int, dtype: DTypeLike, max_elements: int) -> NDArray[Any]:
    """``{"inputs": ...}`` with lists nested ``axes`` deep, or one level less for a single input.

    Examples
    --------
    >>> parse_nested(b'{"inputs": [[1, 2], [3, 4]]}', 2, "float32", 10)
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
        raise BodyRefused("rule", '"inputs" holds lists of unequal length; all must have the same shape.') from None
    except OverflowError:
        raise BodyRefused("rule", f'"inputs" holds a number outside {np.dtype(dtype)}.') from None
    return array if depth == axes else array[None]


def _decoded(decoder: msgspec.json.Decoder[Any], body: Body, names: tuple[str, ...], max_elements: int) -> Any:
    import msgspec

    if body.count(b",") >= max_elements + len(names) - 1:
        raise BodyRefused("too large", f"more than {max_elements} numbers in one request. Send them in parts.")
    try:
        document = decoder.decode(body)
    except msgspec.ValidationError as error:
        wanted = ", ".join(f'"{name}": [numbers]' for name in names)
        raise BodyRefused("rule", f"the body must be {{{wanted}}}: {quoted(error)}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyRefused("damaged", f"the body is not JSON: {quoted(error)}.") from None
    if body.count(b'"') != 2 * len(names):
        keys = " or ".join(f'"{name}"' for name in names)
        raise BodyRefused("rule", f"the body names {keys} more than once; name it once.")
    return document


def _depth(body: Body, axes: int) -> int:
    """How deep the lists of a document with one field are nested, as far as that matters: ``axes`` or one less."""
    start = body.find(b"[")
    opening = body[start : start + 64 * axes].translate(None, b" \t\r\n") if start >= 0 else b""
    return axes - 1 if axes > 1 and len(opening) - len(opening.lstrip(b"[")) == axes - 1 else axes


@lru_cache(maxsize=8)
def _rows_decoder(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    import msgspec

    fields: list[Any] = [(name, list[float | list[float]]) for name in names]
    return msgspec.json.Decoder(msgspec.defstruct("Outputs", fields, forbid_unknown_fields=True))


@lru_cache(maxsize=64)
def _inputs_decoder(depth: int, number_type: type) -> msgspec.json.Decoder[Any]:
    import msgspec

    nested: Any = number_type
    for _ in range(depth):
        nested = list[nested]
    return msgspec.json.Decoder(msgspec.defstruct("Inputs", [("inputs", nested)], forbid_unknown_fields=True))
