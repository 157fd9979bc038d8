"""Bodies of the Open Inference Protocol: what is understood gives the numbers that were sent; all else is refused."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guard.server.running import HEADER, binary_tensors, tensors
from normscale.guard.server.request import BadRequest
from normscale.guard.server.tensors import (
    DATATYPES,
    InferRequest,
    ModelResponse,
    TensorSpec,
    WantedOutput,
    encode_answer,
    read_body,
    read_tensors,
)

ROWS = np.array([[1.5, -2.25, 1e-300], [3.0, 4.0, -5e300], [0.1, 0.2, 0.3]])
LOGITS = TensorSpec("logits", "FP32", (None, 3))
PICTURES = TensorSpec("pictures", "UINT8", (None, 2, 2), is_exact=True)


def read(body: Any, header: str | None = None, *specs: TensorSpec, max_rows: int = 100, **options: Any) -> Any:
    text = body if isinstance(body, (bytes, bytearray)) else json.dumps(body).encode()
    request, binary = read_body(text, header)
    return read_tensors(request.inputs, binary, specs or (LOGITS,), max_rows, **options)


def one(data: Any, shape: Any = (1, 3), datatype: str = "FP64", name: str = "logits", **more: Any) -> Any:
    return {"inputs": [{"name": name, "shape": list(shape), "datatype": datatype, "data": data, **more}]}


def refused(status: int, match: str, *args: Any, **options: Any) -> None:
    with pytest.raises(BadRequest, match=match) as caught:
        read(*args, **options)
    assert caught.value.status == status, caught.value
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 500


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.floats(-1e300, 1e300)))
def test_numbers_come_back_flat_nested_and_binary(array: Any) -> None:
    spec = TensorSpec("logits", "FP32", (None, array.shape[1]))
    for data in (array.ravel().tolist(), array.tolist()):
        found = read(one(data, array.shape), None, spec)["logits"]
        assert found.dtype == np.float64
        assert found.tobytes() == array.tobytes()
    body, headers = binary_tensors(array)
    found = read(body, headers[HEADER], spec)["logits"]
    assert found.tobytes() == array.tobytes()
    assert found.flags.aligned
    assert found.flags.c_contiguous
    assert found.flags.writeable


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_type_of_numbers_is_read(datatype: str) -> None:
    dtype = DATATYPES[datatype]
    array = np.array([[1, 0, 1]], dtype)
    found = read(one(array.tolist(), datatype=datatype))["logits"]
    assert (found.dtype, found.tolist()) == (dtype, array.tolist())
    head = one([], datatype=datatype, parameters={"binary_data_size": array.nbytes})
    del head["inputs"][0]["data"]
    text = json.dumps(head).encode()
    for odd in (b"", b" "):  # where the numbers begin is anyone's choice
        found = read(text + odd + array.tobytes(), str(len(text + odd)))["logits"]
        assert (found.dtype, found.tolist()) == (dtype, array.tolist())


def test_half_precision_of_brains() -> None:
    exact = np.array([[1.0, -2.5, 3e38]], np.float32)
    upper = (exact.view(np.uint32) >> 16).astype(np.uint16)
    head = {"name": "logits", "shape": [1, 3], "datatype": "BF16", "parameters": {"binary_data_size": 6}}
    text = json.dumps({"inputs": [head]}).encode()
    found = read(text + upper.tobytes(), str(len(text)))["logits"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, rtol=2**-7)


@pytest.mark.parametrize(
    ("body", "status", "match"),
    [
        (b"", 400, "not JSON"),
        (b"\xef\xbb\xbf{}", 400, "not JSON"),
        (b"\xff", 400, "not JSON"),
        (b'{"passed over": "\xff", "inputs": []}', 400, "not JSON"),
        (b"[" * 100_000, 422, "Expected `object`"),
        (b"{}", 422, "missing required field `inputs`"),
        (b'{"inputs": []}', 422, "length >= 1"),
        (b'{"inputs": 3}', 422, "Expected `array`"),
        (one([1, 2, 3], name="features"), 422, "must be logits, each once; got features"),
        ({"inputs": 2 * one([1, 2, 3])["inputs"]}, 422, "each once; got logits and logits"),
        (one([1, 2, 3], shape=[3]), 422, r"must have shape \[n, 3\]; got \[3\]"),
        (one([1, 2], shape=[1, 2]), 422, r"must have shape \[n, 3\]; got \[1, 2\]"),
        (one([1, 2, 3], shape=[-1, 3]), 422, "Expected `int` >= 0"),
        (one([], shape=[0, 3]), 422, "holds no rows"),
        (one([1, 2, 3], shape=[101, 3]), 413, "at most 100 are taken"),
        (one([1, 2, 3], shape=[1 << 50, 3]), 422, "<= 1099511627776"),
        (one(["1", "2", "3"]), 422, "Expected `float`, got `str`"),
        (one([1, None, 3]), 422, "Expected `float`, got `null`"),
        (one([1, True, 3]), 422, "Expected `float`, got `bool`"),
        (one([1, 2, 3], datatype="BYTES"), 422, "must be FP32, or another type of numbers; got BYTES"),
        (one([1, 2, 3], datatype="fp32"), 422, "got fp32"),
        (one([1.5, 2, 3], datatype="INT8"), 422, "Expected `int`"),
        (one([1, 2, 300], datatype="INT8"), 422, "cannot be an array of INT8"),
        (one([1, 2, 3], shape=[2, 3]), 422, "must hold 6 numbers; got about 3"),
        (one([[1, 2], [3]], shape=[1, 3]), 422, "cannot be an array|its lists give"),
        (one([[1, 2, 3], [1], [2, 3]], shape=[2, 3]), 422, "cannot be an array|its lists give"),
        (one([[[1, 2, 3]]]), 422, "Expected `float`, got `array`"),
        (one({"a": [1, 2, 3]}), 422, "Expected `array`"),
        (b'{"inputs":[{"name":"logits","shape":[1,3],"datatype":"FP32","data":[1,2,NaN]}]}', 400, "not JSON"),
        (b'{"inputs":[{"name":"logits","shape":[1,3],"datatype":"FP64","data":[1,2,1e400]}]}', 422, "out of range"),
        (b'{"inputs":[{"name":"logits","shape":[1,3],"datatype":"FP32"}]}', 422, "neither data nor"),
        (
            json.dumps({**one([1, 2, 3]), "parameters": {f"p{i}": 1 for i in range(3000)}}).encode(),
            413,
            "names and texts",
        ),
    ],
)
def test_json_that_is_refused(body: Any, status: int, match: str) -> None:
    refused(status, match, body)


def test_pictures_keep_their_shape_and_type() -> None:
    pictures = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    for data in (pictures.tolist(), pictures.ravel().tolist()):
        found = read(one(data, (2, 2, 2), "UINT8", "pictures"), None, PICTURES)["pictures"]
        np.testing.assert_array_equal(found, pictures)
    refused(422, "must be UINT8; got FP32", one(pictures.tolist(), (2, 2, 2), "FP32", "pictures"), None, PICTURES)
    refused(
        422, "its lists give", one([[[1, 2, 3, 4]], [[5, 6, 7, 8]]], (2, 2, 2), "UINT8", "pictures"), None, PICTURES
    )


def test_binary_parts_that_are_refused() -> None:
    body, headers = binary_tensors(ROWS)
    length = int(headers[HEADER])
    assert (read(body, headers[HEADER])["logits"] == ROWS).all()
    for header in ("-1", "x", "", "1e3", str(len(body) + 1), "9" * 40):
        refused(400, "must be a number of bytes within the body", body, header)
    refused(400, "not JSON", body, str(length + 1))
    refused(400, "not JSON", body, str(length - 1))
    refused(400, "not JSON", body)  # without the header all of it must be JSON
    refused(400, "1 bytes at the end belong to no tensor", body + b"\0", headers[HEADER])
    refused(400, "has no 72 bytes of its own", body[:-1], headers[HEADER])
    for size, match in ((71, "takes 72 bytes; got 71"), (-1, "has no -1 bytes"), (True, "neither data nor")):
        text = json.dumps(json.loads(body[:length]) | {}).replace("72", json.dumps(size)).encode()
        with pytest.raises(BadRequest, match=match):
            read(text + body[length:][: size if size == 71 else None], str(len(text)))
    both = one([1, 2, 3], parameters={"binary_data_size": 24})
    text = json.dumps(both).encode()
    refused(400, "has no 24 bytes of its own", text + bytes(24), str(len(text)))
    wrong = one([], datatype="BOOL", parameters={"binary_data_size": 3})
    del wrong["inputs"][0]["data"]
    text = json.dumps(wrong).encode()
    refused(422, "neither true nor false", text + b"\0\1\2", str(len(text)))


@given(st.data())
def test_damaged_bodies_are_refused_or_read(data: st.DataObject) -> None:
    body, headers = binary_tensors({"logits": ROWS, "features": np.ones((3, 2), np.float32)})
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    refusal: BadRequest | None = None
    shape = (3, 3)
    try:
        shape = read(damaged, headers[HEADER], LOGITS, TensorSpec("features", "FP32", (None, 2)))["logits"].shape
    except BadRequest as error:
        refusal = error
    assert shape == (3, 3)
    assert refusal is None or (refusal.status in (400, 413, 422) and str(refusal).isascii())


def test_a_small_body_takes_little_memory() -> None:
    """What a head promises is not believed, and numbers are counted before they are made."""
    bodies = [
        (json.dumps(one([0] * 1_000_000, shape=[1, 3])).encode(), None),
        (json.dumps(one([1], shape=[100, 3])).encode(), None),
        (b'{"inputs":[{"name":"logits","shape":[1,3],"datatype":"FP32","data":' + b"[" * 500_000, None),
    ]
    for body, header in bodies:
        tracemalloc.start()
        with pytest.raises(BadRequest):
            read(body, header)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * len(body) + 1_000_000


def test_what_another_model_answered_may_hold_more() -> None:
    document = {
        "model_name": "m",
        "id": "7",
        "outputs": [*one(["a"], (1, 1), "BYTES", "text")["inputs"], *one([1, 2, 3])["inputs"]],
    }
    told, binary = read_body(json.dumps(document).encode(), None, ModelResponse)
    found = read_tensors(told.outputs, binary, [LOGITS], 100, others_too=True)
    assert found["logits"].tolist() == [[1.0, 2.0, 3.0]]


# ---------------------------------------------------------------- answers


def answer(given: Any, **request: Any) -> Any:
    return encode_answer("m", InferRequest(inputs=[], **request), given, {"rows": 7})


@given(st.lists(st.floats(), min_size=1, max_size=4))
def test_json_carries_every_float(values: list[float]) -> None:
    reply = answer({"ood_score": np.array(values)}, id="a request")

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    document = json.loads(reply.content, parse_constant=refuse)
    assert (document["id"], document["model_name"], document["parameters"]) == ("a request", "m", {"rows": 7})
    (tensor,) = document["outputs"]
    assert (tensor["datatype"], tensor["shape"]) == ("FP64", [len(values)])
    assert np.array_equal([float(value) for value in tensor["data"]], values, equal_nan=True)
    assert all(
        isinstance(text, float if math.isfinite(x) else str) for text, x in zip(tensor["data"], values, strict=True)
    )


def test_outputs_are_those_that_were_asked_for_in_the_form_that_was() -> None:
    outputs = {"score": np.array([0.5, np.inf]), "name": ["cat", "\u00e9lan"], "logits": np.eye(2, dtype=np.float32)}
    wanted = [
        WantedOutput("logits", {"binary_data": True}),
        WantedOutput("name"),
        WantedOutput("name", {"binary_data": True}),
    ]
    reply = answer(outputs, outputs=wanted)
    length = int(reply.headers[HEADER])
    document, data = json.loads(reply.content[:length]), reply.content[length:]
    assert [(one["name"], one["shape"], one["datatype"]) for one in document["outputs"]] == [
        ("logits", [2, 2], "FP32"), ("name", [2], "BYTES"), ("name", [2], "BYTES")
    ]  # fmt: skip
    assert document["outputs"][0]["parameters"] == {"binary_data_size": 16}
    assert document["outputs"][1]["data"] == ["cat", "\u00e9lan"]
    assert data == np.eye(2, dtype="<f4").tobytes() + b"\3\0\0\0cat\5\0\0\0\xc3\xa9lan"
    assert reply.content_type == "application/octet-stream"
    every = answer(outputs, parameters={"binary_data_output": True})
    assert [
        one["parameters"]["binary_data_size"]
        for one in json.loads(every.content[: int(every.headers[HEADER])])["outputs"]
    ] == [16, 16, 16]
    with pytest.raises(BadRequest, match="no output nothing; there are score, name"):
        InferRequest(inputs=[], outputs=[WantedOutput("nothing")]).require_outputs(["score", "name"])


def test_requests_as_a_client_makes_them() -> None:
    request, _ = read_body(json.dumps(tensors(ROWS, idempotency_key="k", priority=3)).encode(), None)
    assert (request.text("idempotency_key", 5), request.text("client", 5)) == ("k", None)
    for wrong in ("", "x" * 6, "\n", "\u00e9", 7, True):
        request.parameters["client"] = wrong
        with pytest.raises(BadRequest, match="client has 1 to 5 printable ASCII"):
            request.text("client", 5)
