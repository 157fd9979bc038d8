"""The document of a guard: readings of the running statistics, what froze it, and when it will thaw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from normscale.guard import Guard, Policy, open_guard
from normscale.guard.server.view import state_document

SAMPLE = ns.load_sample()
DIGITS = SAMPLE.test.logits
ONE_CLASS = np.tile(DIGITS[DIGITS.argmax(axis=1) == 7], (15, 1))


def opened(store: str = ":memory:", **policy: float) -> Guard:
    detector = ns.NormScaling().fit(SAMPLE.train).set_threshold(SAMPLE.validation)
    return open_guard(detector, store, Policy(on_drift="freeze", **policy))  # type: ignore[arg-type]


def freeze(guard: Guard) -> None:
    guard.score(DIGITS[:120])
    for start in range(0, 600, 20):
        if guard.state.stream.frozen is None:
            guard.score(ONE_CLASS[start : start + 20])
    assert guard.state.stream.frozen is not None


def values(guard: Guard) -> dict[str, float | None]:
    return {one["name"]: one["value"] for one in state_document(guard)["readings"]}


def test_readings_of_the_running_statistics_are_there_while_they_run() -> None:
    guard = opened()
    guard.score(DIGITS[:200])
    found = values(guard)
    running, training = guard.state.stream.statistics.moments, guard.detector._baseline
    assert running is not None
    assert training is not None
    distance = np.abs(running.mean - training.moments.mean) / training.moments.std
    assert found["running_shift"] == pytest.approx(distance.max())
    assert found["running_spread"] is not None
    assert found["stream_only_flags"] is not None
    freeze(guard)
    assert values(guard)["running_shift"] is None  # nothing runs


def test_what_froze_it_stays_after_the_alarm_and_after_a_restart(tmp_path: Path) -> None:
    store = str(tmp_path / "guard.sqlite")
    guard = opened(store)
    assert state_document(guard)["frozen_by"] == []
    freeze(guard)
    then = state_document(guard)["frozen_by"]
    assert then
    assert all(alarm["value"] > alarm["limit"] for alarm in then)
    assert " ".join(alarm["text"] for alarm in then) == state_document(guard)["frozen_because"]
    for _ in range(4):
        guard.score(DIGITS)
    assert guard.state.stream.alarms == ()
    assert state_document(guard)["frozen_by"] == then
    guard.store.close()
    again = opened(store)
    assert state_document(again)["frozen_by"] == then
    again.thaw()
    assert state_document(again)["frozen_by"] == []


def test_when_it_will_thaw() -> None:
    guard = opened(calm=500.0)
    assert state_document(guard)["thaw"] is None
    freeze(guard)
    told = state_document(guard)["thaw"]
    assert told["needed"] == 500
    while state_document(guard)["thaw"]["calm_rows"] == 0:
        guard.score(DIGITS[:100])
    before = state_document(guard)["thaw"]
    guard.score(DIGITS[:100])
    after = state_document(guard)["thaw"]
    assert after["calm_rows"] == before["calm_rows"] + 100
    assert after["to_come"] == before["to_come"] - 100
    while state_document(guard)["thaw"]["to_come"] > 0:
        assert guard.score(DIGITS[:100]).mode == "frozen"
    assert guard.score(DIGITS[:1]).mode == "running"  # with the next row, as told


def test_what_a_person_froze_only_a_person_thaws() -> None:
    guard = opened()
    guard.score(DIGITS[:50])
    guard.freeze("maintenance")
    document = state_document(guard)
    assert document["mode"] == "frozen"
    assert document["thaw"] is None
    assert document["frozen_by"] == []


def test_how_long_the_stream_is_on_probation() -> None:
    assert state_document(opened())["probation"] == 0  # training counts as many rows there
    detector = ns.RobustNormScaling().fit(SAMPLE.train).set_threshold(SAMPLE.validation)
    guard = open_guard(detector, ":memory:")
    assert state_document(guard)["probation"] == 500
    guard.score(DIGITS[:300])
    assert state_document(guard)["probation"] == 500 - guard.state.stream.rows < 250
    guard.score(DIGITS[:300])
    assert state_document(guard)["probation"] == 0
    guard.store.close()
    trusting = open_guard(detector, ":memory:", Policy(on_drift="ignore"))
    assert state_document(trusting)["probation"] == 0
    trusting.store.close()
