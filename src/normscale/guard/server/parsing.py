"""The body of a request -> arrays, by the readers of :mod:`normscale.rows` and within their limits.

Everything that comes out may be trusted; everything else is a :class:`BadRequest` with a status and a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from normscale.errors import BodyRefused, InvalidInput
from normscale.guard.server.bad_request import BadRequest, Body, shown
from normscale.outputs import ModelOutputs
from normscale.rows.format import format_of_media_type
from normscale.rows.formats.json_rows import parse_nested
from normscale.rows.formats.npy import numbers_in, parse_header
from normscale.rows.reader import BodyLimits, parse_body

__all__ = ["ARROW_STREAM", "JSON", "NPY", "BadRequest", "read_inputs", "read_outputs"]

JSON = "application/json"
NPY = "application/x-npy"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
"""What a client gets back for its rows."""
_STATUS = {"damaged": 400, "too large": 413, "unknown format": 415, "rule": 422}


def read_outputs(
    body: Body, content_type: str | None, *, widths: Mapping[str, int], max_rows: int, finite: bool = True
) -> ModelOutputs:
    """Arrays by name out of the body of a request: each at least one row, float32 or float64, in C order.

    Every array of ``widths`` must come, and no others, in any format that has a media type: JSON (also where none is
    given, and any ``+json``), .npy, .npz, Arrow, and those that other packages register.

    ``finite=False`` leaves it to the reader of the rows to refuse NaN and infinity. Anything wrong is a
    :class:`BadRequest`.

    Examples
    --------
    >>> read_outputs(b'{"logits": [[1.0, -2.0], [0.5, 4.0]]}', None, widths={"logits": 2}, max_rows=100).logits
    array([[ 1. , -2. ],
           [ 0.5,  4. ]])
    >>> read_outputs(b'{"logits": [[1.0, -2.0, 7]]}', None, widths={"logits": 2}, max_rows=100)
    Traceback (most recent call last):
    ...
    normscale.guard.server.bad_request.BadRequest: "logits" row 0 must hold 2 numbers, one for each class; got 3.
    """
    try:
        arrays = parse_body(format_of_media_type(content_type, body), body, BodyLimits(widths, max_rows))
    except BodyRefused as error:
        raise BadRequest(_STATUS[error.reason], str(error)) from None
    arrays = {name: _as_floats(array) for name, array in arrays.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise BadRequest(422, f"every array must have one row for each input; got {found} rows.")
    if finite:
        for name, array in arrays.items():
            _require_finite(array, name)
    return ModelOutputs._trusted(arrays)


def _as_floats(rows: NDArray[Any]) -> NDArray[Any]:
    if rows.dtype.char in "fd":
        return rows
    return rows.astype(np.float32 if rows.dtype == np.float16 else np.float64)


def read_inputs(
    body: Body,
    content_type: str | None,
    *,
    shape: Sequence[int | None],
    dtype: DTypeLike,
    max_elements: int,
) -> NDArray[Any]:
    """A model's inputs out of the body of a request, ``{"inputs": nested lists}`` or .npy: (n, ...), finite, C order.

    ``shape`` is that of the model's input, its batch first, with None where any length will do; one input without the
    batch axis is a batch of one. Numbers become ``dtype`` when they keep their meaning: floats to floats, integers to
    floats, integers to integers that hold them.

    Examples
    --------
    >>> read_inputs(b'{"inputs": [[1, 2, 3]]}', None, shape=(None, 3), dtype="float32", max_elements=100)
    array([[1., 2., 3.]], dtype=float32)
    """
    wanted = np.dtype(dtype)
    if wanted.kind not in "fiu" or not len(shape):
        raise InvalidInput(f"the model's input must be an array of floats or integers; got {wanted} of shape {shape}.")
    try:
        format = format_of_media_type(content_type, body)
        if format.name == "json":
            array = parse_nested(body, len(shape), wanted, max_elements)
        elif format.name == "npy":
            array = _inputs_of_npy(body, len(shape), wanted, max_elements)
        else:
            raise BadRequest(415, f"inputs are taken as {JSON} or {NPY}; got {format.described}.")
    except BodyRefused as error:
        raise BadRequest(_STATUS[error.reason], str(error)) from None
    lengths = zip(array.shape, shape, strict=False)
    if array.ndim != len(shape) or any(wish is not None and length != wish for length, wish in lengths):
        wish = ", ".join("n" if length is None else str(length) for length in shape)
        raise BadRequest(422, f"the model takes inputs of shape ({wish}); got {shown(array.shape)}.")
    if not array.size:
        raise BadRequest(422, f"the body holds no inputs: its shape is {shown(array.shape)}.")
    if wanted.kind == "f":
        _require_finite(array, "inputs")
    return array


def _inputs_of_npy(body: Body, axes: int, wanted: np.dtype[Any], max_elements: int) -> NDArray[Any]:
    """A model's inputs of type ``wanted`` and with so many axes, the batch first, out of an .npy."""
    header = parse_header(body)
    count = math.prod(header.shape)
    if count > max_elements:
        raise BadRequest(413, f"{shown(count)} numbers in one request; at most {max_elements} are taken.")
    if header.dtype.kind == "f" and wanted.kind != "f":
        raise BadRequest(422, f"the model takes {wanted}; got {header.dtype.name}. Convert the inputs.")
    numbers = numbers_in(body, header)
    with np.errstate(over="ignore"):  # too large for the model's type: infinite, and refused as such
        array = numbers.astype(wanted, copy=False)
    if wanted.kind != "f" and not np.array_equal(array, numbers):
        raise BadRequest(422, f"the model takes {wanted}, which does not hold every number sent.")
    return array if array.ndim != axes - 1 else array[None]


def _require_finite(array: NDArray[Any], name: str) -> None:
    if np.isfinite(array.min()) and np.isfinite(array.max()):  # NaN is both
        return
    finite = np.isfinite(array)
    place = tuple(int(index) for index in np.unravel_index(int(np.argmin(finite)), array.shape))
    what = "NaN" if np.isnan(array[place]) else "infinity"
    where = f"row {place[0]} holds {what} in column {place[1]}" if array.ndim == 2 else f"hold {what} at {shown(place)}"
    raise BadRequest(422, f"{name} {where}; nothing was taken in. Drop it or find out why.")
