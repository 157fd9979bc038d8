"""The verdicts on a stress grid, from grids whose every number is written down."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from bench.experiments.stress_rows import stress_row
from normscale.bench.experiments.measurement import StreamKind
from normscale.bench.experiments.stress_result import (
    DEPENDS,
    NO_GAIN,
    RECOMMENDED,
    SAFE,
    STATIC,
    MethodSummary,
    StressResult,
    summarise,
)
from normscale.bench.paper.presets import FROZEN, RUNNING
from normscale.errors import InvalidInput

Auroc = float | Callable[[StreamKind], float]
KINDS = [
    StreamKind(share, order, balance)
    for share in (0.01, 0.1, 0.5)
    for order in ("shuffled", "OoD first")
    for balance in ("balanced", "one class 80 %")
]


def grid(methods: dict[str, Auroc]) -> StressResult:
    rows = [
        stress_row(name, auroc(kind) if callable(auroc) else auroc, kind=kind)
        for kind in KINDS
        for name, auroc in methods.items()
    ]
    return StressResult(rows, {"preferred": "energy"})


def found(methods: dict[str, Auroc]) -> dict[str, MethodSummary]:
    return {one.method: one for one in summarise(grid(methods))}


def gains_only_when_mixed(kind: StreamKind) -> float:
    return 0.9 if (kind.order, kind.balance) == ("shuffled", "balanced") else 0.45


def test_a_method_that_gains_and_never_loses_is_recommended() -> None:
    one = found({RUNNING: 0.9, FROZEN: 0.8, "energy": 0.85, "other": 0.87})
    assert one[RUNNING].verdict == RECOMMENDED
    assert one["other"].verdict == SAFE
    assert one["energy"].verdict == one[FROZEN].verdict == STATIC
    assert (one[RUNNING].worst, one[RUNNING].best) == pytest.approx((0.05, 0.05))


def test_a_method_that_gains_here_and_loses_there_depends_on_the_stream() -> None:
    one = found({RUNNING: gains_only_when_mixed, FROZEN: 0.8, "energy": 0.85})
    assert one[RUNNING].verdict == DEPENDS
    assert one["energy"].verdict == RECOMMENDED
    assert (one[RUNNING].worst, one[RUNNING].best) == pytest.approx((-0.40, 0.05))
    assert one[RUNNING].kinds_below == 9


def test_a_small_gain_is_worth_no_risk() -> None:
    one = found({RUNNING: 0.859, FROZEN: 0.8, "energy": 0.85})
    assert one[RUNNING].verdict == NO_GAIN
    assert one["energy"].verdict == RECOMMENDED


def test_of_static_methods_the_preferred_is_recommended_where_it_is_as_good() -> None:
    one = found({RUNNING: 0.7, FROZEN: 0.8, "energy": 0.85, "max_logit": 0.854})
    assert one["energy"].verdict == RECOMMENDED
    one = found({RUNNING: 0.7, FROZEN: 0.8, "energy": 0.85, "max_logit": 0.856})
    assert one["max_logit"].verdict == RECOMMENDED


def test_a_method_without_numbers_in_one_stream_is_left_out() -> None:
    result = grid({RUNNING: 0.9, FROZEN: 0.8, "energy": 0.85})
    rows = [
        row._replace(metrics=dict.fromkeys(row.metrics, math.nan), skipped="no row")
        if row.method == RUNNING and row.stream == KINDS[0]
        else row
        for row in result.rows
    ]
    assert {one.method for one in summarise(StressResult(rows))} == {FROZEN, "energy"}


def test_without_static_methods_there_is_no_summary() -> None:
    with pytest.raises(InvalidInput, match="a summary needs"):
        summarise(grid({RUNNING: 0.9}))
