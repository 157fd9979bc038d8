"""Rules of a guard that hold across policies, restarts and people's decisions."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from guard.guards import IGNORE, detector, digits, one_class, send
from guard.guards import guard as opened
from normscale.detectors.baseline import FAR_SCORE
from normscale.errors import StoreHeld, StoreUnavailable
from normscale.guard import Policy, Request
from normscale.guard.server.group_commit import GroupCommit

ROBUST = "robust_norm_scaling"
guard: Any = opened
"""Looked into more closely than its types promise."""


def frozen_by_one_class(on: Any) -> None:
    for _ in range(60):
        if on.mode == "frozen":
            return
        send(on, one_class(20))
    raise AssertionError("it did not freeze")


def test_a_person_s_thaw_lasts() -> None:
    on = guard()
    send(on, digits(300))
    frozen_by_one_class(on)
    on.thaw(by="ann")
    assert send(on, digits(1)).mode == "running"
    assert send(on, digits(200)).mode == "running"
    frozen_by_one_class(on)  # and what is wrong is still noticed
    on.store.close()


def test_rows_that_nobody_watched_do_not_end_a_probation(tmp_path: Path) -> None:
    trusting = guard(tmp_path / "s", IGNORE, detector(ROBUST))
    send(trusting, digits(520))
    trusting.store.close()
    careful = guard(tmp_path / "s", None, detector(ROBUST))
    assert careful.state.stream.rows == 520
    assert careful.judge.probation_left(careful.state.stream) == 500
    careful.store.close()


def test_the_row_after_a_probation_is_judged_by_both_statistics() -> None:
    on = guard(policy=Policy(most_stream_only_flags=1.0, flagged=0.99, balance=0.99), made=detector(ROBUST))
    send(on, digits(499))
    assert on.judge.probation_left(on.state.stream) == 1
    send(on, digits(1))
    odd = ns.load_sample().ood["unseen_digits"].logits[:40]
    file = on.detector.score(odd)
    running = on.state.stream.statistics.score(ns.ModelOutputs(odd))
    assert (running > file).any()
    after = on.judge.rule(on.state, "a", on.now, ns.ModelOutputs(odd[:1]), np.zeros(1, np.int64)).verdict
    np.testing.assert_array_equal(
        after.scores, np.maximum(file, on.state.stream.statistics.step(ns.ModelOutputs(odd[:1]))[0])[:1]
    )
    on.store.close()


def test_training_counts_as_many_rows_also_over_a_store_that_trusted(tmp_path: Path) -> None:
    trusting = guard(tmp_path / "s", IGNORE)
    send(trusting, digits(10))
    weight = trusting.state.stream.statistics.moments.weight
    trusting.store.close()
    careful = guard(tmp_path / "s")
    moments, training = careful.state.stream.statistics.moments, careful.detector._baseline.moments
    assert weight < 1000.0 == moments.weight
    # The mean lies between training's and the stream's, by their weights.
    was = trusting.state.stream.statistics.moments
    np.testing.assert_allclose(moments.mean, ((1000.0 - weight) * training.mean + weight * was.mean) / 1000.0)
    careful.store.close()


def test_recent_rows_are_compared_from_the_row_that_the_policy_names() -> None:
    on = guard()
    send(on, digits(499))
    assert "shift" not in {reading.name for reading in on.readings()}
    send(on, digits(1))
    assert "shift" in {reading.name for reading in on.readings()}
    on.store.close()


def test_a_store_that_went_back_stays_refused_when_others_write_on(tmp_path: Path) -> None:
    on = guard(tmp_path / "s", IGNORE)
    for _ in range(4):
        send(on, digits(5))
    on.head = on.head._replace(seq=on.head.seq + 3)  # as if it had acknowledged more than the store has
    with pytest.raises(StoreUnavailable, match="went back"):
        send(on, digits(5))
    other = guard(tmp_path / "s", IGNORE)
    for _ in range(6):
        send(other, digits(5))
    with pytest.raises(StoreUnavailable, match="went back"):
        send(on, digits(5))
    on.store.close()
    other.store.close()


@pytest.mark.parametrize(("before", "n_others"), [(4, 1), (4, 5), (0, 3), (0, 9)])
def test_a_store_that_went_back_and_was_written_on_is_noticed(tmp_path: Path, before: int, n_others: int) -> None:
    on = guard(tmp_path / "s", IGNORE)
    for _ in range(before):
        send(on, digits(5))
    with closing(sqlite3.connect(tmp_path / "s")) as live, closing(sqlite3.connect(tmp_path / "copy")) as copy:
        live.backup(copy)
    for _ in range(2):
        send(on, digits(5))  # acknowledged, and lost by what follows
    with closing(sqlite3.connect(tmp_path / "s")) as live, closing(sqlite3.connect(tmp_path / "copy")) as copy:
        copy.backup(live)
    other = guard(tmp_path / "s", IGNORE)
    for _ in range(n_others):
        send(other, digits(5))
    with pytest.raises(StoreUnavailable, match=r"went back: it(s entry \d+ is another one| holds entry \d+)"):
        send(on, digits(5))
    send(other, digits(5))
    on.store.close()
    other.store.close()


def test_a_guard_that_slept_while_others_wrote_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscale.guard.guard.KEEP", 6)
    monkeypatch.setattr("normscale.guard.guard.FORGET_EVERY", 2)
    on, other = guard(tmp_path / "s", IGNORE), guard(tmp_path / "s", IGNORE)
    for n_missed in (1, 3, 40):
        send(on, digits(5))
        for _ in range(n_missed):
            send(other, digits(5))
        send(on, digits(5))
    assert on.state.seq == 50
    on.store.close()
    other.store.close()


def test_nobody_waits_twice_for_a_store_that_another_process_holds() -> None:
    on = guard()
    calls: list[None] = []

    def held(*_: Any) -> Any:
        calls.append(None)
        raise StoreHeld("process 7 has held the store")

    async def ask() -> list[Any]:
        broken: Any = on
        broken.process = held
        commit = GroupCommit(broken)
        rows = ns.ModelOutputs(digits(2))
        asked = [commit.run(Request(rows)), commit.run(lambda guards: held()), commit.run(lambda guards: held())]
        found = await asyncio.gather(*asked, return_exceptions=True)
        broken.process = lambda requests: [1] * len(requests)
        found.append(await commit.run(Request(rows)))  # and it goes on
        commit.stop()
        return found

    *refused, after = asyncio.run(ask())
    assert [str(one) for one in refused] == ["process 7 has held the store"] * 3
    assert all(isinstance(one, StoreUnavailable) for one in refused)
    assert after == 1
    assert len(calls) <= 2  # one more, where the first was taken up before the others had come
    on.store.close()


@pytest.mark.filterwarnings("ignore::normscale.errors.NumericalWarning")
@pytest.mark.parametrize("policy", [None, IGNORE], ids=["default", "trusting"])
@pytest.mark.parametrize("name", ["norm_scaling", ROBUST])
def test_rows_on_another_scale_are_flagged_as_the_detector_file_flags_them(name: str, policy: Policy | None) -> None:
    rows = np.concatenate([factor * digits(60) for factor in (1.0, 3.0, 8.0)])
    on, twin = guard(policy=policy, made=detector(name)), detector(name)
    file = twin.score(rows)
    verdict = send(on, rows)
    outside = file == FAR_SCORE
    assert 60 < outside.sum() < 180
    assert verdict.scores[outside].tolist() == file[outside].tolist()
    assert verdict.is_ood[outside].all()
    assert verdict.taken_in <= (~outside).sum()  # and they teach nothing
    send(on, 8.0 * digits(60))
    assert on.state.stream.rows == verdict.taken_in
    if policy is None:
        assert verdict.is_ood[twin.predict(rows)].all()
    else:
        np.testing.assert_allclose(verdict.scores, twin.stream(rows), rtol=1e-12)
    on.store.close()
