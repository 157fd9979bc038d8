"""The OpenAPI document against a real server: valid, its examples work, and no input that it can think of does harm.

``tests/soak/fuzz_guard.py`` sends a hundred thousand bad inputs; here it is a few hundred.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from guard.server.models import linear_model, three_class_guard
from guard.server.running import Server
from normscale.guard.server.handlers import RESPONSE

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")
schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")

EVENT = {"ce-specversion": "1.0", "ce-type": RESPONSE, "ce-source": "/", "ce-id": "1"}
CASES = 15
"""Of each kind, for each operation."""
OPERATIONS = (
    "POST /v2/models/guard/infer", "POST /v1/events", "GET /v1/state", "PUT /v1/threshold", "POST /v1/freeze",
    "POST /v1/thaw", "POST /v1/reset", "GET /v2", "GET /v2/health/live", "GET /v2/health/ready", "GET /v2/models/guard",
    "GET /v2/models/guard/ready", "GET /metrics",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    guard, model = folder / "guard.safetensors", folder / "model.onnx"
    three_class_guard(guard)
    linear_model(model, 3, 3)
    with Server(guard, folder / "log", "--store", str(folder / "store.sqlite"), "--model", str(model)) as server:
        yield server
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    return server.client().ask("GET", "/openapi.json").json


def test_the_document_is_valid_and_names_every_operation(document: Any) -> None:
    schema = schemathesis.openapi.from_dict(document)
    schema.validate()
    named = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert named == {*OPERATIONS, "GET /v1/live"}
    wanted = {
        scheme
        for methods in document["paths"].values()
        for operation in methods.values()
        for choice in operation.get("security", ())
        for scheme in choice
    }
    assert wanted == set(document["components"]["securitySchemes"]) == {"bearer"}


def test_its_examples_are_accepted(server: Server, document: Any) -> None:
    client = server.client()
    sent = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            examples = [one["value"] for one in content.get("examples", {}).values()]
            examples += [content["example"]] if "example" in content else []
            for example in examples:
                reply = client.ask(method.upper(), path, example, **EVENT)
                assert reply.status == 200, (path, example, reply)
                assert set(reply.json) <= set(operation["responses"]["2XX"]["content"]["application/json"].get(
                    "schema", {}).get("properties", reply.json))  # fmt: skip
                sent += 1
    assert sent == 4  # every decision has one


@pytest.mark.parametrize(
    ("label", "mode"),
    [(one, mode) for one in OPERATIONS for mode in ("positive", "negative") if (mode, one[:3]) != ("negative", "GET")],
)
def test_nothing_it_can_think_of_does_harm(server: Server, document: Any, label: str, mode: str) -> None:
    from schemathesis.checks import (
        content_type_conformance,
        not_a_server_error,
        response_schema_conformance,
        status_code_conformance,
    )

    schema = schemathesis.openapi.from_dict(document)
    method, path = label.split()
    operation = schema[path][method]
    client = server.client()
    checks = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]

    @settings(
        max_examples=CASES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def send(case: Any) -> None:
        before = client.state()["entry"]
        response = case.call(base_url=f"http://127.0.0.1:{server.port}", timeout=30)
        case.validate_response(response, checks=checks)
        if response.status_code != 200:
            assert client.state()["entry"] == before
            assert json.loads(response.content)["error"]

    send()


def test_it_is_still_a_guard(server: Server) -> None:
    client = server.client()
    assert client.ask("POST", "/v1/reset").json["rows"] == 0
    assert client.ask("POST", "/v1/thaw").status == 200
    row = np.array([[4.0, -1.0, 0.5]], np.float32)
    assert client.score({"inputs": row}).answer["taken_in"] == 1
