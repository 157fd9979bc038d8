"""A new detector where another one served: it takes the old one's store over, or runs in its shadow until switched."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from guard.server.conftest import Start
from guard.server.kills import SAMPLE, Sender
from guard.server.running import Server, refusal
from normscale.guard import Policy, open_guard
from normscale.guard.server.tokens import add_token

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

ROWS = SAMPLE.test.logits.astype(np.float64)


@pytest.fixture(scope="module")
def new_detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fitted on half of the rows, with a threshold that flags more."""
    path = tmp_path_factory.mktemp("new") / "new.safetensors"
    half = SAMPLE.train[: len(SAMPLE.train) // 2]
    ns.NormScaling().fit(half).set_threshold(SAMPLE.validation, keep=0.8).save(path)
    return path


# ---------------------------------------------------------------- adopting a store


def test_a_server_takes_over_the_store_of_another_detector_when_told_to(
    start_server: Start, sample_guard: Path, new_detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = start_server()
    assert old.client().score(ROWS[:120]).status == 200
    old.stop()
    store = tmp_path / "store.sqlite"
    code, said = refusal(monkeypatch, new_detector, "--store", str(store))
    assert (code, "--adopt" in said) == (1, True)
    new = start_server("--adopt", guard=new_detector)
    state = new.client().state()
    assert (state["rows"], state["scored"]) == (0, 120)  # its statistics begin anew
    assert new.client().score(ROWS[:1]).answer["rows"] == 1
    new.stop()
    again = start_server(guard=new_detector)  # it is the new detector's now
    assert again.client().state()["rows"] == 1
    again.stop()
    file = tmp_path / "guards.toml"
    file.write_text(f"[cameras]\ndetector = '{sample_guard}'\nstore = '{store}'\n")
    assert refusal(monkeypatch, file)[0] == 1
    assert refusal(monkeypatch, file, "--adopt")[0] == 1  # of several guards, the file says so
    file.write_text(file.read_text() + "adopt = true\n")
    with Server(file, tmp_path / "toml.log") as server:
        assert server.client().ask("GET", "/cameras/v1/state").json["scored"] == 121


# ---------------------------------------------------------------- a shadow


def shadow_options(new_detector: Path, folder: Path) -> tuple[str, ...]:
    return ("--shadow", str(new_detector), "--shadow-store", str(folder / "shadow.sqlite"), "--log-format", "json")


def test_a_shadow_is_watched_then_switched_to_by_an_admin_and_serves_after_a_restart(
    start_server: Start, new_detector: Path, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.jsonl"
    secrets = {role: add_token(tokens, f"the-{role}", role) for role in ("score", "read", "admin")}
    options = (*shadow_options(new_detector, tmp_path), "--tokens", str(tokens), "--workers", "2")
    server = start_server(*options)
    scorer, reader, admin = (server.client(secrets[role]) for role in ("score", "read", "admin"))
    assert len(ROWS) >= 300
    blocks = [ROWS[i : i + 50] for i in range(0, 300, 50)] * 4
    answers = [scorer.score(block).answer for block in blocks]
    twin = open_guard(ns.load_detector(new_detector), ":memory:", Policy())
    expected = [twin.score(block) for block in blocks]

    served = np.concatenate([answer["is_ood"] for answer in answers])
    shadowed = np.concatenate([verdict.is_ood for verdict in expected])
    agreement = {
        "rows": 1200,
        "both": int((served & shadowed).sum()),
        "serving_only": int((served & ~shadowed).sum()),
        "shadow_only": int((shadowed & ~served).sum()),
    }
    state = reader.state()
    assert (state["shadow"]["agreement"], state["shadow"]["trouble"], state["switched"]) == (agreement, None, None)
    assert (
        state["shadow"]["flagged_share"] == shadowed.mean() > served.mean() == state["shadow"]["serving_flagged_share"]
    )
    assert (state["scored"], state["shadow"]["rows"]) == (1200, twin.state.rows)
    metrics = reader.ask("GET", "/metrics").body.decode()
    assert f'normscale_shadow_rows_total{{flagged_by="both",guard="guard"}} {float(agreement["both"])}' in metrics
    assert (
        f'normscale_shadow_rows_total{{flagged_by="shadow",guard="guard"}} {float(agreement["shadow_only"])}' in metrics
    )
    assert 'normscale_shadow_up{guard="guard"} 1.0' in metrics
    (line,) = log_lines(server, event="shadow")
    assert line["rows"] == 1000

    for client, status in ((scorer, 403), (reader, 403), (admin, 200)):
        assert client.ask("POST", "/v1/switch", {}).status == status
    assert admin.ask("POST", "/v1/switch", {}).status == 422  # there is nothing left to switch to
    (decision,) = log_lines(server, event="decision", what="switch")
    assert decision["by"] == "the-admin"
    for number in range(12):  # on connections of their own: both workers serve the new detector
        row = ROWS[number : number + 1]
        answer = server.client(secrets["score"]).score(row).answer
        np.testing.assert_allclose(answer["ood_score"], twin.score(row).scores, rtol=1e-12)
    state = reader.state()
    assert (state["shadow"], state["switched"]["by"]) == (None, "the-admin")
    assert (state["scored"], state["threshold"]["value"]) == (1212, twin.state.threshold.value)
    server.stop()

    again = start_server(*options)
    assert "switched to from" in again.log
    answer = again.client(secrets["score"]).score(ROWS[:5]).answer
    np.testing.assert_allclose(answer["ood_score"], twin.score(ROWS[:5]).scores, rtol=1e-12)
    assert again.client(secrets["read"]).state()["switched"] == state["switched"]
    assert "/v1/switch" in again.client().ask("GET", "/openapi.json").json["paths"]
    again.stop()
    alone = start_server("--tokens", str(tokens), guard=new_detector, store=str(tmp_path / "shadow.sqlite"))
    assert alone.client(secrets["read"]).state()["scored"] == 1217  # its store is a store like any other


def log_lines(server: Server, **fields: Any) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return [line for line in found if all(line.get(name) == value for name, value in fields.items())]


def test_what_was_switched_from_is_not_served_by_mistake(
    start_server: Start, sample_guard: Path, new_detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, options = str(tmp_path / "store.sqlite"), shadow_options(new_detector, tmp_path)
    server = start_server(*options)
    assert server.client().ask("POST", "/v1/switch", {}).json["switched"]["by"] == "127.0.0.1"
    server.stop()
    code, said = refusal(monkeypatch, sample_guard, "--store", store)
    assert (code, "was switched to" in said) == (1, True)
    code, said = refusal(monkeypatch, sample_guard, "--store", store, "--shadow", str(sample_guard))
    assert (code, "was switched to" in said) == (1, True)
    code, said = refusal(
        monkeypatch, sample_guard, "--store", store, "--shadow", str(new_detector), "--shadow-store", store
    )
    assert (code, "a store of its own" in said) == (1, True)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kill_9_around_a_switch_loses_and_doubles_nothing(
    start_server: Start, new_detector: Path, tmp_path: Path, seed: int
) -> None:
    options = (*shadow_options(new_detector, tmp_path), "--on-drift", "ignore", "--outlier", "inf")
    server = [start_server(*options)]
    senders = [Sender(number, lambda: server[0].port, keyed=True) for number in range(2)]
    for sender in senders:
        sender.start()
    time.sleep(0.3)
    statuses: list[int] = []

    def switch() -> None:
        try:
            statuses.append(server[0].client().ask("POST", "/v1/switch", {}).status)
        except (OSError, http.client.HTTPException):  # killed before, or within its answer
            statuses.append(0)

    asking = threading.Thread(target=switch)
    asking.start()
    time.sleep(random.Random(seed).uniform(0.0, 0.03))
    server[0].kill()
    asking.join()
    server[0] = start_server(*options)
    reader = server[0].client()
    switched = reader.state()["switched"] is not None
    assert switched or statuses != [200]  # who was told so can rely on it
    if not switched:
        assert reader.ask("POST", "/v1/switch", {}).status == 200
    time.sleep(0.3)
    for sender in senders:
        sender.stop()
    for sender in senders:
        sender.finish()
    sent = sum(len(block.rows) for sender in senders for block in sender.acknowledged)
    state = server[0].client().state()
    assert state["switched"]["by"] == "127.0.0.1"
    assert (state["scored"], state["rows"]) == (sent, sent)  # each of them once, whichever detector answered
    server[0].stop()
