"""Detectors that read more than logits, over HTTP: JSON, .npz and Arrow with an array for each name."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import normscale as ns
from guard.server.running import Client, Server, npy, refusal
from normscale.detectors.base import Detector
from normscale.guard.server import handlers
from normscale.guard.server.app import GuardApp
from normscale.guard.server.bounds import Bounds
from normscale.guard.server.parsing import ARROW_STREAM, JSON, NPY, BadRequest, read_outputs
from normscale.guard.server.protocol import GuardProtocol
from normscale.guard.server.settings import GuardSettings, ServerSettings

sys.path.insert(0, str(Path(__file__).parents[1]))
from guard.foreign import NearestNeighbour, RunningNeighbour, fitted

NPZ = "application/x-npz"
SAMPLE = ns.load_sample()
WIDTHS = {"logits": 8, "features": 32}


@asynccontextmanager
async def running(options: ServerSettings) -> AsyncIterator[httpx.AsyncClient]:
    """The application in this process, from its start to its end."""
    app = GuardApp(options)
    said: asyncio.Queue[Any] = asyncio.Queue()
    heard: asyncio.Queue[Any] = asyncio.Queue()
    life = asyncio.ensure_future(app({"type": "lifespan", "asgi": {"version": "3.0"}}, heard.get, said.put))
    await heard.put({"type": "lifespan.startup"})
    assert (await said.get())["type"] == "lifespan.startup.complete"
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http
    await heard.put({"type": "lifespan.shutdown"})
    assert (await said.get())["type"] == "lifespan.shutdown.complete"
    await life


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def arrow(rows: ns.ModelOutputs) -> bytes:
    columns = {f"c{i}": np.ascontiguousarray(rows.logits[:, i]) for i in range(8)}
    flat = pa.array(np.ascontiguousarray(rows.features).reshape(-1))
    table = pa.table({**columns, "features": pa.FixedSizeListArray.from_arrays(flat, 32)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def document(rows: ns.ModelOutputs) -> dict[str, Any]:
    return {"logits": rows.logits.tolist(), "features": rows.features.tolist()}


@pytest.fixture(scope="module")
def mahalanobis() -> Detector:
    return fitted("mahalanobis", shrinkage="oas")


@pytest.fixture(scope="module")
def client(mahalanobis: Detector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("features")
    mahalanobis.save(folder / "detector.safetensors")
    with Server(
        folder / "detector.safetensors", folder / "log", "--store", str(folder / "s"), "--on-drift", "warn"
    ) as on:
        yield on.client()
        assert "Traceback" not in on.log


def test_mahalanobis_answers_in_every_format(client: Client, mahalanobis: Detector) -> None:
    rows = ns.ModelOutputs.concatenate([SAMPLE.test[:20].replace(labels=None), SAMPLE.ood["photo_patches"][:20]])
    expected = mahalanobis.score(rows)
    bodies = [
        (JSON, json.dumps(document(rows)).encode()),
        (NPZ, npz(logits=rows.logits, features=rows.features)),
        (NPZ, npz(features=rows.features, logits=rows.logits)),
        ("application/octet-stream", npz(logits=rows.logits, features=rows.features)),
        (ARROW_STREAM, arrow(rows)),
    ]
    for content_type, body in bodies:
        reply = client.ask("POST", "/v1/score", body, content_type)
        assert reply.status == 200, reply
        np.testing.assert_allclose(reply.json["scores"], expected, rtol=1e-6)
        assert reply.json["is_ood"] == mahalanobis.predict(rows).tolist()
        assert reply.json["predicted"] == rows.predicted.tolist()
        assert reply.json["mode"] == "static"
    one = client.ask("POST", "/v1/score", {name: numbers[0] for name, numbers in document(rows).items()})
    np.testing.assert_allclose(one.json["scores"], expected[:1], rtol=1e-6)


def test_what_lacks_an_array_is_told_which(client: Client) -> None:
    rows = SAMPLE.test[:3]
    before = client.state()["scored"]
    cases: list[tuple[Any, str, int, str]] = [
        ({"logits": rows.logits.tolist()}, JSON, 422, "missing required field `features`"),
        ({"features": rows.features.tolist()}, JSON, 422, "missing required field `logits`"),
        ({**document(rows), "layer3": [[1.0]]}, JSON, 422, "unknown field `layer3`"),
        ({**document(rows), "features": rows.features[:2].tolist()}, JSON, 422, "logits 3, features 2 rows"),
        ({**document(rows), "features": [[1.0, 2.0]] * 3}, JSON, 422, '"features" row 0 must hold 32 numbers; got 2'),
        (npz(logits=rows.logits), NPZ, 422, "must hold logits of"),
        (npz(logits=rows.logits, features=rows.features, more=rows.logits), NPZ, 422, "and more of"),
        (npz(logits=rows.logits, features=rows.features[:2]), NPZ, 422, "one entry per row of logits (3)"),
        (npy(rows.logits), NPY, 422, "and features of 32 columns; got logits of"),
    ]
    for body, content_type, status, match in cases:
        reply = client.ask("POST", "/v1/score", body, content_type)
        assert reply.status == status, reply
        assert match in reply.json["error"]
    spoilt = rows.features.copy()
    spoilt[1, 5] = np.inf
    reply = client.ask("POST", "/v1/score", npz(logits=rows.logits, features=spoilt), NPZ)
    assert reply.status == 422
    assert "features" in reply.json["error"]
    assert client.state()["scored"] == before


def test_the_document_says_which_arrays_are_read(client: Client) -> None:
    score = client.ask("GET", "/openapi.json").json["paths"]["/v1/score"]["post"]["requestBody"]["content"]
    schema = score["application/json"]["schema"]
    assert schema["required"] == ["logits", "features"]
    assert schema["properties"]["features"]["oneOf"][1] == {
        "type": "array", "items": {"type": "number"}, "minItems": 32, "maxItems": 32,
    }  # fmt: skip
    assert NPZ in score
    assert NPY not in score
    for example in score["application/json"]["examples"].values():
        assert client.ask("POST", "/v1/score", example["value"]).status == 200


@pytest.mark.parametrize("name", (NearestNeighbour.name, RunningNeighbour.name))
def test_a_foreign_detector_stands_guard_and_goes_on_after_a_restart(tmp_path: Path, name: str) -> None:
    twin, rows = fitted(name), SAMPLE.test
    fitted(name).save(tmp_path / "detector.safetensors")
    options = ServerSettings(
        {"": GuardSettings(str(tmp_path / "detector.safetensors"), str(tmp_path / "store.sqlite"))}
    )

    async def send(i: int) -> None:
        part = rows[10 * i : 10 * i + 10]
        async with running(options) as http:
            body = npz(logits=part.logits, features=part.features)
            reply = await http.post("/v1/score", content=body, headers={"Content-Type": NPZ})
            assert reply.status_code == 200, reply.text
            np.testing.assert_allclose(reply.json()["scores"], twin.stream(part), rtol=1e-12)
            state = (await http.get("/v1/state")).json()
            assert (state["rows"], state["detector"]) == (10 * i + 10, name)

    for i in range(3):
        asyncio.run(send(i))


# ---------------------------------------------------------------- .npz that was not made by numpy


def refused(status: int, match: str, body: bytes, **options: Any) -> None:
    with pytest.raises(BadRequest, match=match) as caught:
        read_outputs(body, NPZ, widths={"logits": 3}, max_rows=100, **options)
    assert caught.value.status == status


def test_archives_that_are_not_read() -> None:
    rows = np.ones((2, 3))
    good = npz(logits=rows)
    assert (read_outputs(good, NPZ, widths={"logits": 3}, max_rows=2).logits == rows).all()
    squeezed = io.BytesIO()
    np.savez_compressed(squeezed, logits=np.zeros((1_000_000, 3)))
    refused(415, "compressed", squeezed.getvalue())
    with pytest.raises(BadRequest, match="at most 1 are taken"):
        read_outputs(good, NPZ, widths={"logits": 3}, max_rows=1)
    refused(413, "at most 64", npz(**{f"a{i}": rows for i in range(65)}))
    refused(400, "does not end like one", good[:-1])
    refused(400, "does not end like one", b"")
    refused(422, "it holds none", b"PK\x05\x06" + bytes(18))
    refused(422, "which are pickles|Python objects", npz(logits=np.array([{"a": 1}], dtype=object)))
    locator = good[:-22] + b"PK\x06\x07" + bytes(16) + good[-22:]
    refused(400, "4 GB", locator)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_archives_are_refused_or_read(data: st.DataObject) -> None:
    body = bytearray(npz(logits=np.ones((2, 3)), features=np.ones((2, 4))))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    refusal: BadRequest | None = None
    shape = (2, 3)
    try:
        shape = read_outputs(bytes(body), NPZ, widths={"logits": 3, "features": 4}, max_rows=10).logits.shape
    except BadRequest as error:
        refusal = error
    assert shape == (2, 3)
    assert refusal is None or (refusal.status in (400, 413, 415, 422) and str(refusal).isascii())


# ---------------------------------------------------------------- sentences that must hold


def test_a_mistake_after_the_commit_does_not_promise_that_nothing_was_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ServerSettings({"": GuardSettings("sample", str(tmp_path / "store.sqlite"))})

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    async def ask() -> tuple[httpx.Response, httpx.Response, Any]:
        async with running(options) as http:
            first = await http.post("/v1/score", json={"logits": SAMPLE.test.logits[:5].tolist()})
            assert first.status_code == 200
            with monkeypatch.context() as patched:
                patched.setattr(handlers, "encode", broken)
                scored = await http.post("/v1/score", json={"logits": SAMPLE.test.logits[:2].tolist()})
            with monkeypatch.context() as patched:
                patched.setattr(handlers, "state_document", broken)
                frozen = await http.post("/v1/freeze", json={})
            return scored, frozen, (await http.get("/v1/state")).json()

    scored, frozen, state = asyncio.run(ask())
    assert (state["rows"], state["mode"]) == (7, "frozen")  # both were done
    for reply in (scored, frozen):
        assert reply.status_code == 500
        assert "nothing was taken in" not in reply.json()["error"]
        assert "is not known" in reply.json()["error"]


def test_bounds_have_one_source_of_defaults() -> None:
    import inspect

    from normscale.cli.serve import serve

    bounds, command = Bounds(), inspect.signature(serve).parameters
    for name in ("max_body", "max_rows", "max_requests", "max_seconds"):
        assert command[name].default == getattr(bounds, name)
    assert ServerSettings({}).bounds == GuardProtocol.bounds == bounds


def test_serve_leaves_nothing_behind_for_a_detector_that_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ns.NormScaling().fit(SAMPLE.train).save(tmp_path / "detector.safetensors")  # no threshold
    for options in ((), ("--store", str(tmp_path / "other.sqlite")), ("--workers", "2")):
        code, sentence = refusal(monkeypatch, tmp_path / "detector.safetensors", *options)
        assert code == 1
        assert "has no threshold" in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["detector.safetensors"]


def test_a_page_behind_a_proxy_that_rewrites_host_may_change_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--store", str(tmp_path / "s"), "--allow-origin", "https://guard.example.com/")
    with Server("sample", tmp_path / "log", *options) as server:
        http = server.client()
        own = f"http://127.0.0.1:{server.port}"
        for origin, status in (("https://guard.example.com", 200), (own, 200), ("https://evil.example", 403)):
            assert http.ask("POST", "/v1/freeze", {}, Origin=origin).status == status
        reply = http.ask("POST", "/v1/freeze", {}, Origin="http://guard.example.com")  # another scheme
        assert reply.status == 403
        assert "--allow-origin" in reply.json["error"]
    for wrong in ("guard.example.com", "https://guard.example.com/page", "*", "null"):
        code, sentence = refusal(monkeypatch, "sample", "--store", str(tmp_path / "new"), "--allow-origin", wrong)
        assert code == 1
        assert "an allowed origin is" in sentence
    assert not (tmp_path / "new").exists()
