"""Answers: the same numbers in every format, in the format that was asked for."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscale.guard import Verdict
from normscale.guard.server import answers
from normscale.guard.server.answers import choose, encode
from normscale.guard.server.parsing import ARROW_STREAM, JSON, NPY


def answer(n: int = 5, classes: int | None = None, **changes: Any) -> Verdict:
    rng = np.random.default_rng(n)
    scores = rng.normal(0, 1e3, n) ** 3
    scaled = None if classes is None else rng.normal(size=(n, classes))
    made = Verdict(scores, scores > 0, rng.integers(0, 1000, n), "running", n, ("shift", "flagged"), 77, scaled)
    return replace(made, **changes)


@pytest.mark.parametrize("classes", [None, 4])
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_json(n: int, classes: int | None) -> None:
    sent = answer(n, classes)
    body, content_type, _ = encode(sent, None)
    assert content_type == JSON
    got = json.loads(body)
    assert got["scores"] == sent.scores.tolist()  # every bit of a double comes back
    assert got["is_ood"] == sent.is_ood.tolist()
    assert got["predicted"] == sent.predicted.tolist()
    assert got.get("scaled") == (None if sent.scaled is None else sent.scaled.tolist())
    assert ("scaled" in got) == (classes is not None)
    assert got["mode"] == "running"
    assert got["taken_in"] == n
    assert got["rows"] == 77
    assert got["alarms"] == ["shift", "flagged"]


def test_names_of_predicted_classes_stand_beside_their_numbers() -> None:
    sent = answer(3, predicted=np.array([2, 0, 2]))
    got = json.loads(encode(sent, JSON, ("cat", "dog", "\u00e9lan"))[0])
    assert (got["predicted"], got["predicted_names"]) == ([2, 0, 2], ["\u00e9lan", "cat", "\u00e9lan"])
    assert "predicted_names" not in json.loads(encode(sent, JSON)[0])


@given(st.lists(st.floats(), min_size=1, max_size=4))
def test_json_carries_every_float(values: list[float]) -> None:
    scores = np.array(values)
    sent = answer(len(values), scores=scores, scaled=scores[:, None])

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    got = json.loads(encode(sent, None)[0], parse_constant=refuse)
    for read in (got["scores"], [row[0] for row in got["scaled"]]):
        assert np.array_equal([float(value) for value in read], scores, equal_nan=True)
        assert all(isinstance(value, float if math.isfinite(x) else str) for value, x in zip(read, values, strict=True))
    assert None not in got["scores"]


def test_finite_scores_whose_sum_is_not() -> None:
    assert json.loads(encode(answer(2, scores=np.array([1.7e308, 1.7e308])), None)[0])["scores"] == [1.7e308] * 2


@pytest.mark.parametrize("classes", [None, 1, 100])
@pytest.mark.parametrize("n", [1, 3, 12345])
def test_npy(n: int, classes: int | None) -> None:
    sent = answer(n, classes, scores=np.where(np.arange(n) == 1, np.inf, np.arange(n) / 7))
    body, content_type, _ = encode(sent, NPY)
    assert content_type == NPY
    got = np.load(io.BytesIO(body), allow_pickle=False)
    assert got.dtype.names == ("score", "predicted", "is_ood") + (() if classes is None else ("scaled",))
    assert [got.dtype[name].str for name in ("score", "predicted", "is_ood")] == ["<f8", "<i4", "|b1"]
    assert (got["score"] == sent.scores).all()
    assert (got["predicted"] == sent.predicted).all()
    assert (got["is_ood"] == sent.is_ood).all()
    if sent.scaled is not None:
        assert (got["scaled"] == sent.scaled).all()
    assert int.from_bytes(body[8:10], "little") % 64 == 54  # as numpy itself aligns it


@pytest.mark.parametrize("classes", [None, 4])
def test_arrow(classes: int | None) -> None:
    sent = answer(9, classes)
    if sent.scaled is not None:
        sent = replace(sent, scaled=np.asfortranarray(sent.scaled))
    body, content_type, _ = encode(sent, ARROW_STREAM)
    assert content_type == ARROW_STREAM
    got = pa.ipc.open_stream(body).read_all()
    got.validate(full=True)
    assert got["score"].to_pylist() == sent.scores.tolist()
    assert got["predicted"].to_pylist() == sent.predicted.tolist()
    assert got["is_ood"].to_pylist() == sent.is_ood.tolist()
    assert got.column_names == ["score", "predicted", "is_ood"] + ([] if classes is None else ["scaled"])
    if sent.scaled is not None:
        assert got["scaled"].to_pylist() == sent.scaled.tolist()


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("*/*", JSON),
        ("", JSON),
        (NPY, NPY),
        ("Application/X-NPY", NPY),
        (ARROW_STREAM, ARROW_STREAM),
        ("text/html", JSON),
        ("text/html, application/x-npy;q=0.1", NPY),
        ("application/json;q=0.5, application/x-npy;q=0.6", NPY),
        ("application/json;q=0.6, application/x-npy; q=0.5", JSON),
        ("application/x-npy;q=0, application/json;q=0.001", JSON),
        ("application/x-npy;q=0", JSON),
        ("application/x-npy, */*", NPY),
        ("*/*, application/x-npy", NPY),
        ("*/*, application/json;q=0.5", NPY),
        ("application/*, application/json;q=0.5, application/x-npy;q=0.2", ARROW_STREAM),
        ("application/x-npy;q=0.2, */*;q=0.9", JSON),
        ("application/x-npy, application/json", NPY),
        ("application/json, application/x-npy", JSON),
        ("application/x-npy;v=1;q=0.9, application/json;q=0.1", NPY),
        ("application/x-npy;q=0.1, application/json;q=0.5, application/x-npy", JSON),
        ("application/x-npy;q=abc", JSON),
        ("application/x-npy;q=nan, application/json;q=0.1", JSON),
        ("application/x-npy;q=2", JSON),
        (",,;;q=,/", JSON),
        ("application/x-npy," + "a/b," * 10_000, JSON),
    ],
)
def test_accept(accept: str, chosen: str) -> None:
    assert choose(accept) == chosen
    assert choose(accept) == chosen  # also when remembered


@given(st.text(max_size=60))
def test_any_header_is_understood_somehow(accept: str) -> None:
    assert choose(accept) in (JSON, NPY, ARROW_STREAM)


def test_without_pyarrow_the_answer_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.ipc", None)
    for cache in (answers._choose, answers._has_arrow):
        cache.cache_clear()
    assert encode(answer(), ARROW_STREAM)[1] == JSON
    assert encode(answer(), f"{ARROW_STREAM}, {NPY};q=0.1")[1] == NPY
    for cache in (answers._choose, answers._has_arrow):
        cache.cache_clear()


def test_headers_are_one_line_of_ascii() -> None:
    headers = encode(answer(alarms=("caf\u00e9\r\nSet-Cookie: x",)), NPY)[2]
    assert headers == {
        "X-Guard-Mode": "running",
        "X-Guard-Taken-In": "5",
        "X-Guard-Rows": "77",
        "X-Guard-Alarms": "caf\\xe9\\r\\nSet-Cookie: x",
    }
    assert "X-Guard-Alarms" not in encode(answer(alarms=()), NPY)[2]


def test_arrow_is_read_and_written_without_pandas() -> None:
    """pyarrow's own conversions load it where it is installed, which costs every worker 40 MB."""
    code = (
        "import sys, pathlib, numpy as np\n"
        "from normscale.guard import Verdict\n"
        "from normscale.guard.server.answers import encode\n"
        "from normscale.guard.server.parsing import ARROW_STREAM, read_outputs\n"
        "batch = encode(Verdict(np.zeros(2), np.zeros(2, bool), np.zeros(2, int), 'static', 0, scaled=np.eye(2)),"
        " ARROW_STREAM)[0]\n"
        "import pyarrow as pa\n"
        "scaled = pa.ipc.open_stream(batch).read_next_batch().column('scaled')\n"
        "sink = pa.BufferOutputStream()\n"
        "batch = pa.record_batch({'logits': scaled})\n"
        "with pa.ipc.new_stream(sink, batch.schema) as writer: writer.write_batch(batch)\n"
        "body = sink.getvalue().to_pybytes()\n"
        "print(read_outputs(body, ARROW_STREAM, widths={'logits': 2}, max_rows=9).logits.tolist())\n"
        "print('pandas' in sys.modules)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["[[1.0, 0.0], [0.0, 1.0]]", "False"]
