"""The permanent opponent, in small: what it must not reach from a fresh store and from a warm one."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from normscale.guard import Policy, open_guard

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from attack_guard import (  # type: ignore[import-not-found]
    Corner,
    Target,
    attack,
    cover_traffic,
    fewest_rows_that_freeze,
    greedy_rows,
    look,
    moment_rows,
    most_harmful_rows,
    sample_case,
    worst_corner,
)

CASE = sample_case()
UNGUARDED = Policy(on_drift="ignore")


def target(folder: Path, warm: int = 0, policy: Policy | None = None, name: str = "norm_scaling") -> Target:
    detector = ns.make_detector(name).fit(CASE.train).set_threshold(CASE.validation)
    return Target(CASE, detector, warm, folder, policy)


def test_the_opponent_is_one(tmp_path: Path) -> None:
    """Against a guard that trusts its stream it reaches what it aims at, so that holding it off means something."""
    on = target(tmp_path, policy=UNGUARDED)
    frozen = look(on.open(), CASE)
    hide, cry = (worst_corner(CASE, goal) for goal in ("hide", "cry"))
    assert attack(on, moment_rows(CASE, hide, 0.2, 0.4, 1), 0.2, "steady", "hide", 1500).worst.ood < frozen.ood - 0.3
    reached = attack(on, moment_rows(CASE, cry, 0.2, 0.95, 1), 0.2, "steady", "cry", 1500)
    assert reached.worst.in_distribution > frozen.in_distribution + 0.2


@pytest.mark.parametrize("warm", (0, 2000))
@pytest.mark.parametrize("share", (0.05, 0.2, 1.0))
def test_no_share_of_the_traffic_hides_ood_inputs(tmp_path: Path, warm: int, share: float) -> None:
    on = target(tmp_path, warm)
    for part in (0.3, 0.95):
        make = moment_rows(CASE, worst_corner(CASE, "hide"), share, part, 1)
        outcome = attack(on, make, share, "ratchet", "hide", 1500)
        file = float(on.detector.predict(CASE.ood).mean())
        assert min(outcome.worst.ood, outcome.after.ood) >= file


@pytest.mark.parametrize("share", (0.05, 0.2))
def test_crying_wolf_raises_an_alarm_and_is_over_soon(tmp_path: Path, share: float) -> None:
    on = target(tmp_path, 2000)
    file = float(on.detector.predict(CASE.in_distribution).mean())
    for part in (0.3, 0.95):
        make = moment_rows(CASE, worst_corner(CASE, "cry"), share, part, 1)
        outcome = attack(on, make, share, "steady", "cry", 2000)
        assert outcome.silent.in_distribution <= file + 0.05
        assert outcome.alarms > 0
        assert outcome.after.in_distribution <= file + 0.05


def test_a_flood_of_the_first_rows_cannot_decide(tmp_path: Path) -> None:
    on = target(tmp_path)
    make = moment_rows(CASE, worst_corner(CASE, "hide"), 1.0, 0.95, 1)
    outcome = attack(on, make, 0.1, "first", "hide", 1000)
    assert outcome.worst.ood >= float(on.detector.predict(CASE.ood).mean())


@pytest.mark.parametrize("part", (0.3, 0.6))
def test_a_flood_of_the_first_rows_cannot_cry_wolf_either(tmp_path: Path, part: float) -> None:
    """Order-dependent statistics have no moments that training could outweigh: their first rows are on probation."""
    on = target(tmp_path, name="robust_norm_scaling")
    pool = most_harmful_rows(CASE, on.detector, "cry", seed=1)
    outcome = attack(on, greedy_rows(CASE, pool, part, 1), 0.2, "first", "cry", 1500)
    assert outcome.worst.in_distribution <= float(on.detector.predict(CASE.in_distribution).mean()) + 0.05


def test_the_first_rows_are_answered_by_the_file_and_counted(tmp_path: Path) -> None:
    detector = ns.RobustNormScaling().fit(CASE.train).set_threshold(CASE.validation)
    random = np.random.default_rng(0)
    honest, ood = CASE.draw(700, random), CASE.ood[random.integers(0, len(CASE.ood), 700)]
    rows = np.where(random.random((700, 1)) < 0.2, ood, honest)
    file, running = detector.score(rows), copy.copy(detector).stream(rows)
    enough, policy = int(Policy().enough), Policy(most_added=1.0, flagged=0.99, balance=0.99)
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
    assert "added" in guard.score(np.concatenate([flood, honest[:300]])).alarms
    guard.store.close()


@pytest.mark.parametrize("name", ("norm_scaling", "robust_norm_scaling"))
def test_no_ten_rows_freeze_a_guard(tmp_path: Path, name: str) -> None:
    assert fewest_rows_that_freeze(target(tmp_path, 500, name=name), most=10) is None


def test_cover_traffic_above_a_cap_hides_nothing(tmp_path: Path) -> None:
    detector = ns.NormScaling().fit(CASE.train).set_threshold(CASE.validation)
    assert cover_traffic(CASE, detector, tmp_path, 8000).ood >= float(detector.predict(CASE.ood).mean())
    # The monitor does not hear what is not taken in: the poison alone, within the cap, raises the alarm.
    guard = open_guard(detector, ":memory:", Policy(client_cap=1000, window=200.0))
    poison = moment_rows(CASE, Corner(np.ones(8), -np.ones(8)), 1.0, 2.0, 1)
    for _ in range(5):
        guard.score(CASE.draw(20, np.random.default_rng(0)), client="cover")  # within its cap
        guard.score(poison(100), client="poison")
    assert guard.mode == "frozen"


def test_each_thaw_takes_twice_as_long_until_a_person_or_long_calm_forgives() -> None:
    detector = ns.NormScaling().fit(CASE.train).set_threshold(CASE.validation)
    guard = open_guard(detector, ":memory:", Policy(window=100.0, calm=100.0))
    random, waits = np.random.default_rng(0), []
    for _ in range(3):
        while guard.mode == "running":
            guard.score(CASE.draw(20, random) + 2.0 * CASE.std)
        waited = 0
        while guard.mode == "frozen":
            guard.score(CASE.draw(20, random))
            waited += 20
        waits.append(waited)
        assert guard.state.rows == 20  # it begins again from the detector file, not from what raised the alarm
    assert waits[0] < waits[1] < waits[2]
    assert guard.state.freezes == 3
    for _ in range(60):
        guard.score(CASE.draw(20, random))
    assert guard.state.freezes == 0
