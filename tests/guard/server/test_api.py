"""The routes of a real server: what they answer is what the library computes, in every format, also after a restart."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from guard.server.conftest import Start
from guard.server.kills import SAMPLE, Moments
from guard.server.models import Weights, linear_model
from guard.server.running import NPY, Client, Server, npy, refusal
from normscale._validate import FloatArray
from normscale.errors import StoreUnavailable

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

ARROW = "application/vnd.apache.arrow.stream"
ROWS = SAMPLE.test.logits[:60].astype(np.float64)
FEATURES = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Weights, Weights]:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    return path, *linear_model(path, FEATURES, 8)


@pytest.fixture(scope="module")
def server(sample_guard: Path, model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    folder = tmp_path_factory.mktemp("server")
    options = ("--store", str(folder / "store.sqlite"), "--on-drift", "ignore", "--model", str(model[0]))
    with Server(sample_guard, folder / "log", *options) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """Of a guard that has seen nothing yet."""
    client = server.client()
    for path in ("/v1/reset", "/v1/thaw", "/v1/quarantine/discard"):
        assert client.ask("POST", path).status == 200
    assert client.ask("PUT", "/v1/threshold", {"value": None}).status == 200
    yield client
    client.close()
    assert "Traceback" not in server.log


def fresh(path: Path) -> ns.NormScaling:
    detector = ns.load_detector(path)
    assert isinstance(detector, ns.NormScaling)
    return detector


def joined(answers: list[Any], name: str) -> list[Any]:
    return [value for answer in answers for value in answer[name]]


def arrow(rows: FloatArray) -> bytes:
    pa = pytest.importorskip("pyarrow", reason="the extra [arrow] is not installed")
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    batch = pa.record_batch({"logits": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def test_scores_are_those_of_the_stream(client: Client, sample_guard: Path) -> None:
    twin = fresh(sample_guard)
    expected = twin.stream(ROWS)
    replies = [client.score(ROWS[0]), client.score(ROWS[1:2]), client.score(ROWS[2:31]), client.score(ROWS[31:])]
    answers = [reply.json for reply in replies]
    scores = joined(answers, "scores")
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)
    threshold = twin.threshold_
    assert threshold is not None
    assert joined(answers, "is_ood") == (expected > threshold.value).tolist()
    assert joined(answers, "predicted") == ROWS.argmax(axis=1).tolist()
    assert [answer["rows"] for answer in answers] == [1, 2, 31, 60]
    assert {(answer["mode"], answer["taken_in"] == len(answer["scores"])) for answer in answers} == {("running", True)}
    told = Moments.told(client.state())
    assert told.distance(Moments(60, twin.running_.weight, twin.running_.mean, twin.running_.std)) < 1e-12


def test_every_format_in_and_out_says_the_same(client: Client, sample_guard: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="the extra [arrow] is not installed")
    twin = fresh(sample_guard)
    for number, (body, kind) in enumerate(((npy(ROWS), NPY), (arrow(ROWS), ARROW), ({"logits": ROWS.tolist()}, ""))):
        expected = twin.stream(ROWS)
        accept = (NPY, ARROW, "application/json")[(number + 1) % 3]
        reply = client.ask("POST", "/v1/score?scaled=true", body, kind, Accept=accept)
        assert (reply.status, reply.headers["content-type"]) == (200, accept)
        if accept == NPY:
            records = np.load(io.BytesIO(reply.body))
            scores, predicted, scaled = records["score"], records["predicted"], records["scaled"]
        elif accept == ARROW:
            table = pa.ipc.open_stream(reply.body).read_all()
            scores, predicted, scaled = (np.array(table[name].to_pylist()) for name in ("score", "predicted", "scaled"))
        else:
            scores, predicted, scaled = (np.array(reply.json[name]) for name in ("scores", "predicted", "scaled"))
        np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(predicted, ROWS.argmax(axis=1))
        assert scaled.shape == ROWS.shape
        rows = reply.json["rows"] if accept == "application/json" else int(reply.headers["x-guard-rows"])
        assert rows == 60 * (number + 1)


def test_scaled_logits_are_the_detectors_own(client: Client, sample_guard: Path) -> None:
    twin = fresh(sample_guard)
    expected = []
    for row in ROWS[:20]:  # the statistics take the row in, then scale it
        twin.stream(row[None])
        expected.append(twin.scale(row[None])[0])
    running = client.ask("POST", "/v1/score?scaled=true", {"logits": ROWS[:20].tolist()}).json
    np.testing.assert_allclose(running["scaled"], expected, rtol=1e-10, atol=1e-12)
    assert client.ask("POST", "/v1/freeze", {"reason": "to look"}).status == 200
    # --on-drift ignore is about drift; a person's word holds
    frozen = client.ask("POST", "/v1/score?scaled=true", {"logits": ROWS[:20].tolist()}).json
    np.testing.assert_allclose(frozen["scaled"], fresh(sample_guard).scale(ROWS[:20]), rtol=1e-12)
    assert frozen["mode"] == "frozen"
    assert "scaled" not in client.score(ROWS[:1]).json
    assert client.ask("POST", "/v1/score?scaled=perhaps", {"logits": ROWS[:1].tolist()}).status == 422


def test_classify_is_the_model_and_the_detector(client: Client, sample_guard: Path, model: Any) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    path, weights, bias = model
    inputs = np.random.default_rng(1).normal(size=(12, FEATURES)).astype(np.float32)
    (logits,) = runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"inputs": inputs})
    np.testing.assert_allclose(logits, inputs @ weights + bias, rtol=1e-5, atol=1e-5)  # the model is what we think
    expected = fresh(sample_guard).stream(logits)
    answers = [
        client.ask("POST", "/v1/classify", {"inputs": inputs[:5].tolist()}).json,
        client.ask("POST", "/v1/classify", npy(inputs[5:]), NPY).json,
    ]
    np.testing.assert_allclose(joined(answers, "scores"), expected, rtol=1e-9, atol=1e-9)
    assert joined(answers, "predicted") == logits.argmax(axis=1).tolist()
    assert client.state()["rows"] == 12
    for wrong in ([[1.0] * 4], [], [["a"] * 5], [1.0] * 4):
        assert client.ask("POST", "/v1/classify", {"inputs": wrong}).status in (400, 422)
    assert client.ask("POST", "/v1/classify", {"logits": inputs.tolist()}).status in (400, 422)
    assert client.state()["rows"] == 12


@pytest.mark.parametrize(
    "tail",
    [
        ("Softmax logits -> p",),
        ("Exp logits -> e", "ReduceSum e axes -> s", "Div e s -> p"),
        ("Exp logits -> e", "ReduceSum e axes -> s", "Reciprocal s -> r", "Mul e r -> p"),
    ],
    ids=lambda tail: tail[-1],
)
def test_a_model_that_ends_in_a_softmax_is_entered_before_it_and_says_so(
    start_server: Start, tmp_path: Path, sample_guard: Path, tail: tuple[str, ...]
) -> None:
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    weights, bias = linear_model(tmp_path / "model.onnx", FEATURES, 8, *tail)
    inputs = np.random.default_rng(1).normal(size=(12, FEATURES)).astype(np.float32)
    server = start_server("--on-drift", "ignore", "--model", str(tmp_path / "model.onnx"))
    assert "the detector reads 'logits'" in server.log
    answer = server.client().ask("POST", "/v1/classify", {"inputs": inputs.tolist()})
    expected = fresh(sample_guard).stream(inputs @ weights + bias)
    np.testing.assert_allclose(answer.json["scores"], expected, rtol=1e-4, atol=1e-4)


def test_a_model_whose_outputs_are_probabilities_is_refused_at_the_start(
    sample_guard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made in a way that no look at its nodes tells; else each client would be blamed for it."""
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    tail = ("Softplus logits -> e", "ReduceSum e axes -> s", "Div e s -> p")
    linear_model(tmp_path / "model.onnx", FEATURES, 8, *tail)
    options = ("--store", ":memory:", "--model", str(tmp_path / "model.onnx"))
    code, said = refusal(monkeypatch, sample_guard, *options)
    assert code != 0
    assert "'p' holds probabilities, not logits" in said
    assert "--logits" in said


def test_answers_give_the_names_of_classes(start_server: Start) -> None:
    answer = start_server(guard="sample", store=":memory:").client().score(ROWS[:5]).json
    assert answer["predicted_names"] == [SAMPLE.class_names[index] for index in answer["predicted"]]


def test_a_key_counts_once_and_serves_one_body_only(client: Client) -> None:
    key = "a key of its own " + str(np.random.default_rng().integers(1 << 60))
    first = client.score(ROWS[:3], Idempotency_Key=key)
    again = client.score(ROWS[:3], Idempotency_Key=key)
    assert first.body == again.body
    assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")
    other = client.score(ROWS[:4], Idempotency_Key=key)
    assert other.status == 422
    assert "other rows" in other.json["error"]
    assert client.state()["rows"] == 3
    for bad in ("", "x" * 129, "\xe4"):
        assert client.score(ROWS[:1], Idempotency_Key=bad).status == 400
    assert client.state()["rows"] == 3


def test_the_threshold_moves_and_bad_ones_do_not_move_it(client: Client) -> None:
    own = client.state()["threshold"]["value"]
    scores = np.array(client.score(ROWS).json["scores"])
    value = float(np.median(scores))
    told = client.ask("PUT", "/v1/threshold", {"value": value}).json["threshold"]
    assert (told["value"], told["own"]) == (value, own)
    answer = client.score(ROWS).json
    assert answer["is_ood"] == (np.array(answer["scores"]) > value).tolist()
    for bad in ({"value": "high"}, {}, {"value": 1.0, "more": 1}, [1.0], b'{"value": NaN}', b'{"value": 1e999}', b"{"):
        assert client.ask("PUT", "/v1/threshold", bad).status == 422
    assert client.state()["threshold"]["value"] == value
    assert client.ask("PUT", "/v1/threshold", {"value": None}).json["threshold"]["value"] == own


def test_metrics_are_prometheus_and_say_what_the_state_says(client: Client) -> None:
    parse = pytest.importorskip("prometheus_client.parser").text_string_to_metric_families
    before = samples(client, parse)
    client.score(ROWS)
    client.score([1.0])
    client.ask("GET", "/no/such/path/1")
    client.ask("GET", "/no/such/path/2")
    found, state = samples(client, parse), client.state()
    assert found["normscale_rows",] == state["rows"] == 60
    assert found["normscale_scored_rows_total",] == state["scored"]
    assert found["normscale_frozen",] == 0
    assert found["normscale_threshold",] == state["threshold"]["value"]

    def grown(*name: str) -> float:
        return found[name] - before.get(name, 0.0)

    assert grown("normscale_requests_total", "/v1/score", "200") == 1
    assert grown("normscale_requests_total", "/v1/score", "422") == 1
    assert grown("normscale_requests_total", "other", "404") == 2  # paths of strangers share one name
    assert grown("normscale_score_seconds_count", "/v1/score") == 1
    assert "normscale_drift" in {name[0] for name in found}


def samples(client: Client, parse: Any) -> dict[tuple[str, ...], float]:
    reply = client.ask("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(parse(reply.body.decode()))
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_live_events_follow_the_rows(server: Server, client: Client) -> None:
    watcher = server.client()
    watcher.connection.request("GET", "/v1/live")
    response = watcher.connection.getresponse()
    assert response.getheader("content-type", "").startswith("text/event-stream")

    def event() -> Any:
        lines = iter(response.readline, b"")
        assert next(line for line in lines if line.startswith(b"event:")) == b"event: view\n"
        return json.loads(next(lines).removeprefix(b"data: "))

    first = event()
    assert first["rows"] == 0
    scores = client.score(ROWS[:40]).json["scores"]  # of so few the page gets all
    view = next(found for found in (event() for _ in range(6)) if found["rows"] == 40)  # a few seconds
    assert view["classes"] == client.state()["classes"]
    np.testing.assert_allclose(view["recent"]["score"][-40:], scores, rtol=1e-6, atol=1e-6)
    watcher.close()


def test_decisions_survive_a_restart(start_server: Start, sample_guard: Path) -> None:
    server = start_server("--on-drift", "warn")
    client = server.client()
    client.score(ROWS[:10])
    client.ask("PUT", "/v1/threshold", {"value": 0.25})
    client.ask("POST", "/v1/freeze", {"reason": "a new camera"})
    frozen = client.score(ROWS[10:25], X_Forwarded_For="10.1.2.3").json  # who has no token is known by its address only
    np.testing.assert_allclose(frozen["scores"], fresh(sample_guard).score(ROWS[10:25]), rtol=1e-12)
    assert (frozen["mode"], frozen["taken_in"], frozen["rows"]) == ("frozen", 0, 10)
    server.kill()

    server = start_server("--on-drift", "warn")
    client = server.client()
    state = client.state()
    assert state["threshold"]["value"] == 0.25
    assert (state["mode"], state["rows"], state["scored"], state["quarantined"]) == ("frozen", 10, 25, 15)
    assert state["frozen_because"] == "a new camera"
    (part,) = client.ask("GET", "/v1/quarantine").json["quarantine"]
    assert (part["rows"], part["cause"], part["client"]) == (15, "frozen", "127.0.0.1")
    assert client.ask("POST", "/v1/quarantine/accept", {"client": "somebody else"}).json["rows"] == 10
    assert client.ask("POST", "/v1/quarantine/accept").json["rows"] == 25
    assert client.ask("POST", "/v1/thaw").json["mode"] == "running"
    client.ask("POST", "/v1/freeze")
    client.score(ROWS[25:30])
    assert client.ask("POST", "/v1/quarantine/discard").json["quarantined"] == 0
    client.ask("POST", "/v1/thaw")
    client.score(ROWS[30:40])
    server.kill()

    client = start_server("--on-drift", "warn").client()
    state = client.state()
    # The training counts as 1000 rows in a guard that does not trust its stream.
    running = fresh(sample_guard).training_.reweighted(1000.0).update(np.concatenate([ROWS[:25], ROWS[30:40]]))
    told = Moments.told(state)
    assert told.distance(Moments(35, running.weight, running.mean, running.std)) < 1e-12
    assert (state["mode"], state["quarantined"], client.ask("GET", "/v1/quarantine").json["quarantine"]) == (
        "running",
        0,
        [],
    )
    assert client.ask("POST", "/v1/reset").json["rows"] == 0
    assert client.state()["classes"]["weight"] == 1000.0


def test_the_demo_goes_on_when_the_disk_has_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscale.guard.server import demo
    from normscale.guard.server.instruments import Instruments

    class Flaky:
        asked = 0

        async def submit(self, request: Any) -> None:
            self.asked += 1
            if self.asked == 1:
                raise StoreUnavailable("no room", full=True)
            if self.asked == 4:
                raise asyncio.CancelledError

    monkeypatch.setattr(demo, "_PAUSE", 0.0)
    commit, instruments = Flaky(), Instruments()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(demo.play(commit, instruments))  # type: ignore[arg-type]
    assert commit.asked == 4
    assert instruments.summary()["throughput"]["requests"] == 0.2  # two that were answered, in ten seconds
