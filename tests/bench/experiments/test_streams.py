"""Streams: exact shares, no row twice, the classes and the order that were asked for."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import normscale as ns
from normscale._validate import IntArray
from normscale.bench.experiments.streams import (
    BALANCES,
    BURST,
    ORDERS,
    ClassBalance,
    Streams,
    stream_classes,
)

SHARES = ("0.001", "0.01", "0.05", "0.1", "0.25", "0.5", "0.75", "0.3")


def draw_rows(
    balance: ClassBalance, n_ood: int, share: float, seed: int = 0, draw: int = 0
) -> tuple[IntArray, IntArray]:
    return Streams(balance.classes.size, share, balance, seed=seed).rows(n_ood, draw)


def arrange(id_rows: IntArray, ood_rows: IntArray, order: str, n_id: int, seed: int = 0, draw: int = 0) -> IntArray:
    any_share = Streams(n_id, 0.5, ClassBalance(CLASSES, "balanced", 0), seed=seed)
    return any_share.arrange(id_rows, ood_rows, order, draw)


CLASSES = np.random.default_rng(3).permutation(np.repeat(np.arange(10), 1000))


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("share", SHARES)
def test_the_share_is_exact_the_stream_is_the_longest_and_no_row_comes_twice(share: str, balance: str) -> None:
    pool = ClassBalance(CLASSES, balance, seed=1)
    id_rows, ood_rows = draw_rows(pool, 5000, float(share), seed=1)
    assert Fraction(len(ood_rows), len(id_rows) + len(ood_rows)) == Fraction(share)
    assert len(set(id_rows.tolist())) == len(id_rows)
    assert len(set(ood_rows.tolist())) == len(ood_rows)
    assert id_rows.min() >= 0
    assert id_rows.max() < len(CLASSES)
    assert 0 <= ood_rows.min() <= ood_rows.max() < 5000
    odds = Fraction(share) / (1 - Fraction(share))
    longer = len(id_rows) + odds.denominator
    assert longer > pool.capacity or longer * odds > 5000


def test_the_sizes_the_module_promises() -> None:
    balanced = ClassBalance(CLASSES, "balanced", seed=0)
    sizes = [Streams(10_000, share, balanced).sizes(10_000)[:2] for share in (0.5, 0.001, 0.75)]
    assert sizes == [(10_000, 10_000), (9990, 10), (3333, 9999)]


@given(
    counts=st.lists(st.integers(0, 60), min_size=2, max_size=8).filter(lambda counts: sum(counts) > 0),
    balance=st.sampled_from(BALANCES),
    seed=st.integers(0, 5),
    part=st.floats(0, 1),
)
def test_classes_are_spread_as_the_balance_says(counts: list[int], balance: str, seed: int, part: float) -> None:
    classes = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    pool = ClassBalance(classes, balance, seed)
    total = int(part * pool.capacity)
    rows = pool.draw(total, np.random.default_rng(seed))
    assert len(set(rows.tolist())) == total
    drawn = np.bincount(classes[rows], minlength=len(counts))
    others = [c for c in range(len(counts)) if c not in pool.chosen]
    if balance == "one class 80 %" and total:
        (dominant,) = pool.chosen
        assert abs(drawn[dominant] - 0.8 * total) <= 0.5
    elif balance != "balanced":
        assert drawn[list(pool.chosen)].sum() == 0
    for c in others:  # a class may be rarer than another only if all its rows are there
        assert drawn[c] == counts[c] or drawn[c] >= max(drawn[others]) - 1


@pytest.mark.parametrize(
    ("counts", "capacity"),
    (
        ((30, 30, 30), 90),
        ((500, 30, 30), 90),  # no class more often than the median one
        ((30, 30, 2), 62),  # a rare class does not shrink the others
        ((0, 40, 40), 80),
        ((10, 1000), 20),
    ),
)
def test_balanced_means_as_often_as_the_median_class(counts: tuple[int, ...], capacity: int) -> None:
    classes = np.repeat(np.arange(len(counts)), counts)
    pool = ClassBalance(classes, "balanced", seed=0)
    assert pool.capacity == capacity
    assert pool.chosen == ()


def test_special_classes_come_from_the_seed_and_are_never_rare_ones() -> None:
    classes = np.repeat(np.arange(6), (100, 100, 100, 100, 3, 0))
    for balance, number in (("one class 80 %", 1), ("one class missing", 1), ("two classes missing", 2)):
        chosen = [ClassBalance(classes, balance, seed).chosen for seed in range(40)]
        assert {c for some in chosen for c in some} == {0, 1, 2, 3}
        assert {len(some) for some in chosen} == {number}
        assert chosen[7] == ClassBalance(classes, balance, 7).chosen


def streamed(order: str, n_id: int = 900, n_ood: int = 700, draw: int = 0) -> tuple[list[int], list[bool]]:
    rng = np.random.default_rng(5)
    stream = arrange(rng.permutation(2000)[:n_id], rng.permutation(800)[:n_ood], order, n_id=2000, draw=draw)
    return stream.tolist(), (stream >= 2000).tolist()


def test_every_order_holds_the_same_rows_and_knows_which_are_ood() -> None:
    expected = set(streamed("shuffled")[0])
    for order in ORDERS:
        rows, is_ood = streamed(order)
        assert len(rows) == 1600
        assert set(rows) == expected
        assert sum(is_ood) == 700


def test_the_orders_are_what_they_are_called() -> None:
    runs = {order: [len(list(g)) for _, g in groupby(streamed(order)[1])] for order in ORDERS}
    assert runs["ID first"] == [900, 700]
    assert runs["OoD first"] == [700, 900]
    assert streamed("OoD first")[1][0] is True
    assert streamed("ID first")[1][0] is False
    assert len(runs["shuffled"]) > 600, "a fair shuffle has 789 runs on average"
    assert 2 < len(runs["bursts"]) <= 9
    assert all(run % BURST in (0, 900 % BURST) for run in runs["bursts"])
    assert Counter(streamed("bursts")[1]) == {False: 900, True: 700}


def test_another_draw_gives_another_stream_and_the_same_one_the_same() -> None:
    pool = ClassBalance(CLASSES, "balanced", seed=0)

    def rows(seed: int, draw: int) -> tuple[int, ...]:
        return tuple(draw_rows(pool, 5000, 0.01, seed=seed, draw=draw)[1].tolist())

    assert rows(0, 0) == rows(0, 0)
    assert len({rows(seed, draw) for seed in range(3) for draw in range(3)}) == 9
    assert streamed("shuffled") == streamed("shuffled")
    assert streamed("shuffled")[1] != streamed("shuffled", draw=1)[1]
    assert streamed("bursts")[1] != streamed("bursts", draw=1)[1]


def test_small_shares_are_drawn_until_two_hundred_ood_rows_were_seen() -> None:
    pool = ClassBalance(CLASSES, "balanced", seed=0)
    assert [Streams(0, share, pool).sizes(5000).draws for share in (0.001, 0.01, 0.03, 0.5)] == [20, 2, 1, 1]


@pytest.mark.parametrize(
    ("counts", "n_ood", "share", "balance", "reason"),
    (
        ((50, 50), 500, 0.001, "balanced", "an OoD share of 0.1 % needs 999 ID rows, and the ID set suffices for 100"),
        ((50, 50), 19, 0.5, "balanced", "the OoD set has 19 rows; at least 20 are needed"),
        ((9, 9), 500, 0.5, "balanced", "needs 20 ID rows, and the ID set suffices for 18 (balanced)"),
        ((50, 50), 500, 0.5, "two classes missing", "suffices for 0 (two classes missing)"),
        ((0, 90), 500, 0.5, "one class 80 %", "suffices for 0 (one class 80 %)"),
        ((50, 50), 25, 0.75, "balanced", "an OoD share of 75 % needs 60 OoD rows, and the OoD set has 25"),
    ),
)
def test_too_few_rows_are_a_reason_and_not_a_crash(
    counts: tuple[int, ...], n_ood: int, share: float, balance: str, reason: str
) -> None:
    pool = ClassBalance(np.repeat(np.arange(len(counts)), counts), balance, seed=0)
    sizes = Streams(0, share, pool).sizes(n_ood)
    assert sizes[:3] == (0, 0, 0)
    assert reason in sizes.skipped
    with pytest.raises(ns.InvalidInput, match="no such stream"):
        draw_rows(pool, n_ood, share)


def test_the_class_of_a_row_is_its_label_where_known() -> None:
    logits = np.eye(3)[[0, 1, 2, 0]]
    assert stream_classes(ns.ModelOutputs(logits)).tolist() == [0, 1, 2, 0]
    assert stream_classes(ns.ModelOutputs(logits, labels=[2, -1, 1, -1])).tolist() == [2, 1, 1, 0]


def test_mistakes_are_named() -> None:
    pool = ClassBalance(CLASSES, "balanced", seed=0)
    with pytest.raises(ns.InvalidInput, match=r"share must lie in \(0, 1\); got 50. For 50 % write 0.5"):
        Streams(0, 50, pool).sizes(100)
    with pytest.raises(ns.InvalidInput, match="balance must be one of 'balanced', 'one class 80 %'"):
        ClassBalance(CLASSES, "even", seed=0)
    with pytest.raises(ns.InvalidInput, match="order must be one of 'shuffled', 'bursts'"):
        arrange(np.arange(3), np.arange(3), "sorted", n_id=3)
    with pytest.raises(ns.InvalidInput, match="seed must be a whole number >= 0; got -1"):
        ClassBalance(CLASSES, "balanced", seed=-1)
    with pytest.raises(ns.InvalidInput, match="total must be at most 10000 with 'balanced'; got 10001"):
        pool.draw(10_001, np.random.default_rng(0))
