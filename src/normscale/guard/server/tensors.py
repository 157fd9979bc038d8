"""Tensors of the Open Inference Protocol: the body of a request to arrays, and arrays to the body of an answer.

Names, types and shapes are looked at before a number is read, and the commas of JSON say how many numbers there will be
before one is made. What comes out may be trusted. Everything else is a :class:`BadRequest`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from numpy.typing import NDArray

from normscale.encoding.json_text import number_for_json
from normscale.guard.server.request import BadRequest, Body, Reply, shown

HEADER = "Inference-Header-Content-Length"
_MOST_QUOTES = 4096  # quotation marks in the JSON of a request: tensors of numbers have none, so this bounds its names

DATATYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{kind}INT{bits}": np.dtype(f"{kind.lower()}int{bits}") for kind in ("", "U") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
}
"""The protocol's names of types; BF16, which numpy lacks, is read, and BYTES (texts) is written."""
encode_json = msgspec.json.Encoder().encode
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}

Parameters = dict[str, int | float | bool | str]


class Tensor(Struct):
    """An array of a request."""

    name: str
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=1 << 40)]], Meta(max_length=8)]
    datatype: str
    data: Annotated[Raw, Meta(description="Numbers, flat or nested as the shape is.")] | UnsetType = UNSET
    parameters: Parameters = {}


class WantedOutput(Struct):
    """An output that is asked for."""

    name: str
    parameters: Parameters = {}


class InferRequest(Struct):
    """Rows, or inputs of a model. Parameters: ``idempotency_key``, ``client``, ``binary_data_output``."""

    inputs: Annotated[list[Tensor], Meta(min_length=1)]
    id: str = ""
    parameters: Parameters = {}
    outputs: list[WantedOutput] = []

    def require_outputs(self, known: Sequence[str]) -> None:
        """Refuse to give outputs that there are not."""
        unknown = [one.name for one in self.outputs if one.name not in known]
        if unknown:
            raise BadRequest(422, f"there is no output {shown(unknown[0])}; there are {', '.join(known)}.")

    def text(self, name: str, most: int) -> str | None:
        """A parameter of 1 to ``most`` printable ASCII characters, if it is there."""
        text = self.parameters.get(name)
        if text is None:
            return None
        if not (isinstance(text, str) and 0 < len(text) <= most and text.isascii() and text.isprintable()):
            raise BadRequest(422, f"the parameter {name} has 1 to {most} printable ASCII characters.")
        return text


class ModelResponse(Struct):
    """What another model answered."""

    outputs: Annotated[list[Tensor], Meta(min_length=1)]


class OutputTensor(Struct, omit_defaults=True):
    """An array of an answer; a number that JSON lacks is its name as text."""

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = {}
    data: list[Any] | UnsetType = UNSET


class InferAnswer(Struct, omit_defaults=True):
    """Outputs, and in the parameters how the guard is: ``mode``, ``taken_in``, ``rows``, ``alarms``, ``repeated``."""

    model_name: str
    outputs: list[OutputTensor]
    parameters: Parameters
    id: str = ""


class TensorSpec(NamedTuple):
    """A tensor that a model reads or gives."""

    name: str
    datatype: str
    shape: tuple[int | None, ...]
    """None where any length will do; the rows come first."""
    is_exact: bool = False
    """Whether no other type of numbers is taken."""

    def document(self) -> dict[str, Any]:
        """As the protocol's metadata has it."""
        shape = [-1 if length is None else length for length in self.shape]
        return {"name": self.name, "datatype": self.datatype, "shape": shape}


Wanted = InferRequest | ModelResponse
_DECODERS = {one: msgspec.json.Decoder(one) for one in (InferRequest, ModelResponse)}


def read_body(body: Body, header: str | None, kind: type[Wanted] = InferRequest) -> tuple[Any, memoryview]:
    """The JSON part of a body, and the bytes that follow it; ``header`` says where."""
    end = len(body)
    if header is not None:
        if not header.isdecimal() or len(header) > 12 or int(header) > end:
            raise BadRequest(400, f"{HEADER} must be a number of bytes within the body; got {shown(header)}.")
        end = int(header)
    text = memoryview(body)[:end] if end < len(body) else body
    if body.count(b'"', 0, end) > _MOST_QUOTES:
        raise BadRequest(413, f"more than {_MOST_QUOTES // 2} names and texts in one request.")
    try:
        if not body.isascii():  # the decoder does not look into what it passes over
            str(text, "utf-8")
        return _DECODERS[kind].decode(text), memoryview(body)[end:]
    except msgspec.ValidationError as error:
        raise BadRequest(422, f"this is not what the Open Inference Protocol sends: {shown(error)}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(400, f"the body is not JSON: {shown(error)}.") from None


def read_tensors(
    tensors: Sequence[Tensor],
    binary: memoryview,
    specs: Iterable[TensorSpec],
    max_rows: int,
    *,
    others_too: bool = False,
) -> dict[str, NDArray[Any]]:
    """The arrays of a request by name, in the order of ``specs``: each with as many rows, at least one, in C order.

    With ``others_too`` tensors that no spec names are passed over.
    """
    wanted = {spec.name: spec for spec in specs}
    names = [tensor.name for tensor in tensors]
    missing = [name for name in wanted if name not in names]
    others = [] if others_too else [name for name in names if name not in wanted]
    if missing or others or len(set(names)) < len(names):
        found = " and ".join(map(shown, names[:8]))
        raise BadRequest(422, f"the tensors must be {' and '.join(wanted)}, each once; got {found}.")
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in tensors:
        size, data = tensor.parameters.get("binary_data_size"), memoryview(b"")
        if type(size) is int:
            if tensor.data is not UNSET or not 0 <= size <= len(binary):
                raise BadRequest(400, f"{shown(tensor.name)} has no {shown(size)} bytes of its own behind the JSON.")
            data, binary = binary[:size], binary[size:]
        if tensor.name in wanted:
            _check_head(tensor, wanted[tensor.name], max_rows)
            read = _from_bytes if type(size) is int else _from_json
            arrays[tensor.name] = read(tensor, data)
    if len(binary):
        raise BadRequest(400, f"{len(binary)} bytes at the end belong to no tensor.")
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{name} {n}" for name, n in rows.items())
        raise BadRequest(422, f"every tensor must have one row for each input; got {found} rows.")
    return {name: arrays[name] for name in wanted}


def _check_head(tensor: Tensor, spec: TensorSpec, max_rows: int) -> None:
    shape = tensor.shape
    is_right = len(shape) == len(spec.shape) and all(
        wish in (None, length) for length, wish in zip(shape, spec.shape, strict=True)
    )
    if not is_right:
        wish = ", ".join("n" if length is None else str(length) for length in spec.shape)
        raise BadRequest(422, f"{spec.name} must have shape [{wish}]; got {shown(shape)}.")
    if not math.prod(shape):
        raise BadRequest(422, f"{spec.name} holds no rows; at least one is needed.")
    if shape and shape[0] > max_rows:
        raise BadRequest(413, f"{shape[0]} rows in one request; at most {max_rows} are taken. Send them in parts.")
    is_number = tensor.datatype in DATATYPES or tensor.datatype == "BF16"
    if not is_number or (spec.is_exact and tensor.datatype != spec.datatype):
        also = "" if spec.is_exact else ", or another type of numbers"
        raise BadRequest(422, f"{spec.name} must be {spec.datatype}{also}; got {shown(tensor.datatype)}.")


def _from_bytes(tensor: Tensor, data: memoryview) -> NDArray[Any]:
    dtype = DATATYPES.get(tensor.datatype, np.dtype(np.uint16))
    count = math.prod(tensor.shape)
    if len(data) != count * dtype.itemsize:
        raise BadRequest(
            422, f"{tensor.name} of shape {shown(tensor.shape)} takes {count * dtype.itemsize} bytes; got {len(data)}."
        )
    if tensor.datatype == "BOOL" and np.frombuffer(data, np.uint8).max() > 1:
        raise BadRequest(422, f"{tensor.name} holds a byte that is neither true nor false.")
    array = np.array(np.frombuffer(data, dtype)).reshape(tensor.shape)  # a copy: aligned, and nobody else's
    if tensor.datatype == "BF16":  # the upper half of a float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _from_json(tensor: Tensor, _: memoryview) -> NDArray[Any]:
    if tensor.data is UNSET:
        raise BadRequest(422, f"{tensor.name} has neither data nor a binary_data_size.")
    data, shape, dtype = bytes(tensor.data), tensor.shape, DATATYPES.get(tensor.datatype, np.dtype(np.float32))
    count, found = math.prod(shape), data.count(b",") + 1
    if found != count:
        raise BadRequest(422, f"{tensor.name} of shape {shown(shape)} must hold {count} numbers; got about {found}.")
    opening = data[: 64 * len(shape)].translate(None, b" \t\r\n")
    depth = len(shape) if opening.startswith(b"[[") else 1
    kind: type = {"f": float, "b": bool}.get(dtype.kind, int)
    try:
        numbers = _data_decoder(depth, kind).decode(data)
        with np.errstate(over="ignore"):  # too large for the type: infinite, and refused as such
            if depth == 2 and set(map(len, numbers)) == {shape[1]}:
                numbers = np.fromiter(chain.from_iterable(numbers), dtype, count).reshape(shape)
            array = np.asarray(numbers, dtype)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(422, f"{tensor.name} holds something else than {tensor.datatype}: {shown(error)}.") from None
    except (ValueError, OverflowError) as error:
        raise BadRequest(422, f"{tensor.name} cannot be an array of {tensor.datatype}: {shown(error)}.") from None
    if depth > 1 and array.shape != tuple(shape):
        raise BadRequest(422, f"{tensor.name} must have shape {shown(shape)}; its lists give {shown(array.shape)}.")
    return array.reshape(shape)


@lru_cache(maxsize=32)
def _data_decoder(depth: int, number: type) -> msgspec.json.Decoder[Any]:
    nested: Any = number
    for _ in range(depth):
        nested = list[nested]
    return msgspec.json.Decoder(nested)


def encode_answer(model: str, request: InferRequest, outputs: Mapping[str, Any], parameters: Parameters) -> Reply:
    """The answer to a request: those of the outputs that it wants, as JSON or as bytes behind it.

    ``outputs`` are arrays by name, or sequences of texts.
    """
    by_default = bool(request.parameters.get("binary_data_output", False))
    tensors, parts = [], []
    for one in request.outputs or [WantedOutput(name) for name in outputs]:
        values = outputs[one.name]
        is_array = isinstance(values, np.ndarray) and values.dtype in _NAMES
        datatype = _NAMES[values.dtype] if is_array else "BYTES"
        shape = list(np.shape(values))
        if one.parameters.get("binary_data", by_default):
            part = values.tobytes() if is_array else _texts(values)
            parts.append(part)
            tensors.append(OutputTensor(one.name, shape, datatype, {"binary_data_size": len(part)}))
        else:
            flat = values.ravel().tolist() if isinstance(values, np.ndarray) else list(values)
            if is_array and values.dtype.kind == "f" and not math.isfinite(sum(flat)):
                flat = [number_for_json(number) for number in flat]
            tensors.append(OutputTensor(one.name, shape, datatype, data=flat))
    text = encode_json(InferAnswer(model, tensors, parameters, request.id))
    if not parts:
        return Reply(text)
    return Reply(b"".join([text, *parts]), "application/octet-stream", {HEADER: str(len(text))})


def _texts(values: Any) -> bytes:
    """Each with its length before it."""
    parts = [str(text).encode() for text in (values.ravel() if isinstance(values, np.ndarray) else values)]
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)
