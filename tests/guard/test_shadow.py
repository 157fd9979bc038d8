"""A shadow is sent what the serving guard answers, counted and never heard, until somebody switches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from guard.foreign import NearestNeighbour
from guard.guards import IGNORE, detector, digits, moments_of, request, sample
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput, StoreUnavailable
from normscale.guard import Guard, GuardPair, Verdict, open_guard
from normscale.guard.entries import Event


def new_detector() -> Detector:
    """Flags more than the other."""
    half = sample().train[: len(sample().train) // 2]
    return ns.NormScaling().fit(half).set_threshold(sample().validation, keep=0.7)


def pair(folder: Path, serving: str = "old", shadow: str | None = "new") -> GuardPair:
    """Either of two guards, each on its own store, as one process opens them."""
    made = {"old": detector, "new": new_detector}
    opened = [open_guard(made[name](), folder / name, IGNORE) for name in (serving, shadow) if name is not None]
    return GuardPair(*opened)


def send(on: GuardPair, rows: Any, **options: Any) -> Verdict:
    (verdict,) = on.process([request(rows, **options)])
    assert isinstance(verdict, Verdict), verdict
    return verdict


def alone(folder: Path, made: Detector, *blocks: Any) -> tuple[Guard, list[Verdict]]:
    on = open_guard(made, folder, IGNORE)
    return on, [on.score(block) for block in blocks]


def test_a_shadow_learns_from_the_same_rows_and_is_compared(tmp_path: Path) -> None:
    blocks = [digits(700, seed=1), sample().ood["unseen_digits"].logits[:500]]
    on = pair(tmp_path)
    told: list[Any] = []
    assert on.shadow is not None
    on.shadow.listeners.append(told.append)
    answers = [send(on, block) for block in blocks]
    old, by_old = alone(tmp_path / "a", detector(), *blocks)
    new, by_new = alone(tmp_path / "b", new_detector(), *blocks)
    for answer, alone_said in zip(answers, by_old, strict=True):
        np.testing.assert_array_equal(answer.scores, alone_said.scores)  # nobody hears the shadow
    assert moments_of(on.shadow) == moments_of(new)
    assert moments_of(on.serving) == moments_of(old)
    a, b = (np.concatenate([verdict.is_ood for verdict in said]) for said in (by_old, by_new))
    counts = (len(a), int((a & b).sum()), int((a & ~b).sum()), int((b & ~a).sum()))
    assert on.shadow.state.agreement == counts
    assert counts[0] > 1000
    assert counts[3] > 0
    assert [entry.rows for entry in told if entry.event == Event.COMPARED] == [0]  # once for every thousand rows


def test_after_a_switch_the_shadow_serves_in_every_process(tmp_path: Path) -> None:
    on, other = pair(tmp_path), pair(tmp_path)
    send(on, digits(50))
    assert send(other, digits(50, seed=2)).rows == 100
    on.switch(by="ann")
    assert (on.serving.fingerprint, on.shadow) == (other.shadow.fingerprint, None)  # type: ignore[union-attr]
    _, said = alone(tmp_path / "b", new_detector(), digits(50), digits(50, seed=2), digits(9, seed=3))
    np.testing.assert_array_equal(send(other, digits(9, seed=3)).scores, said[-1].scores)  # it had not heard of it
    assert other.shadow is None
    other.run(lambda guard: guard.freeze("by hand", by="bob"))
    assert (on.run(Guard.refresh).rows, on.serving.mode) == (109, "frozen")
    for each in (on, other):
        assert each.former is not None
        assert each.former.state.rows == 100  # what came after the switch is not in the old statistics
        successor = each.former.state.successor
        assert successor is not None
        assert (successor.by, successor.store) == ("ann", str(tmp_path / "new"))
        with pytest.raises(InvalidInput, match="no shadow to switch to"):
            each.switch(by="ann")


def test_a_switch_outlives_the_process_and_can_be_taken_back(tmp_path: Path) -> None:
    on = pair(tmp_path)
    send(on, digits(20))
    on.switch(by="ann")
    on.close()
    again = pair(tmp_path)
    assert (again.serving.store.name, again.shadow, send(again, digits(1)).rows) == (str(tmp_path / "new"), None, 21)
    again.close()
    with pytest.raises(StoreUnavailable, match=r"was switched to that on .*new.*by ann"):
        pair(tmp_path, shadow=None)
    with pytest.raises(StoreUnavailable, match="takes nothing in"):
        open_guard(detector(), tmp_path / "old", IGNORE).score(digits(1))
    back = pair(tmp_path, "new", "old")  # the other way round
    assert back.shadow is not None
    assert send(back, digits(5)).rows == 26
    assert (back.shadow.state.rows, back.shadow.state.agreement.rows) == (25, 5)
    back.switch(by="bob")
    assert (back.serving.store.name, send(back, digits(1)).rows) == (str(tmp_path / "old"), 26)
    back.close()
    first = pair(tmp_path)
    assert (first.serving.store.name, first.former) == (str(tmp_path / "old"), None)
    assert first.shadow is not None


def test_a_repeated_request_is_answered_as_before_the_switch(tmp_path: Path) -> None:
    on = pair(tmp_path)
    first = send(on, digits(40), key="k", digest=b"d")
    assert not first.repeated
    on.switch()
    second = send(on, digits(40), key="k", digest=b"d")
    assert second.repeated
    np.testing.assert_array_equal(first.scores, second.scores)
    assert on.serving.state.rows == 40


def test_clients_do_not_notice_when_the_shadow_fails(tmp_path: Path) -> None:
    on = pair(tmp_path)
    send(on, digits(10))
    assert on.shadow is not None
    on.shadow.store.close()
    assert send(on, digits(10, seed=1)).rows == 20
    assert (on.missed, "closed" in (on.trouble or "")) == (10, True)
    with pytest.raises(StoreUnavailable, match="closed"):  # nobody is switched to what cannot answer
        on.switch()
    assert on.serving.state.successor is None
    assert send(on, digits(1)).rows == 21


def test_only_detectors_of_the_same_rows_can_be_a_pair(tmp_path: Path) -> None:
    narrow = ns.NormScaling().fit(sample().train.logits[:, :4]).set_threshold(sample().validation.logits[:, :4])
    with pytest.raises(InvalidInput, match=r"the shadow reads logits of 4 columns and the serving detector \d+"):
        GuardPair(open_guard(detector(), ":memory:"), open_guard(narrow, ":memory:"))
    train, rows = sample().train[:200], sample().validation[:30]
    reads_more = NearestNeighbour().fit(train).set_threshold(rows)
    both = GuardPair(open_guard(detector(), ":memory:"), open_guard(reads_more, ":memory:"))
    assert set(both.widths) == {"logits", "features"}  # clients send what either needs
    (verdict,) = both.process([request(rows.logits)])
    assert (isinstance(verdict, Verdict), both.missed) == (True, 30)
    assert both.checked(rows).names == ("logits", "features")


def test_a_shadow_that_cannot_scale_logits_sees_rows_whose_client_asked_for_them(tmp_path: Path) -> None:
    energy = ns.Energy().fit(sample().train).set_threshold(sample().validation)
    on = GuardPair(open_guard(detector(), tmp_path / "old", IGNORE), open_guard(energy, tmp_path / "new", IGNORE))
    verdict = send(on, digits(10), scaled=True)
    assert verdict.scaled is not None
    assert on.shadow is not None
    assert (on.shadow.state.scored, on.missed) == (10, 0)
