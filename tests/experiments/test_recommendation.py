"""The advice: constructed grids in which each sentence must appear, with its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import normscale as ns
from experiments.stress_rows import stress_row
from normscale.experiments.measurement import Measurement, StreamKind
from normscale.experiments.recommendation import recommend
from normscale.experiments.stress_result import StressResult
from normscale.paper.stress_presets import FROZEN, RUNNING, norm_scaling_name

SHARES = (0.01, 0.1, 0.5)
ORDERS = ("shuffled", "bursts", "OoD first")
BALANCES = ("balanced", "one class 80 %", "two classes missing")
CHOSEN = {"balanced": (), "one class 80 %": (3,), "two classes missing": (2, 7)}
HEAVY = norm_scaling_name(prior="w=train")

SETTINGS = {"preferred": "energy", "n_train": 5000}

Auroc = float | Callable[[StreamKind], float]


def grid(methods: dict[str, Auroc], ood_set: str = "noise") -> StressResult:
    """Every cell of a small grid; a method's AUROC is a number or a function of the cell, its FPR95 is 1 - AUROC."""
    weights = {RUNNING: 1.0, HEAVY: 5000.0, FROZEN: math.inf}
    rows = []
    for cell in (StreamKind(s, o, b) for s in SHARES for o in ORDERS for b in BALANCES):
        for name, auroc in methods.items():
            value = auroc(cell) if callable(auroc) else auroc
            parameters = {"prior_weight": weights[name]} if name in weights else {}
            others = {"parameters": parameters, "classes": CHOSEN[cell.balance], "n_id": 100, "n_ood": 100, "draws": 2}
            rows.append(stress_row(name, value, 1 - value, cell, ood_set, **others))
    return StressResult(rows, SETTINGS)


def skipped(row: Measurement, reason: str) -> Measurement:
    return row._replace(metrics=dict.fromkeys(row.metrics, math.nan), skipped=reason)


def is_paper_like(cell: StreamKind) -> bool:
    return cell.order == "shuffled" and cell.balance == "balanced"


def gains_only_where_the_paper_looks(cell: StreamKind) -> float:
    """0.80 + 0.2 * share in balanced, shuffled streams; 0.45 with a dominant class; 0.78 in all others."""
    if cell.balance == "one class 80 %":
        return 0.45
    return 0.80 + 0.2 * cell.share if is_paper_like(cell) else 0.78


def only(sentences: list[str], start: str) -> str:
    (found,) = (sentence for sentence in sentences if sentence.startswith(start))
    return found


def test_a_method_that_gains_and_never_loses_is_advised() -> None:
    safe = grid({"energy": 0.85, FROZEN: 0.80, RUNNING: 0.6, HEAVY: lambda cell: 0.846 + 0.1 * cell.share})
    assert recommend(safe)[0] == (
        "Use running norm-scaling (msp, prior weight 5000): against Energy, the best without running statistics, it "
        "gains up to 0.046 AUROC and never loses more than 0.005."
    )
    loses = grid({"energy": 0.85, FROZEN: 0.80, RUNNING: 0.6, HEAVY: lambda cell: 0.844 + 0.1 * cell.share})
    assert recommend(loses)[0].startswith("Use Energy unless you know your stream.")


def test_a_method_that_gains_only_in_the_papers_setting_is_tied_to_it() -> None:
    advice = recommend(grid({"energy": 0.812, FROZEN: 0.80, RUNNING: gains_only_where_the_paper_looks}))
    assert advice[0] == (
        "Use Energy unless you know your stream. Let statistics run only if its classes come evenly, its rows are well "
        "mixed and at least 50 % of them are OoD: there running norm-scaling (msp, prior weight 1) gains up to 0.088 "
        "AUROC, while in other streams it loses up to 0.362."
    )
    against_frozen = only(advice, "In balanced, shuffled streams")
    assert against_frozen == (
        "In balanced, shuffled streams running statistics beat frozen ones at an OoD share of at least 10 %, by 0.100 "
        "at 50 % (0.900 against 0.800)."
    )


def test_of_equal_gains_the_smaller_risk_is_taken() -> None:
    def heavy(cell: StreamKind) -> float:
        return gains_only_where_the_paper_looks(cell) - 0.009 if is_paper_like(cell) else 0.7

    methods: dict[str, Auroc] = {"energy": 0.81, FROZEN: 0.80, RUNNING: gains_only_where_the_paper_looks, HEAVY: heavy}
    assert (
        "prior weight 5000) gains up to 0.081 AUROC, while in other streams it loses up to 0.110"
        in recommend(grid(methods))[0]
    )
    methods[HEAVY] = lambda cell: heavy(cell) - 0.002
    assert "prior weight 1) gains up to 0.090" in recommend(grid(methods))[0]


def test_shares_that_win_without_those_above_are_listed() -> None:
    wins = {0.01: 0.85, 0.1: 0.85, 0.5: 0.70}
    advice = recommend(
        grid({"energy": 0.79, FROZEN: 0.80, RUNNING: lambda cell: wins[cell.share] if is_paper_like(cell) else 0.7})
    )
    assert "and 1 % or 10 % of them are OoD" in advice[0]
    assert advice[0].startswith("Use frozen norm-scaling (msp) unless")
    assert only(advice, "In balanced, shuffled streams").endswith("; elsewhere they lose up to 0.100.")


def test_it_is_said_plainly_when_nothing_beats_energy() -> None:
    advice = recommend(grid({"msp": 0.8, "energy": 0.9, FROZEN: 0.85, RUNNING: 0.852}))
    assert advice[0] == (
        "Use Energy: even in balanced, shuffled streams nothing with running statistics gains more than 0.01 AUROC on "
        "it, and nothing with running statistics, nor its frozen form, is more than 0.005 ahead of it on average "
        "(closest is running norm-scaling (msp, prior weight 1), with a mean AUROC of 0.852 against 0.900)."
    )
    assert only(advice, "In balanced, shuffled streams the running statistics gain nothing") == (
        "In balanced, shuffled streams the running statistics gain nothing over frozen ones (at most +0.002 AUROC, at "
        "an OoD share of 1 %)."
    )


def test_frozen_norm_scaling_may_be_best_and_a_small_gain_is_worth_no_risk() -> None:
    advice = recommend(grid({"energy": 0.85, FROZEN: 0.90, RUNNING: lambda c: 0.909 if is_paper_like(c) else 0.8}))
    assert advice[0] == (
        "Use frozen norm-scaling (msp): even in balanced, shuffled streams nothing with running statistics gains more "
        "than 0.01 AUROC on it."
    )
    assert only(advice, "Without running statistics") == (
        "Without running statistics frozen norm-scaling (msp) is best, with a mean AUROC of 0.900 (FPR95 0.100) over "
        "27 kinds of streams; Energy has 0.850 (0.150)."
    )


def test_uneven_classes_are_named_with_what_they_cost() -> None:
    advice = recommend(grid({"energy": 0.81, FROZEN: 0.79, RUNNING: gains_only_where_the_paper_looks}))
    text = only(advice, "Classes that come unevenly")
    assert "with one class at 80 % (class 3) running statistics fall to 0.450 where frozen ones keep 0.790" in text
    assert "with two classes missing (classes 2 and 7) running statistics fall to 0.780" in text
    harmless = recommend(grid({"energy": 0.81, FROZEN: 0.79, RUNNING: 0.788}))
    assert "(class 3) running statistics lose nothing to frozen ones" in only(harmless, "Classes that come unevenly")


def test_the_cost_of_the_order_is_read_off_balanced_streams() -> None:
    def running(cell: StreamKind) -> float:
        if cell.balance != "balanced":
            return 0.2  # must not be counted as a cost of the order
        return 0.9 - {"shuffled": 0.0, "bursts": 0.004, "OoD first": 0.1 * cell.share}[cell.order]

    advice = recommend(grid({"energy": 0.81, FROZEN: 0.79, RUNNING: running}))
    assert only(advice, "Order") == (
        "Order, against a shuffled stream: bursts cost nothing, OoD first costs up to 0.050 (at 50 % OoD)."
    )


def test_prior_weights_are_compared_when_there_are_several() -> None:
    methods: dict[str, Auroc] = {"energy": 0.81, FROZEN: 0.80, RUNNING: gains_only_where_the_paper_looks}
    assert not any("Prior weight" in sentence for sentence in recommend(grid(methods)))
    advice = recommend(grid(methods | {HEAVY: lambda cell: 0.79 + 0.05 * cell.share}))
    assert only(advice, "Prior weight") == (
        "Prior weight, against frozen statistics: 1 gains +0.100 at best and -0.350 at worst; 5000 (the training set's "
        "size) gains +0.015 at best and -0.010 at worst."
    )


def test_ood_sets_that_differ_are_told_apart() -> None:
    far = grid({"energy": 0.85, FROZEN: 0.8, RUNNING: 0.95}, "far")
    near = grid({"energy": 0.85, FROZEN: 0.8, RUNNING: 0.79}, "near")
    both = StressResult([*far.rows, *near.rows], SETTINGS)
    assert only(recommend(both), "The OoD sets differ").endswith("is +0.150 on far and -0.010 on near.")
    assert not any("OoD sets differ" in sentence for sentence in recommend(far))


def test_skipped_streams_are_counted_and_explained() -> None:
    whole = grid({"energy": 0.85, FROZEN: 0.8, RUNNING: 0.95})
    reason = "an OoD share of 1 % needs 99 ID rows, and the ID set suffices for 57"
    rows = [skipped(row, reason) if row.stream and row.stream.share == 0.01 else row for row in whole.rows]
    assert recommend(StressResult(rows))[-1] == (
        f"9 streams could not be made for want of rows; for example, {reason}."
    )
    nothing = StressResult([skipped(row, reason) for row in whole.rows])
    assert recommend(nothing) == [f"There is nothing to recommend: {reason}."]


def test_a_method_without_numbers_in_one_stream_is_left_out_and_named() -> None:
    methods: dict[str, Auroc] = {"energy": 0.85, FROZEN: 0.8, RUNNING: 0.95}
    rows = [*grid({**methods, "msp": 0.99}).rows, *grid({**methods, "msp": 0.99}, "far").rows]
    lost = next(place for place, row in enumerate(rows) if row.method == "msp")
    rows[lost] = skipped(rows[lost], "no class is predicted on both sides.")
    *others, last = recommend(StressResult(rows, SETTINGS))
    assert (
        last == "Left out, for want of numbers in some streams: MSP; for example, no class is predicted on both sides."
    )
    assert others == recommend(StressResult([*grid(methods).rows, *grid(methods, "far").rows], SETTINGS))


def test_another_detector_can_be_what_is_advised() -> None:
    result = grid({"energy": 0.85, FROZEN: 0.80, RUNNING: 0.7, "mine": 0.9})
    assert recommend(result)[0].startswith("Use mine: against Energy")


def test_without_running_and_frozen_there_is_no_advice() -> None:
    with pytest.raises(ns.InvalidInput, match=f"and its frozen form; the grid has energy, {RUNNING}"):
        recommend(grid({"energy": 0.9, RUNNING: 0.8}))


def test_no_claim_is_made_that_the_means_contradict() -> None:
    def running(cell: StreamKind) -> float:
        return 0.80 if cell.balance == "one class 80 %" else 0.85 if is_paper_like(cell) else 0.95

    advice = recommend(grid({"energy": 0.85, FROZEN: 0.84, RUNNING: running}))
    assert advice[0].startswith("Use Energy: even in balanced, shuffled streams nothing with running statistics gains")
    assert "nor its frozen form" not in advice[0]


def test_where_several_are_as_good_energy_is_advised() -> None:
    advice = recommend(grid({"max_logit": 0.899, "energy": 0.896, FROZEN: 0.90, RUNNING: 0.8}))
    assert advice[0].startswith("Use Energy: even in balanced")
    assert "nor its frozen form, is more than 0.005 ahead of it" in advice[0]
    assert only(advice, "Without running").startswith(
        "Without running statistics Energy is as good as any, with a mean"
    )
    clearly = recommend(grid({"max_logit": 0.899, "energy": 0.894, FROZEN: 0.90, RUNNING: 0.8}))
    assert clearly[0].startswith("Use frozen norm-scaling (msp): even")
