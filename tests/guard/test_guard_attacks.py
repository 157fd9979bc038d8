"""The permanent opponent, in small: what it must not reach from a fresh store and from a warm one."""

from __future__ import annotations

import copy
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput
from normscale.guard import Policy, open_guard

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "soak"))

from attack_guard import (  # type: ignore[import-not-found]
    Target,
    attack,
    benign,
    fewest_crafted_rows_that_freeze,
    fewest_far_rows_that_freeze,
    greedy_rows,
    look,
    moment_rows,
    most_harmful_rows,
    nuisance,
    sample_case,
    worst_corner,
)

CASE = sample_case()
UNGUARDED = Policy(on_drift="ignore")


BOTH = ("norm_scaling", "robust_norm_scaling")


@lru_cache
def fitted(name: str = "norm_scaling") -> Detector:
    return ns.make_detector(name).fit(CASE.train).set_threshold(CASE.validation)


def target(warm: int = 0, policy: Policy | None = None, name: str = "norm_scaling") -> Target:
    return Target(CASE, fitted(name), warm, policy)


def test_the_opponent_is_one() -> None:
    """Against a guard that trusts its stream it reaches what it aims at, so that holding it off means something."""
    on = target(policy=UNGUARDED)
    frozen = look(on.open(), CASE)
    hide, cry = (worst_corner(CASE, goal) for goal in ("hide", "cry"))
    assert attack(on, moment_rows(CASE, hide, 0.2, 0.4, 1), 0.2, "steady", "hide", 1500).worst.ood < frozen.ood - 0.3
    reached = attack(on, moment_rows(CASE, cry, 0.2, 0.95, 1), 0.2, "steady", "cry", 1500)
    assert reached.worst.in_distribution > frozen.in_distribution + 0.2


@pytest.mark.parametrize("warm", (0, 2000))
@pytest.mark.parametrize("share", (0.05, 0.2, 1.0))
def test_no_share_of_the_traffic_hides_ood_inputs(warm: int, share: float) -> None:
    on = target(warm)
    for part in (0.3, 0.95):
        make = moment_rows(CASE, worst_corner(CASE, "hide"), share, part, 1)
        outcome = attack(on, make, share, "ratchet", "hide", 1500)
        file = float(on.detector.predict(CASE.ood).mean())
        assert min(outcome.worst.ood, outcome.after.ood) >= file


@pytest.mark.parametrize("share", (0.05, 0.2))
def test_crying_wolf_raises_an_alarm_and_is_over_soon(share: float) -> None:
    on = target(2000)
    file = float(on.detector.predict(CASE.in_distribution).mean())
    for part in (0.3, 0.95):
        make = moment_rows(CASE, worst_corner(CASE, "cry"), share, part, 1)
        outcome = attack(on, make, share, "steady", "cry", 2000)
        assert outcome.silent.in_distribution <= file + 0.05
        assert outcome.alarms > 0 or outcome.worst.in_distribution <= file + 0.05
        assert outcome.after.in_distribution <= file + 0.05


def test_a_flood_of_the_first_rows_cannot_decide() -> None:
    on = target()
    make = moment_rows(CASE, worst_corner(CASE, "hide"), 1.0, 0.95, 1)
    outcome = attack(on, make, 0.1, "first", "hide", 1000)
    assert outcome.worst.ood >= float(on.detector.predict(CASE.ood).mean())


@pytest.mark.parametrize("part", (0.3, 0.6))
def test_a_flood_of_the_first_rows_cannot_cry_wolf_either(part: float) -> None:
    """Order-dependent statistics have no moments that training could outweigh: their first rows are on probation."""
    on = target(name="robust_norm_scaling")
    pool = most_harmful_rows(CASE, on.detector, "cry", seed=1)
    outcome = attack(on, greedy_rows(CASE, pool, part, 1), 0.2, "first", "cry", 1500)
    assert outcome.worst.in_distribution <= float(on.detector.predict(CASE.in_distribution).mean()) + 0.05


def test_the_first_rows_are_answered_by_the_file_and_counted(tmp_path: Path) -> None:
    detector = ns.RobustNormScaling().fit(CASE.train).set_threshold(CASE.validation)
    random = np.random.default_rng(0)
    honest, ood = CASE.draw(700, random), CASE.ood[random.integers(0, len(CASE.ood), 700)]
    rows = np.where(random.random((700, 1)) < 0.2, ood, honest)
    file, running = detector.score(rows), copy.copy(detector).stream(rows)
    enough, policy = int(Policy().evidence), Policy(most_stream_only_flags=1.0, flagged=0.99, balance=0.99)
    expected = np.concatenate([file[:enough], np.maximum(file, running)[enough:]])
    assert (expected[enough:] > file[enough:]).any()
    for name, splits in {"one": [], "many": [1, 60, enough - 1, enough, 630]}.items():
        guard = open_guard(detector, tmp_path / f"{name}.sqlite", policy)
        scores = np.concatenate([guard.score(part).scores for part in np.split(rows, splits)])
        np.testing.assert_allclose(scores, expected, rtol=1e-12)
        guard.store.close()
    # What the stream alone would flag raises the alarm all the same, before any of it was answered.
    guard = open_guard(detector, ":memory:")
    flood = greedy_rows(CASE, most_harmful_rows(CASE, detector, "cry", seed=1), 0.6, 1)(100)
    assert "stream_only_flags" in guard.score(np.concatenate([flood, honest[:300]])).alarms
    guard.store.close()


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("window", (500.0, 1000.0))
def test_no_ten_rows_freeze_a_guard(name: str, window: float) -> None:
    for warm in (0, 500):
        assert fewest_far_rows_that_freeze(target(warm, Policy(window=window), name), most=10) is None


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("warm", (0, 2000))
def test_rows_just_below_the_threshold_need_as_many_at_the_start_as_later(name: str, warm: int) -> None:
    """Each of them is flagged by the running statistics alone: before any other row they are all of the evidence."""
    assert (fewest_crafted_rows_that_freeze(target(warm, name=name)) or 100) >= 40


def test_a_window_of_few_rows_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"window must be at least 500 rows.*got 200"):
        Policy(window=200.0)


@pytest.mark.parametrize("name", BOTH)
def test_keeping_a_guard_frozen_costs_a_share_of_the_traffic_that_does_not_shrink(name: str) -> None:
    short, long = (nuisance(target(2000, name=name), until_frozen=True, rows=rows) for rows in (4000, 12_000))
    assert short.hostile > 0.04
    assert long.hostile == pytest.approx(short.hostile, abs=0.01)


@pytest.mark.parametrize("name", BOTH)
def test_an_attacker_at_the_limit_makes_few_messages(name: str) -> None:
    assert 5 <= nuisance(target(2000, name=name), until_frozen=False, rows=20_000).messages <= 30


def test_what_happens_to_one_class_alone_is_an_alarm() -> None:
    """Rows that make the training rows of one class look strange: few rows of that class come, and no alarm waits."""
    aim = target(2000, name="robust_norm_scaling")
    pool = most_harmful_rows(CASE, aim.detector, "cry", seed=1, victim=3)
    run, random = aim.open(), np.random.default_rng(0)
    for _ in range(8):
        rows = np.concatenate([pool[random.integers(0, 4, 30)], CASE.draw(70, random)])
        run.send(rows[random.permutation(100)])
        if run.state.stream.alarms:
            break
    alarm = next(alarm for alarm in run.state.stream.alarms if alarm.name == "reference_flags")
    assert "of the training rows predicted class" in alarm.text
    recent, kept = run.state.stream.recent, aim.detector._baseline.kept["logits"]
    scores = aim.detector.score(kept), run.state.stream.statistics.score(ns.ModelOutputs(kept))
    limit = aim.detector.threshold_.value
    of_class = kept.argmax(axis=1) == recent.reference_class
    alone = (np.maximum(*scores) > limit) & ~(scores[0] > limit) & of_class
    assert recent.reference == pytest.approx((alone.sum() - 2) / of_class.sum())


@pytest.mark.parametrize("kind", ("sorted by 500", "50 % one class", "30 % one class"))
def test_an_unbalanced_stream_does_not_freeze_what_survives_it(kind: str) -> None:
    expected = benign(target(name="robust_norm_scaling"), kind, 8000)
    assert (expected.frozen, expected.more_flagged < 0.02) == (0.0, True)
    unbalanced = Policy(expect="unbalanced")
    told = benign(target(policy=unbalanced, name="robust_norm_scaling"), kind, 8000)
    assert (told.frozen, told.more_flagged < 0.02, told.alarm < 0.5) == (0.0, True, True)
    with pytest.raises(InvalidInput, match="norm_scaling follows the class balance"):
        target(policy=unbalanced)


@pytest.mark.parametrize("name", BOTH)
def test_honest_rows_and_a_stuck_frame(name: str) -> None:
    assert benign(target(name=name), "iid", 10_000)[1:] == (0.0, 0.0, 0)
    assert benign(target(name=name), "stuck frame", 10_000).frozen <= 0.25


def test_every_thaw_takes_as_long_and_begins_from_the_file() -> None:
    guard = open_guard(fitted(), ":memory:", Policy(window=100.0, evidence=50.0, calm=100.0))
    random, waits = np.random.default_rng(0), []
    for _ in range(3):
        while guard.mode == "running":
            guard.score(CASE.draw(20, random) + 2.0 * CASE.std)
        waited = 0
        while guard.mode == "frozen":
            guard.score(CASE.draw(20, random))
            waited += 20
        waits.append(waited)
        assert guard.state.stream.rows == 20  # not from what raised the alarm
    assert 100 < min(waits) <= max(waits) < 600


def test_an_alarm_ends_after_a_calm_spell_well_below_its_limit() -> None:
    guard = open_guard(fitted(), ":memory:", Policy(on_drift="warn", calm=300.0))
    heard = list[str]()
    guard.listeners.append(lambda _, own: heard.extend(entry.event for entry in own))
    random = np.random.default_rng(0)
    while not guard.state.stream.alarms:
        guard.score(CASE.draw(20, random) + 0.4 * CASE.std)
    calm = [alarm.calm_rows for alarm in guard.state.stream.alarms]
    assert max(calm) == 0
    since = {alarm.name: alarm.since for alarm in guard.state.stream.alarms}
    for _ in range(14):  # it goes below the limit and back: one alarm all the time
        guard.score(CASE.draw(20, random) - 0.4 * CASE.std)
    assert since.items() <= {alarm.name: alarm.since for alarm in guard.state.stream.alarms}.items()
    while guard.state.stream.alarms:
        guard.score(CASE.draw(100, random))
    assert [event for event in heard if event == "calm"] == ["calm"]
    readings = guard.readings()
    assert all(reading.value <= 0.75 * reading.limit for reading in readings)


@pytest.mark.parametrize("name", ("oodd", "rtl"))
def test_a_detector_whose_threshold_does_not_hold_in_its_stream_is_refused(tmp_path: Path, name: str) -> None:
    made = ns.make_detector(name)
    rows = np.random.default_rng(0).normal(size=(400, 8))
    outputs = ns.ModelOutputs(logits=rows, features=rows @ rows[:8], labels=rows.argmax(axis=1))
    made.fit(outputs).set_threshold(outputs)
    with pytest.raises(InvalidInput, match=rf"{made.name.replace('+', '.')} cannot stand guard.*threshold"):
        open_guard(made, tmp_path / "s.sqlite")
    assert list(tmp_path.iterdir()) == []
