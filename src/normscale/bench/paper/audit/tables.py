"""Points 4, 5 and 7, and the shares of point 2: what follows from the paper's tables alone."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from typing import Any

from normscale.bench.paper.audit.findings import Finding, listed, verdict_of
from normscale.bench.paper.audit.gains import check_gains
from normscale.bench.paper.audit.printed import COLUMNS, COMPARISON, OURS, RIVALS, TITLES, Tables, agrees
from normscale.bench.paper.audit.sums import check_sums
from normscale.bench.paper.published import (
    AVERAGE,
    IN_SETS,
    LISTED_OOD_SETS,
    METHODS,
    OOD_SIZES,
    TEST_SIZES,
    MainRow,
    PaperRow,
    ood_size,
)

RARE = 0.01
"""The share of OoD inputs that a deployed classifier may well see; more is an attack or a fault."""

NO_READING = "no reading fits"


def audit_tables(results: Iterable[PaperRow] | None = None, main: Iterable[MainRow] | None = None) -> list[Finding]:
    """Check what the paper's tables say against themselves and against the text.

    Parameters
    ----------
    results, main : rows, optional
        In place of :func:`~normscale.bench.paper.published.paper_results` and ``main_tables``, to try the audit on.

    Examples
    --------
    >>> [(finding.point, finding.verdict) for finding in audit_tables()][:3]
    [(2, 'differs'), (4, 'differs'), (5, 'differs')]
    """
    tables = Tables(results, main)
    return [
        shares_of_the_streams(tables),
        positive_class(tables),
        spread_over_ood_sets(tables),
        spread_over_in_sets(tables),
        *check_sums(tables),
        *check_gains(tables),
        ood_lists(tables),
    ]


def shares_of_the_streams(tables: Tables) -> Finding:
    """How many of the inputs of each test stream are OoD, from the sizes of the sets."""
    details: list[dict[str, Any]] = []
    for in_set in IN_SETS:
        sizes = [(ood_size(in_set, row.ood_set), row.ood_set) for row in tables.rows(in_set, OURS, "AUROC")]
        for which, (size, ood_set) in (("lowest", min(sizes)), ("highest", max(sizes))):
            share = size / (size + TEST_SIZES[in_set])
            details.append({"in_set": in_set, "which": which, "ood_set": ood_set, "share": round(share, 4)})
    lowest = min(row["share"] for row in details)
    pairs = zip(details[::2], details[1::2], strict=True)
    each = [f"{TITLES[a['in_set']]} {100 * a['share']:.0f} to {100 * b['share']:.0f} %" for a, b in pairs]
    return Finding(
        2,
        "A shuffled mixture of both test sets is a reasonable picture of deployment.",
        f"OoD inputs in the paper's streams: {', '.join(each)}.",
        verdict_of(lowest <= RARE),
        f"No stream has fewer than {100 * lowest:.0f} % OoD inputs, and running statistics learn from all of them.",
        details,
    )


def positive_class(tables: Tables) -> Finding:
    """Tell from set sizes and AUROC which class each method's AUPR column counts as positive.

    More OoD inputs raise the AUPR if OoD is positive and lower it if in-distribution is. And a ranking that is better
    than chance (AUROC above 0.5) should not have an AUPR below chance, which is the share of positives.
    """
    details: list[dict[str, Any]] = []
    for method in METHODS.values():
        rows = tables.rows(None, method, "AUPR")
        rises = falls = 0
        for a, b in itertools.combinations([row for row in rows if row.ood_set in OOD_SIZES], 2):
            if a.in_set == b.in_set and OOD_SIZES[a.ood_set] != OOD_SIZES[b.ood_set] and a.mean != b.mean:
                larger_is_higher = (OOD_SIZES[a.ood_set] > OOD_SIZES[b.ood_set]) == (a.mean > b.mean)
                rises, falls = rises + larger_is_higher, falls + (not larger_is_higher)
        against = {"OoD": 0, "in-distribution": 0}
        for row in rows:
            n_ood, n_id = ood_size(row.in_set, row.ood_set), TEST_SIZES[row.in_set]
            above = tables.value(row.in_set, row.ood_set, method, "AUROC").mean - 0.5
            for positive, n in (("OoD", n_ood), ("in-distribution", n_id)):
                against[positive] += (row.mean - n / (n_id + n_ood)) * above < 0
        details.append(
            {
                "method": TITLES[method],
                "rises_with_size": rises,
                "falls_with_size": falls,
                "against_ood": against["OoD"],
                "against_id": against["in-distribution"],
                "positive": "OoD" if rises > falls else "in-distribution",
            }
        )
    inside = [row["method"] for row in details if row["positive"] == "in-distribution"]
    shown = next((row for row in details if row["method"] in inside), details[0])
    others = [row for row in details if row is not shown]
    total = shown["rises_with_size"] + shown["falls_with_size"]
    return Finding(
        4,
        "One AUPR column for all methods (no positive class is named).",
        f"Of {total} pairs of OoD sets, the larger has the lower AUPR in {shown['falls_with_size']} for "
        f"{shown['method']}, in {min(r['falls_with_size'] for r in others)} to "
        f"{max(r['falls_with_size'] for r in others)} for the others.",
        verdict_of(not inside),
        f"In-distribution is positive for {listed(inside)}, OoD for the others: their AUPR cannot be compared."
        if inside
        else "Every method's AUPR rises with the OoD set: OoD is positive for all.",
        details,
    )


def spread_over_ood_sets(tables: Tables) -> Finding:
    """Which of two readings gives the ± of the averages over OoD sets, method by method."""
    details: list[dict[str, Any]] = []
    for method in METHODS.values():
        between = seeds = n = 0
        for in_set, column in itertools.product(IN_SETS, COLUMNS):
            rows = tables.rows(in_set, method, column)
            printed = tables.value(in_set, AVERAGE, method, column).std
            between += agrees(printed, statistics.pstdev(row.mean for row in rows))
            seeds += agrees(printed, statistics.fmean(row.std for row in rows))
            n += 1
        details.append({"method": TITLES[method], "averages": n, "between_sets": between, "seed_deviations": seeds})
    by_sets = [row["method"] for row in details if row["between_sets"] == row["averages"]]
    by_seeds = [row["method"] for row in details if row["seed_deviations"] == row["averages"]]
    neither = [row["method"] for row in details if row["method"] not in (*by_sets, *by_seeds)]
    parts = [
        f"{what} for {listed(names)}"
        for what, names in (
            ("deviation of the means between OoD sets", by_sets),
            ("mean of the deviations between seeds", by_seeds),
            ("neither throughout", neither),
        )
        if names
    ]
    alike = len(parts) == 1 and not neither
    return Finding(
        5,
        "± is the standard deviation over five seeds, for every method.",
        f"{'; '.join(parts)[0].upper()}{'; '.join(parts)[1:]}.",
        verdict_of(alike and bool(by_seeds)),
        "One ± means one thing for all methods."
        if alike
        else "The ± of different methods measure different things and cannot be compared.",
        details,
    )


def spread_over_in_sets(tables: Tables) -> Finding:
    """Which reading gives the ± of the comparison's last row."""
    details: list[dict[str, Any]] = []
    for method, column in itertools.product((*RIVALS, OURS), COLUMNS):
        printed = tables.main_value(COMPARISON, AVERAGE, method, column).std
        four = tables.four(COMPARISON, method, column)
        every = [row.mean for row in tables.rows(None, method, column)]
        readings = {
            f"population deviation over all {len(every)} pairs of sets": statistics.pstdev(every),
            "sample deviation of the four averages": statistics.stdev(four),
            "mean of the four ±": statistics.fmean(
                tables.main_value(COMPARISON, in_set, method, column).std for in_set in IN_SETS
            ),
        }
        # a sample deviation of four passes on a little more of the rows' rounding than a population's
        fits = [name for name, value in readings.items() if agrees(printed, value, 1.1 if "sample" in name else 1.0)]
        details.append(
            {"method": TITLES[method], "column": column, "printed": printed, "reading": listed(fits) or NO_READING}
        )
    groups: dict[str, list[str]] = {}
    for row in details:
        groups.setdefault(row["reading"], []).append(f"{row['method']} {row['column']}")
    text = "; ".join(f"{reading}: {_shortened(cells)}" for reading, cells in groups.items())
    return Finding(
        5,
        "The ± of the comparison's last row means the same in every column.",
        f"{text[0].upper()}{text[1:]}.",
        verdict_of(len(groups) == 1 and NO_READING not in groups),
        "It does." if len(groups) == 1 else "The ± of different methods are of different kinds.",
        details,
    )


def _shortened(cells: list[str]) -> str:
    """``MSP AUROC, MSP AUPR, MSP FPR95`` becomes ``MSP``."""
    methods: dict[str, list[str]] = {}
    for cell in cells:
        method, _, column = cell.rpartition(" ")
        methods.setdefault(method, []).append(column)
    return listed([m if len(c) == len(COLUMNS) else f"{m} {' and '.join(c)}" for m, c in methods.items()])


def ood_lists(tables: Tables) -> Finding:
    """Compare the OoD sets that the text lists with those that the expanded tables have."""
    details: list[dict[str, Any]] = []
    for name in LISTED_OOD_SETS:
        wanted = [in_set for in_set in IN_SETS if in_set != name]
        used = [s for s in wanted if name in {row.ood_set for row in tables.rows(s, OURS, "AUROC")}]
        details.append({"ood_set": name, "listed_for": wanted, "used_for": used})
    short = [row for row in details if row["used_for"] != row["listed_for"]]
    texts = []
    for row in short:
        users = listed([TITLES[name] for name in row["used_for"]])
        texts.append(f"{TITLES[row['ood_set']]} {'only for ' + users if users else 'never'}")
    return Finding(
        7,
        "Nine OoD sets, of which each in-distribution set leaves out only itself.",
        f"{'; '.join(texts)}." if short else "Every listed set is used.",
        verdict_of(not short),
        "The averages are over fewer sets than listed." if short else "The tables have every set that the text lists.",
        details,
    )
