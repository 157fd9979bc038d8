"""The routes of a real server: what they answer is what the library computes, in both forms, also after a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from guard.server.conftest import Start
from guard.server.kills import SAMPLE, Moments
from guard.server.models import linear_model
from guard.server.running import INFER, Client, Server, binary_tensors, refusal, tensors
from normscale.errors import StoreUnavailable

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

ROWS = SAMPLE.test.logits[:60].astype(np.float64)
FEATURES = 5


@pytest.fixture(scope="module")
def server(sample_guard: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with Server(sample_guard, folder / "log", "--store", str(folder / "s.sqlite"), "--on-drift", "ignore") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """Of a guard that has seen nothing yet."""
    client = server.client()
    for path in ("/v1/reset", "/v1/thaw"):
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


def test_scores_are_those_of_the_stream(client: Client, sample_guard: Path) -> None:
    twin = fresh(sample_guard)
    expected = twin.stream(ROWS)
    replies = [client.score(ROWS[0]), client.score(ROWS[1:2]), client.score(ROWS[2:31]), client.score(ROWS[31:])]
    answers = [reply.answer for reply in replies]
    scores = joined(answers, "ood_score")
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)
    threshold = twin.threshold_
    assert threshold is not None
    assert joined(answers, "is_ood") == (expected > threshold.value).tolist()
    assert joined(answers, "predicted") == ROWS.argmax(axis=1).tolist()
    assert [answer["rows"] for answer in answers] == [1, 2, 31, 60]
    assert {(answer["mode"], answer["taken_in"] == len(answer["ood_score"])) for answer in answers} == {
        ("running", True)
    }
    told = Moments.told(client.state())
    assert told.distance(Moments(60, twin.running_.weight, twin.running_.mean, twin.running_.std)) < 1e-12


def test_both_forms_in_and_out_say_the_same(client: Client, sample_guard: Path) -> None:
    twin = fresh(sample_guard)
    for number, (binary_in, binary_out) in enumerate(((True, False), (False, True), (True, True))):
        expected = twin.stream(ROWS)
        body, headers = binary_tensors(ROWS, binary_data_output=binary_out)
        reply = client.ask("POST", INFER, body, **headers)
        if not binary_in:
            reply = client.ask("POST", INFER, tensors(ROWS, binary_data_output=binary_out))
            expected = twin.stream(ROWS)
        if binary_out:
            head = json.loads(reply.body[: int(reply.headers["inference-header-content-length"])])
            sizes = [one["parameters"]["binary_data_size"] for one in head["outputs"]]
            data = reply.body[-sum(sizes) :]
            scores, predicted = np.frombuffer(data[: sizes[0]]), np.frombuffer(data[-sizes[2] :], np.int64)
            assert [(one["name"], one["datatype"], one["shape"]) for one in head["outputs"]] == [
                ("ood_score", "FP64", [60]), ("is_ood", "BOOL", [60]), ("predicted", "INT64", [60])
            ]  # fmt: skip
        else:
            scores, predicted = reply.answer["ood_score"], reply.answer["predicted"]
            head = reply.json
        np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(predicted, ROWS.argmax(axis=1))
        assert head["parameters"]["rows"] == 60 * (number + 1 + (number > 0))


def test_the_model_and_the_detector_in_one_call(start_server: Start, sample_guard: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    weights, bias = linear_model(tmp_path / "model.onnx", FEATURES, 8)
    inputs = np.random.default_rng(1).normal(size=(12, FEATURES)).astype(np.float32)
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"inputs": inputs})
    np.testing.assert_allclose(logits, inputs @ weights + bias, rtol=1e-5, atol=1e-5)  # the model is what we think
    expected = fresh(sample_guard).stream(logits)
    client = start_server("--on-drift", "ignore", "--model", str(tmp_path / "model.onnx")).client()
    answers = [client.score({"inputs": inputs[:5]}).answer, client.score({"inputs": inputs[5:]}, binary=True).answer]
    np.testing.assert_allclose(joined(answers, "ood_score"), expected, rtol=1e-9, atol=1e-9)
    assert joined(answers, "predicted") == logits.argmax(axis=1).tolist()
    np.testing.assert_allclose(joined(answers, "logits"), logits.ravel(), rtol=1e-6)  # its own output
    assert client.state()["rows"] == 12
    for wrong in ({"inputs": inputs[:, :4]}, {"inputs": inputs.astype(np.float64)}, {"logits": inputs}):
        assert client.score(wrong).status == 422
    tensor = {"name": "logits"}
    assert client.ask("POST", INFER, {**tensors({"inputs": inputs}), "outputs": [tensor]}).answer.keys() >= {"logits"}
    assert client.ask("POST", INFER, {**tensors({"inputs": inputs}), "outputs": [{"name": "p"}]}).status == 422
    assert client.state()["rows"] == 24


def test_a_model_that_ends_in_a_softmax_is_entered_before_it_and_says_so(
    start_server: Start, tmp_path: Path, sample_guard: Path
) -> None:
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    weights, bias = linear_model(tmp_path / "model.onnx", FEATURES, 8, "Softmax logits -> p")
    inputs = np.random.default_rng(1).normal(size=(12, FEATURES)).astype(np.float32)
    server = start_server("--on-drift", "ignore", "--model", str(tmp_path / "model.onnx"))
    assert "the detector reads 'logits'" in server.log
    answer = server.client().score({"inputs": inputs}).answer
    expected = fresh(sample_guard).stream(inputs @ weights + bias)
    np.testing.assert_allclose(answer["ood_score"], expected, rtol=1e-4, atol=1e-4)


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
    answer = start_server(guard="sample", store=":memory:").client().score(ROWS[:5]).answer
    assert answer["predicted"] == [SAMPLE.class_names[index] for index in ROWS[:5].argmax(axis=1)]


def test_a_key_counts_once_and_serves_one_body_only(client: Client) -> None:
    key = "a key of its own " + str(np.random.default_rng().integers(1 << 60))
    first = client.score(ROWS[:3], key=key)
    again = client.score(ROWS[:3], key=key)
    assert first.answer | {"repeated": True} == again.answer
    assert "repeated" not in first.answer
    other = client.score(ROWS[:4], key=key)
    assert other.status == 422
    assert "other rows" in other.json["error"]
    assert client.state()["rows"] == 3
    for bad in ("", "x" * 129, "\xe4"):
        assert client.score(ROWS[:1], key=bad).status == 422
    assert client.state()["rows"] == 3


def test_the_threshold_moves_and_bad_ones_do_not_move_it(client: Client) -> None:
    own = client.state()["threshold"]["value"]
    scores = np.array(client.score(ROWS).answer["ood_score"])
    value = float(np.median(scores))
    told = client.ask("PUT", "/v1/threshold", {"value": value}).json["threshold"]
    assert (told["value"], told["own"]) == (value, own)
    answer = client.score(ROWS).answer
    assert answer["is_ood"] == (np.array(answer["ood_score"]) > value).tolist()
    for bad in ({"value": "high"}, {}, {"value": 1.0, "more": 1}, [1.0], b'{"value": NaN}', b'{"value": 1e999}', b"{"):
        assert client.ask("PUT", "/v1/threshold", bad).status == 422
    assert client.state()["threshold"]["value"] == value
    assert client.ask("PUT", "/v1/threshold", {"value": None}).json["threshold"]["value"] == own


def test_metrics_are_prometheus_and_say_what_the_state_says(client: Client) -> None:
    parse = pytest.importorskip("prometheus_client.parser").text_string_to_metric_families
    before = samples(client, parse)
    first = client.score(ROWS)
    client.score([1.0])
    client.ask("GET", "/no/such/path/1")
    client.ask("GET", "/no/such/path/2")
    found, state = samples(client, parse), client.state()
    assert found["normscale_statistics_rows", "guard"] == state["rows"] == 60
    assert found["normscale_frozen", "guard"] == 0
    assert found["normscale_threshold", "guard"] == state["threshold"]["value"]

    def grown(*name: str) -> float:
        return found[name] - before.get(name, 0.0)

    answer = first.answer
    threshold = state["threshold"]["value"]
    assert grown("normscale_rows_total", "taken_in", "guard") == 60
    assert grown("normscale_rows_total", "kept_out", "guard") == 0
    for index in range(8):  # by predicted class
        flagged = sum(was for was, one in zip(answer["is_ood"], answer["predicted"], strict=True) if one == index)
        name = ("normscale_flagged_rows_total", "guard", str(index))
        assert (grown(*name) if name in found else 0) == flagged
    assert grown("normscale_score_margin_count", "guard") == 60
    above = sum(answer["is_ood"])
    assert grown("normscale_score_margin_bucket", "guard", "0.0") == 60 - above
    margins = np.array(answer["ood_score"]) - threshold
    assert grown("normscale_score_margin_bucket", "guard", "1.0") == np.count_nonzero(margins <= 1.0)
    assert grown("normscale_requests_total", INFER, "200") == 1
    assert grown("normscale_requests_total", INFER, "422") == 1
    assert grown("normscale_requests_total", "other", "404") == 2  # paths of strangers share one name
    assert grown("normscale_infer_seconds_count", "guard") == 1
    for reading in state["readings"]:
        assert found["normscale_drift_limit", "guard", reading["name"]] == float(reading["limit"])
        assert ("normscale_drift", "guard", reading["name"]) in found
        assert found["normscale_alarms_total", "guard", reading["name"]] >= 0
    assert {"process_resident_memory_bytes", "normscale_build_info"} <= {name[0] for name in found}


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
    scores = client.score(ROWS[:40]).answer["ood_score"]  # of so few the page gets all
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
    frozen = client.score(
        ROWS[10:25], X_Forwarded_For="10.1.2.3"
    ).answer  # who has no token is known by its address only
    np.testing.assert_allclose(frozen["ood_score"], fresh(sample_guard).score(ROWS[10:25]), rtol=1e-12)
    assert (frozen["mode"], frozen["taken_in"], frozen["rows"]) == ("frozen", 0, 10)
    server.kill()

    server = start_server("--on-drift", "warn")
    client = server.client()
    state = client.state()
    assert state["threshold"]["value"] == 0.25
    assert (state["mode"], state["rows"], state["scored"], state["kept_out"]) == ("frozen", 10, 25, 15)
    assert state["frozen_because"] == "a new camera"
    assert client.ask("POST", "/v1/thaw").json["mode"] == "running"
    client.score(ROWS[30:40])
    server.kill()

    client = start_server("--on-drift", "warn").client()
    state = client.state()
    # The training counts as 1000 rows in a guard that does not trust its stream.
    running = fresh(sample_guard).training_.reweighted(1000.0).update(np.concatenate([ROWS[:10], ROWS[30:40]]))
    told = Moments.told(state)
    assert told.distance(Moments(20, running.weight, running.mean, running.std)) < 1e-12
    assert (state["mode"], state["kept_out"]) == ("running", 15)
    assert client.ask("POST", "/v1/reset").json["rows"] == 0
    assert client.state()["classes"]["weight"] == 1000.0


def test_the_demo_goes_on_when_the_disk_has_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscale.guard.server import demo

    class Flaky:
        asked = 0

        async def run(self, request: Any) -> None:
            self.asked += 1
            if self.asked == 1:
                raise StoreUnavailable("no room", full=True)
            if self.asked == 4:
                raise asyncio.CancelledError

    monkeypatch.setattr(demo, "_PAUSE", 0.0)
    commit, counted = Flaky(), []
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(demo.play(commit, lambda *answer: counted.append(answer)))  # type: ignore[arg-type]
    assert (commit.asked, len(counted)) == (4, 2)
