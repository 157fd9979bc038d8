"""Nobody steers a real server: drift freezes it and calm thaws it, caps hold, and what lies far out stays out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from guard.server.kills import SAMPLE, Moments
from guard.server.running import Client, Server
from normscale._validate import FloatArray

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

DIGITS = np.concatenate([SAMPLE.test.logits, SAMPLE.validation.logits]).astype(np.float64)
ONES = DIGITS[DIGITS.argmax(axis=1) == 1]
WINDOW, CALM = 500, 600
FROZEN = 'normscale_frozen{guard="guard"}'


def draw(rows: FloatArray, n: int, seed: int) -> FloatArray:
    chosen: FloatArray = rows[np.random.default_rng(seed).integers(0, len(rows), n)]
    return chosen


@pytest.fixture(scope="module")
def server(sample_guard: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    options = ("--store", str(folder / "store.sqlite"), "--window", str(WINDOW), "--calm", str(CALM), "--shift", "inf")
    with Server(sample_guard, folder / "log", *options) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client = server.client()
    assert client.ask("POST", "/v1/reset").status == 200
    yield client
    assert "Traceback" not in server.log


def metric(client: Client, line: str) -> float:
    text = client.ask("GET", "/metrics").body.decode()
    (value,) = (found.split()[-1] for found in text.splitlines() if found.startswith(line + " "))
    return float(value)


def test_a_stream_of_one_class_freezes_the_guard_and_a_calm_one_thaws_it(client: Client, sample_guard: Path) -> None:
    taken = []
    for seed in range(12):
        rows = draw(DIGITS, 50, seed)
        assert client.score(rows).answer["mode"] == "running"
        taken.append(rows)
    before = client.state()
    assert before["rows"] == 600

    answer: Any = {"mode": "running"}
    sent = 0
    while answer["mode"] == "running":
        rows = draw(ONES, 50, 100 + sent)
        answer = client.score(rows).answer
        if answer["mode"] == "running":
            taken.append(rows)
        sent += 50
        assert sent <= 2 * WINDOW
    taken_before_the_alarm = sum(map(len, taken))
    frozen = ns.load_detector(sample_guard).score(rows)
    np.testing.assert_allclose(
        answer["ood_score"], frozen, rtol=1e-12
    )  # the rows that raised it are not believed either
    assert "class_balance" in answer["alarms"]
    assert answer["taken_in"] == 0
    state = client.state()
    assert "are predicted class 1" in state["frozen_because"]
    assert {alarm["name"] for alarm in state["alarms"]} == set(answer["alarms"].split(", "))
    assert (metric(client, FROZEN), metric(client, 'normscale_alarm{guard="guard",reading="class_balance"}')) == (1, 1)
    for seed in range(5):
        assert client.score(draw(ONES, 10, seed)).answer["rows"] == answer["rows"]

    rows_until_calm = 0
    while client.state()["mode"] == "frozen":
        rows = draw(DIGITS, 50, 1000 + rows_until_calm)
        answer = client.score(rows).answer
        rows_until_calm += 50
        assert rows_until_calm < 5000
    assert rows_until_calm > CALM  # the window must forget first, then the calm must last
    assert (answer["mode"], answer["taken_in"], answer["alarms"]) == ("running", 50, "")
    state = client.state()
    # It begins again from the detector file, which counts as 1000 rows: what came before the alarm is forgotten.
    twin = ns.load_detector(sample_guard)
    assert isinstance(twin, ns.NormScaling)
    running = twin.training_.reweighted(1000.0).update(rows)
    expected = Moments(50, running.weight, running.mean, running.std)
    assert Moments.told(state).distance(expected) < 1e-12
    scored = state["scored"] - before["scored"]
    assert state["kept_out"] - before["kept_out"] == scored - (taken_before_the_alarm - 600) - 50
    assert metric(client, FROZEN) == 0


def test_one_row_far_out_is_flagged_and_moves_nothing(client: Client) -> None:
    client.score(draw(DIGITS, 50, 0))
    before = client.state()
    for far in (1e30, -1e30, 1e99):
        rows = draw(DIGITS, 3, 1)
        rows[1, 2] = far
        answer = client.score(rows).answer
        assert answer["is_ood"][1] is True
        assert (answer["taken_in"], answer["mode"], answer["alarms"]) == (2, "running", "")
    after = client.state()
    assert (after["rows"], after["kept_out"], after["mode"]) == (before["rows"] + 6, before["kept_out"] + 3, "running")
    assert np.abs(after["classes"]["running_mean"]).max() < 100
    answer = client.score([[1e30] * 8]).answer
    assert (answer["is_ood"], answer["taken_in"]) == ([True], 0)
    assert client.score([[1e101] + [0.0] * 7]).status == 422  # its square would be too much for any sum
