"""Point 6, first half: every average of the tables, summed again."""

from __future__ import annotations

import statistics
from typing import Any

from normscale.bench.paper.audit.findings import Finding, listed, verdict_of
from normscale.bench.paper.audit.printed import (
    COLUMNS,
    COMPARISON,
    OURS,
    RIVALS,
    TITLES,
    UNIT,
    Tables,
    agrees,
)
from normscale.bench.paper.published import AVERAGE, IN_SETS, METHODS, metric_name


def check_sums(tables: Tables) -> list[Finding]:
    """Sum up again what the tables sum up."""
    return [
        averages_over_ood_sets(tables),
        averages_over_in_sets(tables),
        main_against_expanded(tables),
    ]


def averages_over_ood_sets(tables: Tables) -> Finding:
    """Sum each average over OoD sets again."""
    wrong: list[dict[str, Any]] = []
    n = exact = 0
    for in_set in IN_SETS:
        for method in METHODS.values():
            for column in COLUMNS:
                printed = tables.value(in_set, AVERAGE, method, column).mean
                mean = statistics.fmean(row.mean for row in tables.rows(in_set, method, column))
                n += 1
                exact += round(mean, 4) == printed
                if not agrees(printed, mean):
                    wrong.append(_mismatch(in_set, method, column, printed, mean))
    return Finding(
        6,
        "The averages over OoD sets in the expanded tables.",
        f"{n - len(wrong)} of {n} agree with their rows ({exact} to the last digit, {n - len(wrong) - exact} within "
        "the rounding of the rows).",
        verdict_of(not wrong),
        "Every average is the plain mean of its rows." if not wrong else f"{len(wrong)} do not follow from their rows.",
        wrong,
    )


def averages_over_in_sets(tables: Tables) -> Finding:
    """Sum each average over the four in-distribution sets again; look for one changed row where it fails."""
    wrong: list[dict[str, Any]] = []
    n = 0
    for method in (*RIVALS, OURS):
        for column in COLUMNS:
            printed = tables.main_value(COMPARISON, AVERAGE, method, column)
            four = tables.four(COMPARISON, method, column)
            n += 1
            if not agrees(printed.mean, statistics.fmean(four)):
                row = _mismatch(AVERAGE, method, column, printed.mean, statistics.fmean(four))
                wrong.append(row | {"explained_by": _one_other_row(four, printed.mean, printed.std)})
    text = listed([f"{w['method']} {w['column']} {w['printed']:.4f}, rows {w['recomputed']:.4f}" for w in wrong])
    explained = [w["explained_by"] for w in wrong if w["explained_by"]]
    reason = "Every average is the plain mean of its rows."
    if wrong:
        reason = f"{listed([w['method'] + ' ' + w['column'] for w in wrong])} is not the mean of its four rows."
    if explained:
        reason += f" Both its mean and its ± would follow from {listed(explained)}."
    return Finding(
        6,
        "The averages over the four in-distribution sets in the comparison.",
        f"{n - len(wrong)} of {n} agree with their rows" + (f"; not {text}." if wrong else "."),
        verdict_of(not wrong),
        reason,
        wrong,
    )


def _mismatch(in_set: str, method: str, column: str, printed: float, recomputed: float) -> dict[str, Any]:
    return {
        "in_set": in_set,
        "method": TITLES[method],
        "column": column,
        "printed": printed,
        "recomputed": round(recomputed, 6),
    }


def _one_other_row(four: list[float], mean: float, std: float) -> str:
    """Which one of four rows, were it another, gives the printed mean and the printed ± as a sample deviation."""
    found = []
    for i, in_set in enumerate(IN_SETS):
        others = four[:i] + four[i + 1 :]
        needed = round(4 * mean - sum(others), 4)
        for steps in range(-2, 3):  # four half units of rounding in the sum
            rows = [*others, needed + steps * UNIT]
            if agrees(mean, statistics.fmean(rows), 0.5) and agrees(std, statistics.stdev(rows), 0.5):
                found.append(f"{rows[-1]:.4f} instead of {four[i]:.4f} on {TITLES[in_set]}")
                break
    return " or ".join(found)


def main_against_expanded(tables: Tables) -> Finding:
    """Compare each number of the main text with the same number of the expanded tables."""
    wrong: list[dict[str, Any]] = []
    n = 0
    for row in tables.main:
        column = next(c for c in COLUMNS if metric_name(row.method, c) == row.metric)
        if not tables.has(row.in_set, AVERAGE, row.method, column):
            continue
        n += 1
        there = tables.value(row.in_set, AVERAGE, row.method, column)
        if there != (row.mean, row.std):
            wrong.append(
                {
                    "table": row.table,
                    "in_set": row.in_set,
                    "method": TITLES[row.method],
                    "column": column,
                    "main": f"{row.mean:.4f} ± {row.std:.4f}",
                    "expanded": f"{there.mean:.4f} ± {there.std:.4f}",
                }
            )
    text = listed(
        [f"{w['method']} {w['column']} on {TITLES[w['in_set']]}: {w['main']}, {w['expanded']}" for w in wrong]
    )
    return Finding(
        6,
        "The main text's tables repeat the averages of the expanded tables.",
        f"{n - len(wrong)} of {n} cells are the same" + (f"; not {text} in the appendix." if wrong else "."),
        verdict_of(not wrong),
        "The tables agree." if not wrong else "The tables do not agree with each other.",
        wrong,
    )
