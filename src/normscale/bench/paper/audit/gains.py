"""Point 6, second half: every gain the text claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

from normscale.bench.paper.audit.findings import Finding, listed, verdict_of
from normscale.bench.paper.audit.printed import (
    COLUMNS,
    COMPARISON,
    OURS,
    RIVALS,
    THRESHOLDS,
    TITLES,
    Tables,
    best,
    better,
    may_be,
    relative_change,
)
from normscale.bench.paper.published import AVERAGE, GAINS_OVER_MSP, GAINS_OVER_RIVALS, IN_SETS

EXCEPTION_CLAIM = "Better than plain MSP across the board, the only exception being AUROC on SVHN."
ORDER_CLAIM = "On every set but SVHN: plain MSP, then Multi-Threshold, then Norm-Scaling."


def claim_over_rivals(column: str) -> str:
    """What the abstract says of a column.

    Examples
    --------
    >>> claim_over_rivals("AUROC")
    '9.78 % improvement in AUROC over previous methods.'
    """
    claimed = list(GAINS_OVER_RIVALS.values())[COLUMNS.index(column)]
    word = "reduction" if claimed < 0 else "improvement"
    return f"{percent(abs(claimed), sign='')} {word} in {column} over previous methods."


def claim_over_msp() -> str:
    """What the text says of all columns."""
    return f"{' / '.join(percent(gain, 0) for gain in GAINS_OVER_MSP.values())} in AUROC / AUPR / FPR95 over plain MSP."


def check_gains(tables: Tables) -> list[Finding]:
    """Compute again what the text says that the tables show."""
    return [
        *gains_over_rivals(tables),
        gains_over_msp(tables),
        exceptions_on_svhn(tables),
        order_of_three(tables),
    ]


def gains_over_rivals(tables: Tables) -> Iterator[Finding]:
    """The three gains of the abstract, against the best average among the rivals."""
    for column, (metric, claimed) in zip(COLUMNS, GAINS_OVER_RIVALS.items(), strict=True):
        ours = tables.main_value(COMPARISON, AVERAGE, OURS, column).mean
        rival, theirs = best([(m, tables.main_value(COMPARISON, AVERAGE, m, column).mean) for m in RIVALS], column)
        change = relative_change(ours, theirs)
        holds = may_be(claimed, ours, theirs)
        summed = statistics.fmean(tables.four(COMPARISON, OURS, column))
        from_rows = relative_change(summed, theirs)
        recomputed = (
            f"{percent(change)} against the best average, {TITLES[rival]}'s {theirs:.4f}; "
            f"{percent(from_rows)} with {TITLES[OURS]}'s own summed from its rows, {summed:.4f}."
        )
        sources = [] if holds else list(_other_sources(tables, column, claimed))
        if holds:
            reason = f"It is the gain over {TITLES[rival]}'s average."
        elif sources:
            reason = f"{percent(claimed)} is {listed(sources)}."
        else:
            reason = "No pair of numbers in the comparison gives it."
        details = [
            {
                "metric": metric,
                "claimed": claimed,
                "against_best_average": round(change, 6),
                "from_rows": round(from_rows, 6),
                "best_rival": rival,
            }
        ]
        yield Finding(6, claim_over_rivals(column), recomputed, verdict_of(holds), reason, details)


def _other_sources(tables: Tables, column: str, claimed: float) -> Iterator[str]:
    """Every pair of our and a rival's number in the comparison, averages or rows, that gives the claimed gain."""
    for ours_on in (AVERAGE, *IN_SETS):
        ours = tables.main_value(COMPARISON, ours_on, OURS, column).mean
        for rival in RIVALS:
            for theirs_on in (AVERAGE, *IN_SETS):
                theirs = tables.main_value(COMPARISON, theirs_on, rival, column).mean
                if may_be(claimed, ours, theirs):
                    whose = "the average" if ours_on == AVERAGE else f"the row of {TITLES[ours_on]},"
                    where = "on average" if theirs_on == AVERAGE else f"on {TITLES[theirs_on]} alone"
                    yield f"{whose} {ours:.4f} against {TITLES[rival]} {where}, {theirs:.4f}"


def gains_over_msp(tables: Tables) -> Finding:
    """The gains over plain MSP: means of four ratios, beside the ratio of the averages."""
    details: list[dict[str, Any]] = []
    holds = True
    for column, (metric, claimed) in zip(COLUMNS, GAINS_OVER_MSP.items(), strict=True):
        ours, msp = tables.four(THRESHOLDS, OURS, column), tables.four(THRESHOLDS, "msp", column)
        ratios = [relative_change(a, b) for a, b in zip(ours, msp, strict=True)]
        details.append(
            {
                "metric": metric,
                "claimed": claimed,
                "mean_of_ratios": round(statistics.fmean(ratios), 6),
                "ratio_of_means": round(relative_change(statistics.fmean(ours), statistics.fmean(msp)), 6),
            }
        )
        holds &= round(statistics.fmean(ratios), 2) == claimed
    shown = {key: " / ".join(percent(row[key], 1) for row in details) for key in details[0] if key != "metric"}
    return Finding(
        6,
        claim_over_msp(),
        f"Mean of the four sets' ratios: {shown['mean_of_ratios']}; ratio of the averages: {shown['ratio_of_means']}.",
        verdict_of(holds),
        "They are means of per-set ratios, not changes of the average." if holds else "The ratios give other numbers.",
        details,
    )


def exceptions_on_svhn(tables: Tables) -> Finding:
    """Where norm-scaling does worse than plain MSP in the main text."""
    worse = [
        (in_set, column, ours, msp)
        for column in COLUMNS
        for in_set, ours, msp in zip(
            IN_SETS, tables.four(THRESHOLDS, OURS, column), tables.four(THRESHOLDS, "msp", column), strict=True
        )
        if better(msp, ours, column)
    ]
    return Finding(
        6,
        EXCEPTION_CLAIM,
        "Worse in "
        + (listed([f"{c} on {TITLES[s]} ({msp:.4f} to {ours:.4f})" for s, c, ours, msp in worse]) or "no cell")
        + ".",
        verdict_of([(s, c) for s, c, *_ in worse] == [("svhn", "AUROC")]),
        f"{len(worse)} of {len(COLUMNS) * len(IN_SETS)} cells are worse.",
        [{"in_set": s, "column": c, "msp": msp, "norm_scaling": ours} for s, c, ours, msp in worse],
    )


def order_of_three(tables: Tables) -> Finding:
    """Where, outside SVHN, multi-threshold does not lie between plain MSP and norm-scaling."""
    wrong: list[dict[str, Any]] = []
    for column in COLUMNS:
        for in_set in IN_SETS:
            msp, many, ours = (
                tables.main_value(THRESHOLDS, in_set, method, column).mean
                for method in ("msp", "multi_threshold", OURS)
            )
            if in_set != "svhn" and not (better(many, msp, column) and better(ours, many, column)):
                wrong.append(
                    {"in_set": in_set, "column": column, "msp": msp, "multi_threshold": many, "norm_scaling": ours}
                )
    cells = [f"{w['column']} on {TITLES[w['in_set']]} ({w['msp']:.4f}, {w['multi_threshold']:.4f})" for w in wrong]
    return Finding(
        6,
        ORDER_CLAIM,
        f"Not so: MSP and Multi-Threshold in {listed(cells)}." if wrong else "So in every cell.",
        verdict_of(not wrong),
        "One threshold per class makes those worse than one for all." if wrong else "The order is the same everywhere.",
        wrong,
    )


def percent(share: float, digits: int = 2, sign: str = "+") -> str:
    """A share in percent, with its sign.

    Examples
    --------
    >>> percent(0.0978), percent(float("inf"))
    ('+9.78 %', 'infinitely more')
    """
    if share == math.inf:  # of nothing
        return "infinitely more"
    return f"{100 * share:{sign}.{digits}f} %"
