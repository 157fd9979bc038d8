"""The body of a request -> arrays: JSON, .npy, .npz or Arrow, strictly, with memory bounded by what is allowed.

Everything that comes out may be trusted; everything else is a :class:`BadRequest` with a status and a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from normscale.encoding.npy_header import MAGIC as NPY_MAGIC
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs
from normscale.serve.bad_request import BadRequest, Body, shown
from normscale.serve.read_arrow import read_arrow
from normscale.serve.read_json import read_arrays, read_inputs_array, require_equal_rows
from normscale.serve.read_npy import ZIP_MAGIC, read_inputs_of_npy, read_members, read_rows

__all__ = ["ARROW_FILE", "ARROW_STREAM", "JSON", "NPY", "NPZ", "BadRequest", "read_inputs", "read_outputs"]

JSON = "application/json"
NPY = "application/x-npy"
NPZ = "application/x-npz"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
ARROW_FILE = "application/vnd.apache.arrow.file"


def read_outputs(
    body: Body, content_type: str | None, *, widths: Mapping[str, int], max_rows: int, finite: bool = True
) -> ModelOutputs:
    """Arrays by name out of the body of a request: each at least one row, float32 or float64, in C order.

    Every array of ``widths`` must come, and no others. By content type:

    * JSON (also where none is given, and any ``+json``): ``{"logits": [[...], ...]}``, or one row as ``[...]``, with a
      field for every array
    * ``application/x-npz``: a file of ``numpy.savez``; ``application/x-npy``: logits alone, of shape (n, width) or
      (width,); ``application/octet-stream`` when it begins like one of the two
    * Arrow, a stream or a file: a float column for every class, or one column of lists called ``logits``; any other
      array is a column of lists

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
    normscale.serve.bad_request.BadRequest: "logits" row 0 must hold 2 numbers, one for each class; got 3.
    """
    form = _format(body, content_type)
    if form == JSON:
        return ModelOutputs._trusted(read_arrays(body, widths, max_rows))  # no JSON number is infinite
    if form == NPY:
        if list(widths) != [LOGITS]:
            raise BadRequest(
                415, f"a .npy holds logits alone, and {' and '.join(widths)} are needed; send {NPZ}, {JSON} or Arrow."
            )
        arrays = {LOGITS: read_rows(body, LOGITS, widths[LOGITS], max_rows)}
    elif form == NPZ:
        members = read_members(body, widths)
        arrays = {name: read_rows(members[name], name, width, max_rows) for name, width in widths.items()}
    else:
        arrays = read_arrow(body, is_file=form == ARROW_FILE, widths=widths, max_rows=max_rows)
    arrays = {name: _as_floats(array) for name, array in arrays.items()}
    require_equal_rows(arrays)
    if finite:
        for name, array in arrays.items():
            _require_finite(array, name)
    return ModelOutputs._trusted(arrays)


def _as_floats(rows: NDArray[Any]) -> NDArray[Any]:
    if rows.dtype == np.float16:
        return rows.astype(np.float32)
    return rows if rows.dtype.kind == "f" else rows.astype(np.float64)


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
    form = _format(body, content_type)
    if form == JSON:
        array = read_inputs_array(body, len(shape), wanted, max_elements)
    elif form == NPY:
        array = read_inputs_of_npy(body, len(shape), wanted, max_elements)
    else:
        raise BadRequest(415, f"inputs are taken as {JSON} or {NPY}; got {'.npz' if form == NPZ else 'Arrow'}.")
    lengths = zip(array.shape, shape, strict=False)
    if array.ndim != len(shape) or any(wish is not None and length != wish for length, wish in lengths):
        wish = ", ".join("n" if length is None else str(length) for length in shape)
        raise BadRequest(422, f"the model takes inputs of shape ({wish}); got {shown(array.shape)}.")
    if not array.size:
        raise BadRequest(422, f"the body holds no inputs: its shape is {shown(array.shape)}.")
    if wanted.kind == "f":
        _require_finite(array, "inputs")
    return array


def _format(body: Body, content_type: str | None) -> str:
    """Which of the formats it is."""
    if content_type is None or content_type == JSON:
        return JSON
    name = content_type.partition(";")[0].strip().lower()
    if name in (JSON, NPY, NPZ, ARROW_STREAM, ARROW_FILE):
        return name
    if name.startswith("application/") and name.endswith("+json"):
        return JSON
    if name == "application/octet-stream" and body.startswith((NPY_MAGIC, ZIP_MAGIC)):
        return NPY if body.startswith(NPY_MAGIC) else NPZ
    raise BadRequest(
        415,
        f"content type {shown(name) or 'of no name'} is not known; send {JSON}, {NPY}, {NPZ} or {ARROW_STREAM}, and "
        "say which in the header Content-Type.",
    )


def _require_finite(array: NDArray[Any], name: str) -> None:
    if np.isfinite(array.min()) and np.isfinite(array.max()):  # NaN is both
        return
    finite = np.isfinite(array)
    place = tuple(int(index) for index in np.unravel_index(int(np.argmin(finite)), array.shape))
    what = "NaN" if np.isnan(array[place]) else "infinity"
    where = f"row {place[0]} holds {what} in column {place[1]}" if array.ndim == 2 else f"hold {what} at {shown(place)}"
    raise BadRequest(422, f"{name} {where}; nothing was taken in. Drop it or find out why.")
