"""Not to be steered: alarms before rows are taken in, caps, outliers, and the way back."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from guard.guards import detector, digits, guard, moments_of, one_class, sample, send
from normscale._kernels import BlockState
from normscale.detectors.baseline import FAR_SCORE, TrainingBaseline
from normscale.guard import Policy
from normscale.guard.drift import DriftMonitor, RecentRows, Seen
from normscale.guard.guard import Clock
from normscale.moments import RunningMoments


def test_a_stream_as_in_training_never_alarms() -> None:
    on = guard()
    for i in range(100):
        verdict = send(on, digits(100, seed=i))
        assert (verdict.mode, verdict.alarms) == ("running", ())
    assert on.state.stream.rows == 10_000


def test_one_class_freezes_before_its_rows_are_taken_in(tmp_path: Path) -> None:
    on = guard(tmp_path / "s")
    for i in range(10):
        send(on, digits(100, seed=i))
    rows, modes = 0, []
    while on.mode == "running" and rows < 5000:
        modes.append(send(on, one_class(50)).mode)
        rows += 50
    assert modes[-1] == "frozen"
    # Nothing that may have raised the alarm is believed: neither its block, nor what came before it.
    assert moments_of(on) == moments_of(guard())
    assert on.state.stream.rows == 0
    assert 100 <= rows <= 800
    assert on.state.stream.frozen is not None
    send(on, one_class(300))
    assert "(in training 13 %) of the recent rows are predicted '3'" in " ".join(
        alarm.text for alarm in on.state.stream.alarms
    )
    assert {alarm.name for alarm in on.state.stream.alarms} >= {"class_balance"}
    assert guard(tmp_path / "s").mode == "frozen"


def test_what_freezing_saves(tmp_path: Path) -> None:
    """Plain norm-scaling on a stream of one class against the guard: the guard keeps the frozen detector's ranking."""
    near = sample().ood["unseen_digits"].logits
    rows = np.concatenate([one_class(1500), near[:300]])
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    inside = (rows[:, None, :] == one_class(60)[None]).all(axis=2).any(axis=1)
    on, ignoring = guard(), guard(policy=Policy(on_drift="ignore"))
    guarded = np.concatenate([send(on, rows[i : i + 20]).scores for i in range(0, len(rows), 20)])
    steered = np.concatenate([send(ignoring, rows[i : i + 20]).scores for i in range(0, len(rows), 20)])
    late = np.arange(len(rows)) > 600
    frozen = detector().score(rows)

    def auroc(scores: np.ndarray) -> float:
        return ns.evaluate(scores[late & inside], scores[late & ~inside]).auroc

    assert on.mode == "frozen"
    assert auroc(guarded) == pytest.approx(auroc(frozen), abs=1e-12)
    assert auroc(steered) < auroc(guarded) - 0.05


@pytest.mark.parametrize(("scale", "words"), ((0.6, "1.8 times more closely"), (3.0, "times wider")))
def test_rows_drawn_together_or_apart_freeze_too(scale: float, words: str) -> None:
    """Neither the classes nor the means move, but the deviations would, and with them everything that is flagged."""
    on, centre = guard(), sample().train.logits.astype(np.float64).mean(axis=0)
    before = moments_of(on)
    for i in range(5):
        send(on, centre + scale * (digits(200, seed=i) - centre))
    assert on.mode == "frozen"
    assert on.state.stream.frozen is not None
    assert words in on.state.stream.frozen.because
    assert moments_of(on) == before


def test_warn_says_so_and_goes_on_and_ignore_does_not_look() -> None:
    warned, ignored = guard(policy=Policy(on_drift="warn")), guard(policy=Policy(on_drift="ignore"))
    for on in (warned, ignored):
        verdict = send(on, one_class(600))
        assert (verdict.mode, verdict.taken_in) == ("running", 600)
    send(warned, one_class(300))
    assert "class_balance" in send(warned, one_class(10)).alarms
    assert send(ignored, one_class(10)).alarms == ()
    static = guard(made=detector("energy"))
    verdict = send(static, one_class(800))
    assert (verdict.mode, verdict.taken_in) == ("static", 800)
    assert verdict.alarms


def test_a_frozen_guard_thaws_when_the_stream_is_calm_again_or_when_told() -> None:
    on = guard(policy=Policy(window=200.0, evidence=100.0, calm=300.0))
    send(on, one_class(200))
    assert on.mode == "frozen"
    rows = 0
    while on.mode == "frozen" and rows < 5000:
        send(on, digits(20, seed=rows))
        rows += 20
    assert on.mode == "running"
    assert 300 <= rows <= 1200  # the window must forget, then the calm must last
    assert on.state.stream.rows == 20
    assert on.state.kept_out == 200 + rows - 20
    never = guard(policy=Policy(window=200.0, evidence=100.0, calm=math.inf))
    send(never, one_class(200))
    for i in range(100):
        send(never, digits(50, seed=i))
    assert never.mode == "frozen"
    never.thaw()
    assert send(never, digits(20)).mode == "running"


def test_what_drift_froze_thaws_when_drift_is_not_acted_on_any_more_but_a_persons_word_holds(tmp_path: Path) -> None:
    strict = guard(tmp_path / "s", Policy(window=200.0, evidence=100.0))
    send(strict, one_class(200))
    assert strict.mode == "frozen"
    assert send(guard(tmp_path / "s", Policy(on_drift="warn")), digits(5)).mode == "running"
    for policy in (Policy(on_drift="warn"), Policy(window=200.0, evidence=100.0, calm=10.0)):
        on = guard(policy=policy)
        on.freeze("by hand")
        for seed in range(10):
            assert send(on, digits(50, seed=seed)).mode == "frozen"
        on.thaw()
        assert send(on, digits(5)).mode == "running"


def test_a_row_far_out_is_flagged_and_cannot_move_or_freeze_anything() -> None:
    on = guard()
    send(on, digits(300))
    before = moments_of(on)
    confident = np.zeros((1, 8))
    confident[0, 2] = 1e30
    verdict = send(on, confident)
    assert verdict.is_ood.tolist() == [True]  # however confident it looks
    assert verdict.scores[0] == FAR_SCORE
    assert (verdict.taken_in, verdict.mode) == (0, "running")
    assert moments_of(on) == before
    rows = np.concatenate([digits(20).astype(np.float64), confident, digits(20, seed=3).astype(np.float64)])
    verdict = send(on, rows)
    assert verdict.taken_in == 40
    assert verdict.is_ood[20]
    assert on.mode == "running"
    assert on.state.stream.rows == 340
    assert on.state.kept_out == 2
    others = np.delete(rows, 20, axis=0)
    twin = guard()
    send(twin, digits(300))
    np.testing.assert_allclose(np.delete(verdict.scores, 20), send(twin, others).scores, rtol=1e-12)
    mine, theirs = (one.state.stream.statistics.moments for one in (on, twin))
    assert mine is not None
    assert theirs is not None
    assert mine.weight == theirs.weight  # the same rows, summed in other blocks
    np.testing.assert_allclose(mine.mean, theirs.mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mine.std, theirs.std, rtol=1e-12)


def test_an_alarm_knows_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    on, time = guard(policy=Policy(on_drift="warn")), 1000.0
    monkeypatch.setattr(Clock, "now", lambda self: time)
    send(on, one_class(600))
    time = 1050.0
    send(on, one_class(10))
    assert {alarm.since for alarm in on.state.stream.alarms} == {1000.0}
    for i in range(120):
        send(on, digits(50, seed=i))
    assert not on.state.stream.alarms
    time = 1100.0
    send(on, one_class(3000))
    assert {alarm.since for alarm in on.state.stream.alarms} == {1100.0}


def test_readings_equal_their_definitions() -> None:
    random = np.random.default_rng(0)
    policy = Policy(window=400.0, evidence=200.0)
    reference = detector()._baseline
    assert isinstance(reference, TrainingBaseline)
    rows = sample().train.logits
    assert reference.predicted.tolist() == np.bincount(rows.argmax(axis=1), minlength=8).tolist()
    np.testing.assert_allclose(reference.moments.mean, rows.astype(np.float64).mean(axis=0), rtol=1e-12)
    drift = DriftMonitor(reference, policy)
    monitor, weights, seen = RecentRows.empty(8), np.zeros(0), np.zeros((0, 8))
    lately = 0.0
    for _ in range(40):
        n = int(random.integers(1, 30))
        block = random.normal(1.0, 2.0, (n, 8))
        counts = np.bincount(block.argmax(axis=1), minlength=8)
        alone = int((block[:, 0] > 2.0).sum())
        monitor = monitor.after(
            Seen(n, alone, alone, counts, RunningMoments(block.shape[1]).update(block).state), policy.window
        )
        lately = lately * math.exp(-n / 250.0) + alone / n * 250.0 * (1.0 - math.exp(-n / 250.0))
        share = policy.window * (1.0 - math.exp(-n / policy.window)) / n
        weights = np.concatenate([weights * math.exp(-n / policy.window), np.full(n, share)])
        seen = np.concatenate([seen, block])
    assert monitor.moments.weight == pytest.approx(weights.sum(), rel=1e-12)
    np.testing.assert_allclose(monitor.moments.mean, (weights[:, None] * seen).sum(axis=0) / weights.sum(), rtol=1e-10)
    balance, shift, spread, flagged, stream_only = drift.readings(monitor)
    assert monitor.answered == pytest.approx(monitor.moments.weight)
    assert stream_only.value == pytest.approx((lately - 5.0) / 250.0, rel=1e-9)
    recent = np.array([weights[seen.argmax(axis=1) == c].sum() for c in range(8)]) / weights.sum()
    q = reference.share
    chance = np.minimum(np.sqrt(2 * q * (1 - q) / (math.pi * weights.sum())), 2 * q)
    assert balance.value == pytest.approx(max(0, 0.5 * (np.abs(recent - q).sum() - chance.sum())), abs=1e-12)
    distance = np.abs(monitor.moments.mean - rows.astype(np.float64).mean(axis=0)) / rows.astype(np.float64).std(axis=0)
    assert shift.value == pytest.approx(distance.max(), rel=1e-9)
    assert shift.worst == distance.argmax()
    centre = (weights[:, None] * seen).sum(axis=0) / weights.sum()
    recent_std = np.sqrt((weights[:, None] * (seen - centre) ** 2).sum(axis=0) / weights.sum())
    wider = recent_std / rows.astype(np.float64).std(axis=0)
    assert spread.value == pytest.approx(max(wider.max(), 1 / wider.min()) - 1, rel=1e-9)
    assert flagged.value == pytest.approx(monitor.flagged / monitor.answered)
    assert drift.readings(RecentRows.empty(8)) == ()
    of_answers = ["flagged", "stream_only_flags"]
    assert [reading.name for reading in DriftMonitor(None, policy).readings(monitor)] == of_answers
    moved = RunningMoments.from_state(50.0, reference.moments.mean + 0.3 * reference.moments.std, reference.moments.m2)
    *_, shift, spread = drift.readings(monitor, moved.state)
    assert shift.value == pytest.approx(0.3)
    assert spread.value == pytest.approx(math.sqrt(reference.moments.weight / 50.0) - 1.0)
    assert (shift.alarming, shift.freezing, spread.freezing) == (True, False, True)


def test_a_thousand_classes_do_not_alarm_for_want_of_rows() -> None:
    random = np.random.default_rng(0)
    share = np.full(1000, 1e-3)
    train = random.normal(size=(4000, 1000))
    train[np.arange(4000), random.integers(0, 1000, 4000)] += 8.0
    made = ns.NormScaling().fit(train).set_threshold(train[:500])
    drift = DriftMonitor(made._baseline, Policy())
    monitor = RecentRows.empty(1000)
    for _ in range(30):
        counts = random.multinomial(100, share)
        block = BlockState(100.0, made.training_.mean, 100.0 * made.training_.variance)
        monitor = monitor.after(Seen(100, 5, None, counts, block), 1000.0)
        assert not any(reading.alarming for reading in drift.readings(monitor))


def test_a_guard_without_baseline_watches_the_flagged_share() -> None:
    made = detector()
    made._baseline = None
    on = guard(made=made)
    verdict = send(on, sample().ood["uniform_noise"].logits)
    assert set(verdict.alarms) <= {"flagged", "stream_only_flags"}
    assert send(on, np.full((1, 8), 1e30)).taken_in == 1 - (on.mode == "frozen")


def test_the_clock_never_goes_back() -> None:
    wall, ticks = 1000.0, 50.0
    clock = Clock(lambda: wall, lambda: ticks)
    assert clock.now() == 1000.0
    wall, ticks = -1e9, 51.5  # someone set the machine's clock
    assert clock.now() == 1001.5
    clock.catch_up(2000.0)
    assert clock.now() == 2000.0
    clock.catch_up(10.0)
    assert clock.now() == 2000.0


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("norm_scaling", "this detector cannot follow it, and the detector file answers. Fit the default one"),
        ("robust_norm_scaling", "start the guard with --expect unbalanced."),
    ],
)
def test_an_alarm_of_an_unbalanced_stream_says_what_to_do(name: str, advice: str) -> None:
    on = guard(made=detector(name))
    for _ in range(8):
        send(on, one_class(100))
    (balance,) = [alarm.text for alarm in on.state.stream.alarms if alarm.name == "class_balance"]
    assert advice in balance
    assert (on.mode == "frozen") == (name == "norm_scaling")
    if on.state.stream.frozen is not None:
        assert advice in on.state.stream.frozen.because
