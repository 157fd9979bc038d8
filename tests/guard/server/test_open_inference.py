"""The Open Inference Protocol as a client of others speaks it: Triton's, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from guard.server.models import linear_model
from guard.server.running import INFER, Server, tensors
from normscale.guard.server.tokens import add_token

http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
from tritonclient.utils import InferenceServerException  # noqa: E402

SAMPLE = ns.load_sample()
ROWS = SAMPLE.test.logits[:40].astype(np.float32)


@pytest.fixture(scope="module")
def server(sample_guard: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Three models: one with the names of its classes, one with tokens, one that runs a network."""
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    folder = tmp_path_factory.mktemp("models")
    linear_model(folder / "model.onnx", 5, 8)
    add_token(folder / "tokens.jsonl", "camera", "score")
    guards = f"""
        [digits]
        detector = "sample"
        store = ":memory:"
        [locked]
        detector = "{sample_guard}"
        store = "locked.sqlite"
        tokens = "tokens.jsonl"
        [network]
        detector = "{sample_guard}"
        store = "network.sqlite"
        model = "model.onnx"
        [network.policy]
        on_drift = "ignore"
        """
    (folder / "guards.toml").write_text(guards)
    with Server(folder / "guards.toml", folder / "log") as server:
        yield server
        assert "Traceback" not in server.log


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


def logits(rows: Any, binary: bool = True, name: str = "logits", datatype: str = "FP32") -> list[Any]:
    tensor = http.InferInput(name, list(rows.shape), datatype)
    return [tensor.set_data_from_numpy(rows, binary_data=binary)]


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    about = client.get_server_metadata()
    assert (about["name"], about["version"]) == ("normscale", ns.__version__)
    assert "binary_tensor_data" in about["extensions"]
    assert client.is_model_ready("digits")
    assert not client.is_model_ready("nobody")
    model = client.get_model_metadata("digits")
    assert model["inputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 8]}]
    assert [(one["name"], one["datatype"], one["shape"]) for one in model["outputs"]] == [
        ("ood_score", "FP64", [-1]), ("is_ood", "BOOL", [-1]), ("predicted", "BYTES", [-1])
    ]  # fmt: skip
    with pytest.raises(InferenceServerException, match="there is nothing at /v2/models/nobody"):
        client.get_model_metadata("nobody")


@pytest.mark.parametrize("binary", [True, False])
def test_rows_in_scores_flags_and_names_out(client: Any, binary: bool) -> None:
    result = client.infer("digits", logits(ROWS, binary), request_id="request 7")
    response = result.get_response()
    assert (response["id"], response["model_name"]) == ("request 7", "digits")
    assert response["parameters"]["taken_in"] == 40
    assert response["parameters"]["mode"] == "running"
    scores, flags = result.as_numpy("ood_score"), result.as_numpy("is_ood")
    assert (scores.dtype, flags.dtype) == (np.float64, np.bool_)
    assert np.isfinite(scores).all()
    assert scores[flags].min(initial=np.inf) > scores[~flags].max()
    names = [name.decode() for name in result.as_numpy("predicted").tolist()]
    assert names == [SAMPLE.class_names[index] for index in ROWS.argmax(axis=1)]


def test_only_the_outputs_that_are_wanted_each_in_its_form(client: Any) -> None:
    wanted = [http.InferRequestedOutput("is_ood", binary_data=False), http.InferRequestedOutput("predicted")]
    result = client.infer("digits", logits(ROWS[:3]), outputs=wanted)
    assert [one["name"] for one in result.get_response()["outputs"]] == ["is_ood", "predicted"]
    assert "data" in result.get_output("is_ood")
    assert "data" not in result.get_output("predicted")
    assert result.as_numpy("ood_score") is None
    with pytest.raises(InferenceServerException, match="there is no output nothing") as refused:
        client.infer("digits", logits(ROWS[:3]), outputs=[http.InferRequestedOutput("nothing")])
    assert refused.value.status() == "422"


def test_a_key_counts_once(client: Any) -> None:
    first = client.infer("digits", logits(ROWS[:4]), parameters={"idempotency_key": "k"}).get_response()
    again = client.infer("digits", logits(ROWS[:4]), parameters={"idempotency_key": "k"}).get_response()
    assert again["parameters"] == first["parameters"] | {"repeated": True}
    with pytest.raises(InferenceServerException, match="used for other rows"):
        client.infer("digits", logits(ROWS[:5]), parameters={"idempotency_key": "k"})


def test_tokens_go_in_a_header_and_errors_are_sentences(server: Server, client: Any) -> None:
    with pytest.raises(InferenceServerException, match="needs a token") as refused:
        client.infer("locked", logits(ROWS))
    assert refused.value.status() == "401"
    secret = add_token(Path(server._log).parent / "tokens.jsonl", "another", "score")
    result = client.infer("locked", logits(ROWS), headers={"Authorization": f"Bearer {secret}"})
    assert result.as_numpy("predicted").tolist() == ROWS.argmax(axis=1).tolist()  # no names are known here
    wrong = {
        "must have shape": logits(ROWS[:, :7]),
        "the tensors must be logits": logits(ROWS, name="features"),
        "holds NaN": logits(np.full((1, 8), np.nan, np.float32)),
    }
    for sentence, inputs in wrong.items():
        with pytest.raises(InferenceServerException, match=sentence) as refused:
            client.infer("digits", inputs)
        assert refused.value.status() == "422"


def test_a_network_behind_the_guard(server: Server, client: Any, sample_guard: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    inputs = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    session = runtime.InferenceSession(Path(server._log).parent / "model.onnx", providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"inputs": inputs})
    assert client.get_model_metadata("network")["inputs"] == [{"name": "inputs", "datatype": "FP32", "shape": [-1, 5]}]
    result = client.infer("network", logits(inputs, name="inputs"))
    np.testing.assert_allclose(result.as_numpy("logits"), expected, rtol=1e-6)
    detector = ns.load_detector(sample_guard)
    np.testing.assert_allclose(result.as_numpy("ood_score"), detector.stream(expected), rtol=1e-9)
    with pytest.raises(InferenceServerException, match="inputs must be FP32; got FP64"):
        client.infer("network", logits(inputs.astype(np.float64), name="inputs", datatype="FP64"))


# ---------------------------------------------------------------- beside a model that another server runs

KSERVE = "org.kubeflow.serving.inference"


def test_what_kserves_logger_sends_is_taken_in_once(server: Server) -> None:
    cloudevents = pytest.importorskip("cloudevents.core.bindings.http", reason="cloudevents is not installed")
    from cloudevents.core.v1.event import CloudEvent

    client = server.client()
    before = client.ask("GET", "/digits/v1/state").json["rows"]

    def send(kind: str, body: Any, id: str = "a-request", **more: str) -> Any:
        attributes = {"type": f"{KSERVE}.{kind}", "source": "http://localhost:9081/", "id": id, "specversion": "1.0"}
        event = CloudEvent(attributes | {"datacontenttype": "application/json", **more}, body)
        message = cloudevents.to_binary_event(event)
        headers = {name.title(): value for name, value in message.headers.items()}
        return client.ask("POST", "/digits/v1/events", bytes(message.body), **headers)

    outputs = tensors(ROWS[:6])["inputs"]
    text = {"name": "label", "shape": [6], "datatype": "BYTES", "data": ["a"] * 6}
    response = {"model_name": "digits", "id": "a-request", "outputs": [text, *outputs]}
    asked = send("request", {"inputs": [{"name": "pictures", "shape": [6, 1], "datatype": "UINT8", "data": [0] * 6}]})
    assert (asked.status, "ignored" in asked.json) == (202, True), asked
    first = send("response", response, inferenceservicename="reader")
    assert first.answer["taken_in"] == 6
    assert first.json["id"] == "a-request"
    assert send("response", response, inferenceservicename="reader").answer["repeated"]  # events come at least once
    assert send("response", response, id="another").answer["taken_in"] == 6
    assert client.ask("GET", "/digits/v1/state").json["rows"] == before + 12
    lacking = send("response", {"outputs": [text]}, id="third")
    assert (lacking.status, "must be logits" in lacking.json["error"]) == (422, True)
    assert client.ask("POST", "/digits/v1/events", response).status == 400  # no CloudEvent
    assert client.ask("GET", "/digits/v1/state").json["rows"] == before + 12


def test_a_logger_that_knows_an_address_only_sends_its_token_as_a_password(server: Server) -> None:
    import base64

    secret = add_token(Path(server._log).parent / "tokens.jsonl", "logger", "score")
    client = server.client()
    for password, status in ((secret, 200), (secret + "x", 401)):
        basic = base64.b64encode(f"logger:{password}".encode()).decode()
        reply = client.ask("POST", INFER.replace("guard", "locked"), tensors(ROWS[:1]), Authorization=f"Basic {basic}")
        assert reply.status == status
