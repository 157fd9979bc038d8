"""With ``stream_by="client"`` no client teaches another; what is kept of them is bounded, and survives everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guard.guards import detector, digits, guard, one_class, sample, send
from normscale.errors import FileFormatError, InvalidInput
from normscale.guard import Guard, Policy
from normscale.guard import guard as guard_module
from normscale.guard.server.view import state_document

LEARN = Policy(on_drift="ignore", outlier=float("inf"), stream_by="client")
WATCH = Policy(stream_by="client")


def sources(on: Guard) -> dict[str, Any]:
    """What the state says of every client's stream."""
    on.refresh()
    return {one["source"]: one for one in state_document(on)["streams"]["worst"]}


@pytest.mark.parametrize("name", ("norm_scaling", "robust_norm_scaling"))
def test_each_client_is_scored_by_its_own_stream(name: str, tmp_path: Path) -> None:
    rows = {"a": one_class(90), "b/left": digits(90), "b/right": sample().ood["uniform_noise"].logits[:90]}
    twins = {client: detector(name) for client in rows}
    for start in range(0, 90, 30):
        on = guard(tmp_path / "s", LEARN, detector(name))  # a new process each time
        for client, all_rows in rows.items():
            part = all_rows[start : start + 30]
            np.testing.assert_allclose(send(on, part, client=client).scores, twins[client].stream(part), rtol=1e-9)
    assert {client: one["rows"] for client, one in sources(on).items()} == dict.fromkeys(rows, 90)
    assert on.state.stream.rows == on.state.scored == 270


def test_processes_on_one_store_agree_on_every_stream(tmp_path: Path) -> None:
    first, second = (guard(tmp_path / "s", LEARN, detector("robust_norm_scaling")) for _ in range(2))
    twin, rows = detector("robust_norm_scaling"), digits(80)
    for i, on in enumerate((first, first, second, first, second, second, first, second)):
        send(on, digits(3, seed=i), client="another")
        part = rows[10 * i : 10 * i + 10]
        np.testing.assert_allclose(send(on, part, client="camera").scores, twin.stream(part), rtol=1e-9)


def test_the_streams_used_last_are_kept_and_whoever_has_most_loses_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "MOST_STREAMS", 5)
    on = guard(tmp_path / "s", LEARN)
    for client in ("gateway/1", "gateway/2", "camera"):
        send(on, digits(7), client=client)
    for i in range(12):
        send(on, digits(1), client=f"hostile/{i}")
    assert set(sources(on)) == {"gateway/1", "gateway/2", "camera", "hostile/10", "hostile/11"}
    assert send(on, digits(1), client="camera").rows == 8
    assert send(on, digits(1), client="hostile/0").rows == 1  # it was dropped, and begins anew
    assert set(sources(on)) == {"gateway/1", "gateway/2", "camera", "hostile/0", "hostile/11"}


def test_one_stream_freezes_and_the_others_go_on() -> None:
    on, told = guard(policy=WATCH, made=detector("robust_norm_scaling")), list[tuple[str, str]]()
    on.listeners.append(lambda _, own: told.extend((entry.event, entry.client) for entry in own))
    noise = sample().ood["uniform_noise"].logits
    for i in range(12):
        frozen = send(on, noise[i % 6 * 60 : i % 6 * 60 + 60], client="broken")
        running = send(on, digits(300, seed=i), client="good")
    assert (frozen.mode, running.mode, on.mode) == ("frozen", "running", "running")
    assert {one["source"]: one["standing"] for one in sources(on).values()} == {"broken": "frozen", "good": "running"}
    assert state_document(on)["streams"]["standing"] == {"running": 1, "alarm": 0, "frozen": 1}
    assert {client for event, client in told if event == "freeze"} == {"broken"}
    assert running.rows == 3600
    on.thaw(by="ann")  # whoever was frozen begins anew; the other goes on
    assert send(on, digits(10), client="broken").rows == 10
    assert send(on, digits(10), client="good").rows == 3610
    on.freeze("a test", by="ann")
    assert [send(on, digits(10), client=client).mode for client in ("broken", "good", "new")] == ["frozen"] * 3
    on.thaw(by="ann")
    assert [send(on, digits(1), client=client).rows for client in ("broken", "good", "new")] == [11, 3611, 1]
    on.reset(by="ann")
    assert [send(on, digits(1), client=client).rows for client in ("broken", "good")] == [1, 1]


def test_rows_of_all_clients_together_are_watched_and_freeze_nobody() -> None:
    on = guard(policy=WATCH)
    for i in range(60):  # too few of each for a reading of its own
        verdict = send(on, one_class(40), client=f"camera-{i}")
    assert "class_balance" in [alarm.name for alarm in on.state.stream.alarms]
    assert "class_balance" in verdict.alarms
    assert state_document(on)["streams"]["standing"] == {"running": 0, "alarm": 0, "frozen": 0}  # nobody has looked
    assert sources(on)
    assert state_document(on)["streams"]["standing"]["frozen"] == 0


def test_a_request_writes_the_state_of_its_own_stream_alone(tmp_path: Path) -> None:
    made = detector("robust_norm_scaling")
    alone, on = guard(made=made), guard(tmp_path / "s", LEARN, made)
    for i in range(30):
        send(on, digits(2), client=f"camera-{i}")
    send(alone, digits(2))
    assert on.state_bytes < 1.6 * alone.state_bytes
    with on.store.transaction():
        used = dict(on.store.run("SELECT source, used FROM streams"))
    send(on, digits(2), client="camera-4")
    with on.store.transaction() as transaction:
        after = dict(on.store.run("SELECT source, used FROM streams"))
        assert {source for source in used if after[source] != used[source]} == {"camera-4"}
        whole = "tag = (SELECT tag FROM streams WHERE source = 'camera-5')"  # another's state is no state of its own
        on.store.run(f"UPDATE streams SET {whole} WHERE source = 'camera-6'")
        with pytest.raises(FileFormatError, match="checksum"):
            transaction.stream("camera-6")


def test_a_store_has_one_stream_or_one_for_every_client(tmp_path: Path) -> None:
    send(guard(tmp_path / "s"), digits(20))
    with pytest.raises(InvalidInput, match="--stream-by all, which do not become those of --stream-by client"):
        guard(tmp_path / "s", WATCH)
    assert guard(tmp_path / "s").state.stream.rows == 20


def test_without_running_statistics_there_is_nothing_to_keep_apart() -> None:
    with pytest.raises(InvalidInput, match="leave out --stream-by"):
        guard(policy=WATCH, made=detector("energy"))
