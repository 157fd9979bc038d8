"""A guard against the detector it carries: the same scores and state, through restarts, groups and other processes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import normscale as ns
from guard.guards import IGNORE, detector, digits, guard, moments_of, one_class, request, sample, send
from normscale.errors import FileFormatError, InvalidInput, NotFitted, NumericalWarning, StoreUnavailable
from normscale.guard import Guard, Policy, Verdict, open_store
from normscale.guard import guard as guard_module
from normscale.guard.guard import Clock, fingerprint
from normscale.guard.guard_state import GuardState
from normscale.guard.judge import Judge, Ruling
from normscale.guard.server.view import View
from normscale.guard.stores.sqlite import SqliteStore
from normscale.metrics.thresholds import Threshold
from normscale.state import record_arrays


def seen(on: Guard) -> dict[str, Any]:
    """The recent past, as the page shows it."""
    view = View()
    view.feed(on.log())
    return view.document(on.now)


@given(cuts=st.lists(st.integers(1, 60), min_size=1, max_size=12), groups=st.integers(1, 4), wide=st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_groups_of_any_requests_equal_the_detectors_own_stream(cuts: list[int], groups: int, wide: bool) -> None:
    rows = digits(sum(cuts)).astype(np.float64 if wide else np.float32)
    own = ns.NormScaling().fit(sample().train).set_threshold(sample().validation)
    expected = own.stream(rows)
    on = guard(policy=IGNORE)
    requests = [request(part) for part in np.split(rows, np.cumsum(cuts)[:-1])]
    verdicts = [v for i in range(0, len(requests), groups) for v in on.process(requests[i : i + groups])]
    scores = np.concatenate([v.scores for v in verdicts if isinstance(v, Verdict)])
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)
    weight, mean, m2 = moments_of(on)
    assert weight == own.running_.weight == own.training_weight_ + len(rows)
    np.testing.assert_allclose(mean, own.running_.mean, rtol=1e-12)
    np.testing.assert_allclose(m2, own.running_.m2, rtol=1e-11)
    assert on.state.stream.rows == on.state.scored == len(rows)


@pytest.mark.parametrize("name", ("norm_scaling", "robust_norm_scaling", "energy", "multi_threshold"))
def test_a_verdict_is_what_the_detector_says(name: str) -> None:
    made = detector(name)
    rows = np.concatenate([digits(40), sample().ood["unseen_digits"].logits[:20]])
    verdict = send(guard(policy=IGNORE, made=made), rows)
    twin = detector(name)
    expected = twin.stream(rows)
    np.testing.assert_allclose(verdict.scores, expected, rtol=1e-12, atol=1e-12)
    assert verdict.is_ood.tolist() == twin.predict(rows, scores=expected).tolist()
    assert verdict.predicted.tolist() == rows.argmax(axis=1).tolist()
    assert verdict.mode == ("running" if twin._runs else "static")
    assert (verdict.taken_in, verdict.rows) == (60, 60)


def test_probabilities_are_refused_unless_the_detector_was_fitted_on_them() -> None:
    rows = digits(40)
    shares = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    on = guard()
    for some in (shares, shares[:1]):
        (refusal,) = on.process([request(some)])
        assert isinstance(refusal, ns.InvalidInput)
        assert "the request holds probabilities, not logits (every row adds up to 1" in str(refusal)
    assert on.state.stream.rows == 0
    assert send(on, np.log(shares)).scores.shape == (40,)  # logarithms of probabilities have their uses
    on.store.close()
    with pytest.warns(NumericalWarning, match="holds probabilities"):
        fitted = ns.NormScaling().fit(shares).set_threshold(shares)
    assert send(guard(made=fitted), shares).scores.shape == (40,)


@pytest.mark.parametrize("name", ("norm_scaling", "robust_norm_scaling", "energy"))
def test_a_restart_goes_on_to_the_bit(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "FORGET_EVERY", 7)
    monkeypatch.setattr(guard_module, "KEEP", 3)
    made = detector(name)
    never_killed = guard(tmp_path / "a", IGNORE, made)
    rows = digits(300)
    for i in range(0, 300, 10):
        killed = guard(tmp_path / "b", IGNORE, made)  # opened anew each time, never closed in order
        one, other = send(never_killed, rows[i : i + 10]), send(killed, rows[i : i + 10])
        assert one.scores.tolist() == other.scores.tolist()
    for key, array in record_arrays(never_killed.state.stream.statistics.state).items():
        assert array.tolist() == record_arrays(killed.state.stream.statistics.state)[key].tolist(), key
    assert killed.state.stream.rows == 300
    assert killed.state.stream.recent.predicted.tolist() == never_killed.state.stream.recent.predicted.tolist()
    with open_store(tmp_path / "b") as store, store.transaction() as transaction:
        assert len(transaction.entries_after(0)) < 12  # what lies far behind is dropped


def test_two_processes_on_one_store_agree_to_the_bit(tmp_path: Path) -> None:
    made, rows = detector(), digits(200)
    a, b = guard(tmp_path / "store", IGNORE, made), guard(tmp_path / "store", IGNORE, made)
    own = ns.NormScaling().fit(sample().train).set_threshold(sample().validation)
    for i in range(0, 200, 5):
        verdict = send((a, b)[i // 5 % 3 == 0], rows[i : i + 5])
        np.testing.assert_allclose(verdict.scores, own.stream(rows[i : i + 5]), rtol=1e-12, atol=1e-12)
    a.refresh(), b.refresh()
    assert moments_of(a) == moments_of(b)
    assert a.state.stream.rows == b.state.stream.rows == 200


@pytest.mark.parametrize("name", ("norm_scaling", "robust_norm_scaling"))
@pytest.mark.parametrize("keep", (2, 50))
def test_a_process_that_slept_for_longer_than_the_log_lasts_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, keep: int
) -> None:
    monkeypatch.setattr(guard_module, "FORGET_EVERY", 4)
    monkeypatch.setattr(guard_module, "KEEP", keep)
    made = detector(name)
    sleeper, worker = guard(tmp_path / "s", IGNORE, made), guard(tmp_path / "s", IGNORE, made)
    for i in range(30):
        send(worker, digits(3, seed=i))
        if i in (0, 26, 27, 28):
            sleeper.refresh()  # once after a long sleep, then within what the log still has
    sleeper.refresh()
    for key, array in record_arrays(worker.state.stream.statistics.state).items():
        assert array.tolist() == record_arrays(sleeper.state.stream.statistics.state)[key].tolist(), key


def test_a_key_counts_once_in_its_group_in_others_and_after_a_restart(tmp_path: Path) -> None:
    made, rows = detector(), digits(4)
    on = guard(tmp_path / "s", IGNORE, made)
    first_request = request(rows, "a", "key-1", b"digest")
    first, twin, foreign, other = on.process(
        [
            first_request,
            first_request,
            replace(first_request, client="b"),
            replace(first_request, digest=b"other"),
        ]
    )
    assert isinstance(first, Verdict)
    assert isinstance(twin, Verdict)
    assert isinstance(foreign, Verdict)
    assert (first.repeated, twin.repeated, foreign.repeated) == (False, True, False)  # keys are each client's own
    assert isinstance(other, InvalidInput)
    assert "used for other rows" in str(other)
    assert on.state.stream.rows == 8
    again = guard(tmp_path / "s", IGNORE, made)
    (repeated,) = again.process([first_request])
    assert isinstance(repeated, Verdict)
    assert repeated.repeated
    assert repeated.scores.tolist() == first.scores.tolist()
    assert repeated.is_ood.tolist() == first.is_ood.tolist()
    assert repeated.rows == first.rows
    assert again.state.stream.rows == 8


def test_old_answers_are_forgotten_by_age_and_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "FORGET_EVERY", 1)
    on, time = guard(tmp_path / "s", IGNORE), 1e9
    monkeypatch.setattr(Clock, "now", lambda self: time)
    size = len(send(on, digits(2), key="first").pack())
    send(on, digits(2), key="second")
    time += guard_module.REMEMBER - 1.0
    send(on, digits(2))
    assert send(on, digits(2), key="first").repeated
    time += 2.0
    send(on, digits(2), key="third")
    assert not send(on, digits(2), key="first").repeated
    monkeypatch.setattr(guard_module, "MOST_BYTES", 2 * size + 50)
    for i in range(5):
        send(on, digits(2), key=f"more {i}")
    assert [send(on, digits(2), key=f"more {i}").repeated for i in (4, 3, 0)] == [True, True, False]
    send(on, digits(2), key="mine", client="ann")
    for i in range(5):
        send(on, digits(2), key=f"most {i}", client="ben")
    assert send(on, digits(2), key="mine", client="ann").repeated  # nobody pushes out what others may need


def test_a_transaction_that_fails_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = guard(tmp_path / "s", IGNORE)
    send(on, digits(5))
    before = on.state
    with monkeypatch.context() as broken:

        def fails(self: SqliteStore) -> None:
            raise StoreUnavailable("the disk is full", full=True)

        broken.setattr(SqliteStore, "commit", fails)
        with pytest.raises(StoreUnavailable):
            send(on, digits(5, seed=1), key="k")
        with pytest.raises(StoreUnavailable):
            on.reset()
    assert on.state is before
    assert not send(on, digits(5, seed=1), key="k").repeated
    assert on.state.stream.rows == guard(tmp_path / "s", IGNORE).state.stream.rows == 10


def test_a_group_that_breaks_half_way_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = guard(tmp_path / "s", IGNORE)
    send(on, digits(5))
    before, rule = on.state, Judge.rule

    def second_fails(self: Judge, state: GuardState, client: str, *args: Any, **options: Any) -> Ruling:
        if client == "b":
            raise RuntimeError("a bug")
        return rule(self, state, client, *args, **options)

    monkeypatch.setattr(Judge, "rule", second_fails)
    with pytest.raises(RuntimeError):
        on.process([request(digits(3), "a"), request(digits(3), "b")])
    assert on.state is before
    assert len(seen(on)["recent"]["score"]) == 5
    assert guard(tmp_path / "s", IGNORE).state.stream.rows == 5


def test_decisions_survive_a_restart(tmp_path: Path) -> None:
    on = guard(tmp_path / "s")
    send(on, digits(5))
    on.set_threshold(1.25)
    on.freeze("a new camera")
    send(on, digits(6))
    again = guard(tmp_path / "s")
    assert again.state.threshold.value == 1.25
    assert again.mode == "frozen"
    assert again.state.stream.frozen is not None
    assert again.state.stream.frozen.because == "a new camera"
    assert (again.state.stream.rows, again.state.kept_out, again.state.scored) == (5, 6, 11)
    again.set_threshold(None)
    again.thaw()
    assert again.state.threshold == again.start.threshold
    again.reset()
    assert (again.state.stream.rows, again.mode) == (0, "running")
    assert moments_of(again) == moments_of(guard())
    on.refresh()
    assert on.state.stream.rows == 0


def test_a_new_threshold_of_the_guard_file_counts_until_a_person_draws_another(tmp_path: Path) -> None:
    def restarted(value: float) -> Guard:
        made = detector()
        made.threshold_ = Threshold(value)
        on = guard(tmp_path / "s", made=made)
        send(on, digits(5))
        return on

    assert [restarted(value).state.threshold.value for value in (1.0, 1.5)] == [1.0, 1.5]
    restarted(1.6).set_threshold(1.5)
    assert restarted(1.7).state.threshold.value == 1.5
    restarted(1.7).set_threshold(None)
    assert restarted(1.8).state.threshold.value == 1.8


def test_frozen_scores_are_the_guard_files(tmp_path: Path) -> None:
    on = guard(tmp_path / "s")
    send(on, digits(50))
    on.freeze("test")
    rows = digits(20, seed=5)
    verdict = send(on, rows)
    assert verdict.scores.tolist() == detector().score(rows).tolist()
    assert (verdict.mode, verdict.taken_in) == ("frozen", 0)


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotFitted, match=r"no threshold.*--threshold-on"):
        guard(made=ns.NormScaling().fit(sample().train))
    with pytest.raises(NotFitted, match="number of classes is not known"):
        guard(made=ns.MSP())
    only_features = sample().train.only("features")
    with pytest.raises(InvalidInput, match="was fitted without logits"):
        guard(made=ns.make_detector("mahalanobis", shrinkage="oas").fit(only_features))
    guard(tmp_path / "s")
    with pytest.raises(InvalidInput, match=r"another detector.*--store"):
        guard(tmp_path / "s", made=detector("norm_scaling", prior_weight=2.0))
    (tmp_path / "junk").write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(FileFormatError, match="not a readable SQLite file"):
        open_store(tmp_path / "junk")
    with pytest.raises(StoreUnavailable, match="is not there"):
        open_store(tmp_path / "nowhere" / "s")
    with pytest.raises(InvalidInput, match="postgresql://"):
        open_store("mysql://user:secret@host/db")
    on = guard()
    for bad, sentence in (
        ([[1.0] * 7], "8 columns"),
        (np.zeros((0, 8)), "at least 1 row"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            on.acceptable(bad)
    with pytest.raises(InvalidInput, match="must be finite"):
        on.set_threshold(math.inf)
    made = detector()
    made.threshold_ = Threshold(math.nan)
    with pytest.raises(InvalidInput, match="must be finite"):
        guard(made=made)
    with pytest.raises(InvalidInput, match="nothing to freeze"):
        guard(made=detector("energy")).freeze("x")
    with pytest.raises(InvalidInput, match="evidence"):
        Policy(evidence=0.0)
    assert on.state.scored == 0


@pytest.mark.parametrize("n", (1, 2, 300))
@pytest.mark.parametrize(("bad", "sentence"), ((math.nan, "holds NaN"), (-math.inf, "infinity"), (2e100, "too large")))
def test_a_bad_request_is_refused_by_itself(n: int, bad: float, sentence: str) -> None:
    on, twin = guard(policy=IGNORE), guard(policy=IGNORE)
    rows = digits(n).astype(np.float64)
    spoilt = rows.copy()
    spoilt[n // 2, 5] = bad
    first, refused, second = on.process([request(rows), request(spoilt, key="k"), request(rows[:1])])
    assert isinstance(refused, InvalidInput)
    assert sentence in str(refused)
    assert isinstance(first, Verdict)
    assert isinstance(second, Verdict)
    for each in (request(rows), request(rows[:1])):
        twin.process([each])
    assert moments_of(on) == moments_of(twin)
    assert on.state.stream.rows == n + 1
    (again,) = on.process([request(spoilt, key="k")])
    assert isinstance(again, InvalidInput)  # a refusal is not remembered as an answer


def test_large_numbers_that_have_moments_are_taken() -> None:
    made = detector()
    made._marks_far_rows = False
    on = guard(policy=IGNORE, made=made)
    assert send(on, np.full((3, 8), 9e99)).taken_in == 3
    assert np.isfinite(record_arrays(on.state.stream.statistics.state)["moments.m2"]).all()


def test_every_kind_of_number_is_taken(tmp_path: Path) -> None:
    rows = digits(5)
    expected = send(guard(), rows.astype(np.float16).astype(np.float32)).scores
    for given_rows in (rows.astype(np.float16), np.asfortranarray(rows.astype(np.float16).astype(np.float32))):
        assert send(guard(), given_rows).scores.tolist() == expected.tolist()
    swapped = rows.astype(">f8")
    assert send(guard(), swapped).scores.tolist() == send(guard(), rows.astype(np.float64)).scores.tolist()
    assert send(guard(), np.arange(8)[None]).predicted.tolist() == [7]


def test_a_guard_fitted_by_other_kernels_is_the_same_guard() -> None:
    code = "from normscale.guard.guard import fingerprint\n"
    code += "from normscale.guard.server.settings import sample_detector\n"
    code += "print(fingerprint(sample_detector()))"
    made = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "NORMSCALE_KERNELS": kernels},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for kernels in ("numpy", "numba")
    ]
    assert made[0] == made[1]
    assert made[0].strip() != fingerprint(detector("norm_scaling", prior_weight=2.0))


def test_the_detector_itself_is_left_alone() -> None:
    made = detector()
    assert isinstance(made, ns.NormScaling)
    before = made.running_.copy()
    on = Guard(made, open_store(":memory:"))
    send(on, digits(50))
    send(on, one_class(400))
    assert made.running_ == before


@pytest.mark.parametrize("sizes", ((3, 7, 5), (30, 7, 70)))
def test_a_flagged_row_knows_its_place_in_its_request(sizes: tuple[int, ...]) -> None:
    made = detector()
    made.threshold_ = Threshold(1.94)
    on = guard(policy=Policy(on_drift="ignore"), made=made)
    parts = [digits(n, seed=n) for n in sizes]
    parts[1][4] = 1e6  # far out, so flagged and kept out
    on.process([request(part, client="a") for part in parts])
    (flagged,) = seen(on)["flagged"]
    assert (flagged["row"], flagged["client"]) == (4, "a")
    assert len(seen(on)["recent"]["score"]) == min(sum(sizes) - 1, 48) + 1


def test_a_threshold_that_may_flag_nothing_is_said_to() -> None:
    on = guard(made=detector("robust_norm_scaling"))
    assert on.notes == []
    on.set_threshold(4.0)
    assert on.notes == []
    on.set_threshold(40.0)
    (note,) = on.notes
    assert note.startswith("the threshold of 40 may flag nothing: robust_norm_scaling gives at most 4.7")
    on.set_threshold(None)
    assert on.notes == []


def test_an_operator_hears_beforehand_which_streams_a_detector_does_not_survive() -> None:
    (note,) = guard().notes
    assert "sorted, or mostly of one class, freezes the guard" in note
    assert "normscale fit without -d" in note
    assert guard(policy=IGNORE).notes == []
    assert guard(made=detector("msp")).notes == []
