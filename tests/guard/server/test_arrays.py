"""Detectors that read more than logits, over HTTP: a tensor for each array."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import normscale as ns
from guard.server.running import INFER, Client, Server, binary_tensors, refusal, tensors
from normscale.detectors.base import Detector
from normscale.guard.server import handlers
from normscale.guard.server.app import GuardApp
from normscale.guard.server.protocol import GuardProtocol
from normscale.guard.server.request import Bounds
from normscale.guard.server.settings import GuardSettings, ServerSettings

sys.path.insert(0, str(Path(__file__).parents[1]))
from guard.foreign import NearestNeighbour, RunningNeighbour, fitted

SAMPLE = ns.load_sample()


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


def arrays(rows: ns.ModelOutputs, **changed: Any) -> dict[str, Any]:
    return {"logits": rows.logits, "features": rows.features} | changed


def test_mahalanobis_answers_in_both_forms(client: Client, mahalanobis: Detector) -> None:
    rows = ns.ModelOutputs.concatenate([SAMPLE.test[:20].replace(labels=None), SAMPLE.ood["photo_patches"][:20]])
    expected = mahalanobis.score(rows)
    turned = {"features": rows.features, "logits": rows.logits}
    for sent, binary in ((arrays(rows), False), (arrays(rows), True), (turned, False), (turned, True)):
        answer = client.score(sent, binary=binary).answer
        np.testing.assert_allclose(answer["ood_score"], expected, rtol=1e-6)
        assert answer["is_ood"] == mahalanobis.predict(rows).tolist()
        assert answer["predicted"] == [str(index) for index in rows.predicted]  # the names of its classes
        assert answer["mode"] == "static"


def test_what_lacks_an_array_is_told_which(client: Client) -> None:
    rows = SAMPLE.test[:3]
    before = client.state()["scored"]
    spoilt = rows.features.copy()
    spoilt[1, 5] = np.inf
    cases: list[tuple[Any, str]] = [
        ({"logits": rows.logits}, "must be logits and features, each once; got logits."),
        ({"features": rows.features}, "got features."),
        (arrays(rows, layer3=rows.logits), "got logits and features and layer3."),
        (arrays(rows, features=rows.features[:2]), "logits 3, features 2 rows"),
        (arrays(rows, features=np.ones((3, 2))), "features must have shape [n, 32]; got [3, 2]."),
        (arrays(rows, features=spoilt), "features"),
    ]
    for sent, match in cases:
        reply = client.score(sent, binary=True)
        assert reply.status == 422, reply
        assert match in reply.json["error"]
    assert client.state()["scored"] == before


def test_the_metadata_says_which_tensors_are_read(client: Client) -> None:
    document = client.ask("GET", "/v2/models/guard").json
    assert [(one["name"], one["shape"]) for one in document["inputs"]] == [("logits", [-1, 8]), ("features", [-1, 32])]


@pytest.mark.parametrize("name", (NearestNeighbour.name, RunningNeighbour.name))
def test_a_foreign_detector_stands_guard_and_goes_on_after_a_restart(tmp_path: Path, name: str) -> None:
    twin, rows = fitted(name), SAMPLE.test
    fitted(name).save(tmp_path / "detector.safetensors")
    options = ServerSettings(
        {"guard": GuardSettings(str(tmp_path / "detector.safetensors"), str(tmp_path / "store.sqlite"))}
    )

    async def send(i: int) -> None:
        part = rows[10 * i : 10 * i + 10]
        async with running(options) as http:
            body, headers = binary_tensors(arrays(part))
            reply = await http.post(INFER, content=body, headers=headers)
            assert reply.status_code == 200, reply.text
            np.testing.assert_allclose(reply.json()["outputs"][0]["data"], twin.stream(part), rtol=1e-12)
            state = (await http.get("/v1/state")).json()
            assert (state["rows"], state["detector"]) == (10 * i + 10, name)

    for i in range(3):
        asyncio.run(send(i))


# ---------------------------------------------------------------- sentences that must hold


def test_a_mistake_after_the_commit_does_not_promise_that_nothing_was_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ServerSettings({"guard": GuardSettings("sample", str(tmp_path / "store.sqlite"))})

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    async def ask() -> tuple[httpx.Response, httpx.Response, Any]:
        async with running(options) as http:
            first = await http.post(INFER, json=tensors(SAMPLE.test.logits[:5]))
            assert first.status_code == 200
            with monkeypatch.context() as patched:
                patched.setattr(handlers, "encode_answer", broken)
                scored = await http.post(INFER, json=tensors(SAMPLE.test.logits[:2]))
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
