"""Points 2 and 4 to 7: what follows from the paper's tables alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from statistics import fmean, pstdev, stdev
from typing import Any

from normscale.bench.paper.audit.claim import Claim, percent, verdict_of
from normscale.bench.paper.audit.printed import (
    COLUMNS,
    COMPARISON,
    OURS,
    RIVALS,
    THRESHOLDS,
    TITLES,
    UNIT,
    Tables,
    agrees,
    best,
    better,
    may_be,
    relative_change,
)
from normscale.bench.paper.published import (
    AVERAGE,
    GAINS_OVER_MSP,
    GAINS_OVER_RIVALS,
    IN_SETS,
    LISTED_OOD_SETS,
    METHODS,
    OOD_SIZES,
    TEST_SIZES,
    MainRow,
    PaperRow,
    metric_name,
    ood_size,
)

RARE = 0.01
"""The share of OoD inputs that a deployed classifier may well see; more is an attack or a fault."""
NO_READING = "no reading fits"
EXCEPTION_CLAIM = "Better than plain MSP across the board, the only exception being AUROC on SVHN."
ORDER_CLAIM = "On every set but SVHN: plain MSP, then Multi-Threshold, then Norm-Scaling."
MSP_CLAIM = (
    f"{' / '.join(percent(gain, 0) for gain in GAINS_OVER_MSP.values())} in {' / '.join(COLUMNS)} over plain MSP."
)
_ROUNDING = "within the rounding to four digits"


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


def audit_tables(results: Iterable[PaperRow] | None = None, main: Iterable[MainRow] | None = None) -> list[Claim]:
    """Check the paper's tables against themselves and against the text.

    Parameters
    ----------
    results, main : rows, optional
        In place of :func:`~normscale.bench.paper.published.paper_results` and ``main_tables``, to try the audit on.

    Examples
    --------
    >>> [(claim.point, claim.verdict) for claim in audit_tables()][:3]
    [(2, 'differs'), (4, 'differs'), (5, 'differs')]
    """
    tables = Tables(results, main)
    return [
        _shares(tables),
        _positive_class(tables),
        _spread_over_ood_sets(tables),
        _spread_over_in_sets(tables),
        _averages_over_ood_sets(tables),
        _averages_over_in_sets(tables),
        _main_against_expanded(tables),
        *_gains_over_rivals(tables),
        _gains_over_msp(tables),
        _exceptions(tables),
        _order_of_three(tables),
        _ood_lists(tables),
    ]


def _shares(tables: Tables) -> Claim:
    """How many of the inputs of each test stream are OoD, from the sizes of the sets."""
    details: list[dict[str, Any]] = []
    for in_set in IN_SETS:
        sizes = [(ood_size(in_set, row.ood_set), row.ood_set) for row in tables.rows(in_set, OURS, "AUROC")]
        for which, (size, ood_set) in (("lowest", min(sizes)), ("highest", max(sizes))):
            share = size / (size + TEST_SIZES[in_set])
            details.append({"in_set": in_set, "which": which, "ood_set": ood_set, "share": round(share, 4)})
    pairs = zip(details[::2], details[1::2], strict=True)
    each = [f"{TITLES[a['in_set']]} {100 * a['share']:.0f} to {100 * b['share']:.0f} %" for a, b in pairs]
    return Claim(
        2,
        "A shuffled mixture of both test sets is a reasonable picture of deployment.",
        recomputed=f"OoD inputs: {', '.join(each)}",
        verdict=verdict_of(min(row["share"] for row in details) <= RARE),
        rule=f"a stream with at most {100 * RARE:g} % OoD inputs",
        details=details,
    )


def _positive_class(tables: Tables) -> Claim:
    """Tell from set sizes and AUROC which class each method's AUPR column counts as positive.

    More OoD inputs raise the AUPR if OoD is positive and lower it if in-distribution is. And a ranking that is better
    than chance (AUROC above 0.5) should not have an AUPR below chance, which is the share of positives.
    """
    details: list[dict[str, Any]] = []
    for method in METHODS.values():
        rows = tables.rows(None, method, "AUPR")
        rises = falls = 0
        for a, b in combinations([row for row in rows if row.ood_set in OOD_SIZES], 2):
            if a.in_set == b.in_set and OOD_SIZES[a.ood_set] != OOD_SIZES[b.ood_set] and a.mean != b.mean:
                larger_is_higher = (OOD_SIZES[a.ood_set] > OOD_SIZES[b.ood_set]) == (a.mean > b.mean)
                rises, falls = rises + larger_is_higher, falls + (not larger_is_higher)
        against = {"against_ood": 0, "against_id": 0}
        for row in rows:
            n_ood, n_id = ood_size(row.in_set, row.ood_set), TEST_SIZES[row.in_set]
            above = tables.value(row.in_set, row.ood_set, method, "AUROC").mean - 0.5
            for key, n in (("against_ood", n_ood), ("against_id", n_id)):
                against[key] += (row.mean - n / (n_id + n_ood)) * above < 0
        counts = {"rises_with_size": rises, "falls_with_size": falls, **against}
        positive = "OoD" if rises > falls else "in-distribution"
        details.append({"method": TITLES[method], **counts, "positive": positive})
    inside = [row["method"] for row in details if row["positive"] == "in-distribution"]
    return Claim(
        4,
        "One AUPR column for all methods (no positive class is named).",
        recomputed=f"in-distribution is positive for {_listed(inside) or 'none'}, OoD for the others",
        verdict=verdict_of(not inside),
        rule="the AUPR of every method rises with the size of the OoD set",
        details=details,
    )


def _spread_over_ood_sets(tables: Tables) -> Claim:
    """Which of two readings gives the ± of the averages over OoD sets, method by method."""
    details: list[dict[str, Any]] = []
    for method in METHODS.values():
        between = seeds = 0
        for in_set, column in product(IN_SETS, COLUMNS):
            rows = tables.rows(in_set, method, column)
            printed = tables.value(in_set, AVERAGE, method, column).std
            between += agrees(printed, pstdev(row.mean for row in rows))
            seeds += agrees(printed, fmean(row.std for row in rows))
        n = len(IN_SETS) * len(COLUMNS)
        details.append({"method": TITLES[method], "averages": n, "between_sets": between, "seed_deviations": seeds})
    by_sets, by_seeds = (
        [row["method"] for row in details if row[reading] == row["averages"]]
        for reading in ("between_sets", "seed_deviations")
    )
    neither = [row["method"] for row in details if row["method"] not in (*by_sets, *by_seeds)]
    readings = {
        "between OoD sets": by_sets,
        "mean over OoD sets of the deviation over seeds": by_seeds,
        "neither throughout": neither,
    }
    return Claim(
        5,
        "± is the standard deviation over five seeds, for every method.",
        recomputed="; ".join(f"{reading}: {_listed(names)}" for reading, names in readings.items() if names),
        verdict=verdict_of(len(by_seeds) == len(details)),
        rule=f"over seeds for every method, {_ROUNDING}",
        details=details,
    )


def _spread_over_in_sets(tables: Tables) -> Claim:
    """Which reading gives the ± of the comparison's last row."""
    details: list[dict[str, Any]] = []
    for method, column in product((*RIVALS, OURS), COLUMNS):
        printed = tables.main_value(COMPARISON, AVERAGE, method, column).std
        every = [row.mean for row in tables.rows(None, method, column)]
        four = [tables.main_value(COMPARISON, in_set, method, column) for in_set in IN_SETS]
        readings = {
            f"population deviation over all {len(every)} pairs of sets": pstdev(every),
            "sample deviation of the four averages": stdev(one.mean for one in four),
            "mean of the four ±": fmean(one.std for one in four),
        }
        # a sample deviation of four passes on a little more of the rows' rounding than a population's
        fits = [name for name, value in readings.items() if agrees(printed, value, 1.1 if "sample" in name else 1.0)]
        reading = _listed(fits) or NO_READING
        details.append({"method": TITLES[method], "column": column, "printed": printed, "reading": reading})
    groups: dict[str, list[str]] = {}
    for row in details:
        groups.setdefault(row["reading"], []).append(f"{row['method']} {row['column']}")
    return Claim(
        5,
        "The ± of the comparison's last row means the same in every column.",
        recomputed="; ".join(f"{reading}: {len(cells)} of {len(details)}" for reading, cells in groups.items()),
        verdict=verdict_of(len(groups) == 1 and NO_READING not in groups),
        rule=f"one reading for all cells, {_ROUNDING}",
        details=details,
    )


def _averages_over_ood_sets(tables: Tables) -> Claim:
    wrong: list[dict[str, Any]] = []
    cells = list(product(IN_SETS, METHODS.values(), COLUMNS))
    exact = 0
    for in_set, method, column in cells:
        printed = tables.value(in_set, AVERAGE, method, column).mean
        mean = fmean(row.mean for row in tables.rows(in_set, method, column))
        exact += round(mean, 4) == printed
        if not agrees(printed, mean):
            wrong.append(_mismatch(in_set, method, column, printed, mean))
    n, right = len(cells), len(cells) - len(wrong)
    return Claim(
        6,
        "The averages over OoD sets in the expanded tables.",
        f"{n} averages",
        f"{right} of {n} agree with their rows ({exact} to the last digit, {right - exact} within the rounding)",
        verdict=verdict_of(not wrong),
        rule=f"every one is the mean of its rows, {_ROUNDING}",
        details=wrong,
    )


def _averages_over_in_sets(tables: Tables) -> Claim:
    """Sum each average over the four in-distribution sets again; look for one changed row where it fails."""
    wrong: list[dict[str, Any]] = []
    cells = list(product((*RIVALS, OURS), COLUMNS))
    for method, column in cells:
        printed = tables.main_value(COMPARISON, AVERAGE, method, column)
        four = tables.four(COMPARISON, method, column)
        if not agrees(printed.mean, fmean(four)):
            row = _mismatch(AVERAGE, method, column, printed.mean, fmean(four))
            wrong.append(row | {"explained_by": _one_other_row(four, printed.mean, printed.std)})
    text = "".join(
        f"; {w['method']} {w['column']} {w['printed']:.4f}, rows {w['recomputed']:.4f}"
        + (f" ({w['explained_by']} would explain both mean and ±)" if w["explained_by"] else "")
        for w in wrong
    )
    n = len(cells)
    return Claim(
        6,
        "The averages over the four in-distribution sets in the comparison.",
        f"{n} averages",
        f"{n - len(wrong)} of {n} agree with their rows{text}",
        verdict=verdict_of(not wrong),
        rule=f"every one is the mean of its rows, {_ROUNDING}",
        details=wrong,
    )


def _mismatch(in_set: str, method: str, column: str, printed: float, recomputed: float) -> dict[str, Any]:
    cell = {"in_set": in_set, "method": TITLES[method], "column": column}
    return cell | {"printed": printed, "recomputed": round(recomputed, 6)}


def _one_other_row(four: list[float], mean: float, std: float) -> str:
    """Which one of four rows, were it another, gives the printed mean and the printed ± as a sample deviation."""
    found = []
    for i, in_set in enumerate(IN_SETS):
        others = four[:i] + four[i + 1 :]
        needed = round(4 * mean - sum(others), 4)
        for steps in range(-2, 3):  # four half units of rounding in the sum
            rows = [*others, needed + steps * UNIT]
            if agrees(mean, fmean(rows), 0.5) and agrees(std, stdev(rows), 0.5):
                found.append(f"{rows[-1]:.4f} instead of {four[i]:.4f} on {TITLES[in_set]}")
                break
    return " or ".join(found)


def _main_against_expanded(tables: Tables) -> Claim:
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
            cell = {"table": row.table, "in_set": row.in_set, "method": TITLES[row.method], "column": column}
            both = {"main": f"{row.mean:.4f} ± {row.std:.4f}", "expanded": f"{there.mean:.4f} ± {there.std:.4f}"}
            wrong.append(cell | both)
    return Claim(
        6,
        "The main text's tables repeat the averages of the expanded tables.",
        "".join(f"{w['method']} {w['column']} on {TITLES[w['in_set']]}: {w['main']}; " for w in wrong)[:-2] or "–",
        f"{n - len(wrong)} of {n} cells are the same" + "".join(f"; there {w['expanded']}" for w in wrong),
        verdict=verdict_of(not wrong),
        rule="every cell is the same",
        details=wrong,
    )


def _gains_over_rivals(tables: Tables) -> Iterator[Claim]:
    """The three gains of the abstract, against the best average among the rivals."""
    for column, (metric, claimed) in zip(COLUMNS, GAINS_OVER_RIVALS.items(), strict=True):
        ours = tables.main_value(COMPARISON, AVERAGE, OURS, column).mean
        rival, theirs = best([(m, tables.main_value(COMPARISON, AVERAGE, m, column).mean) for m in RIVALS], column)
        change, holds = relative_change(ours, theirs), may_be(claimed, ours, theirs)
        summed = relative_change(fmean(tables.four(COMPARISON, OURS, column)), theirs)
        recomputed = f"{percent(change)} against the best average, {TITLES[rival]}'s {theirs:.4f}"
        recomputed += f"; {percent(summed)} with its own average summed from its rows"
        if not holds:
            sources = _listed(list(_other_sources(tables, column, claimed)))
            recomputed += f"; {percent(claimed)} is {sources or 'given by no pair of its numbers'}"
        details = [
            {
                "metric": metric,
                "claimed": claimed,
                "against_best_average": round(change, 6),
                "from_rows": round(summed, 6),
                "best_rival": rival,
            }
        ]
        yield Claim(
            6,
            claim_over_rivals(column),
            percent(claimed),
            recomputed,
            verdict=verdict_of(holds),
            rule=f"it is the change from the best rival's average, {_ROUNDING}",
            details=details,
        )


def _other_sources(tables: Tables, column: str, claimed: float) -> Iterator[str]:
    """Every pair of our and a rival's number in the comparison, averages or rows, that gives the claimed gain."""
    for ours_on, rival, theirs_on in product((AVERAGE, *IN_SETS), RIVALS, (AVERAGE, *IN_SETS)):
        ours = tables.main_value(COMPARISON, ours_on, OURS, column).mean
        theirs = tables.main_value(COMPARISON, theirs_on, rival, column).mean
        if may_be(claimed, ours, theirs):
            whose = "the average" if ours_on == AVERAGE else f"the row of {TITLES[ours_on]},"
            where = "on average" if theirs_on == AVERAGE else f"on {TITLES[theirs_on]} alone"
            yield f"{whose} {ours:.4f} against {TITLES[rival]} {where}, {theirs:.4f}"


def _gains_over_msp(tables: Tables) -> Claim:
    """The gains over plain MSP: means of four ratios, beside the ratio of the averages."""
    details: list[dict[str, Any]] = []
    for column, (metric, claimed) in zip(COLUMNS, GAINS_OVER_MSP.items(), strict=True):
        ours, msp = tables.four(THRESHOLDS, OURS, column), tables.four(THRESHOLDS, "msp", column)
        ratio = fmean(relative_change(a, b) for a, b in zip(ours, msp, strict=True))
        whole = relative_change(fmean(ours), fmean(msp))
        numbers = {"mean_of_ratios": round(ratio, 6), "ratio_of_means": round(whole, 6)}
        details.append({"metric": metric, "claimed": claimed, **numbers})
    shown = {key: " / ".join(percent(row[key], 1) for row in details) for key in list(details[0])[1:]}
    return Claim(
        6,
        MSP_CLAIM,
        " / ".join(percent(row["claimed"], 0) for row in details),
        f"mean of the four sets' ratios {shown['mean_of_ratios']}; ratio of the averages {shown['ratio_of_means']}",
        verdict=verdict_of(all(round(row["mean_of_ratios"], 2) == row["claimed"] for row in details)),
        rule="they are the means of the four sets' ratios, in whole percent",
        details=details,
    )


def _exceptions(tables: Tables) -> Claim:
    """Where norm-scaling does worse than plain MSP in the main text."""
    worse: list[dict[str, Any]] = []
    for column, in_set in product(COLUMNS, IN_SETS):
        ours, msp = (tables.main_value(THRESHOLDS, in_set, method, column).mean for method in (OURS, "msp"))
        if better(msp, ours, column):
            worse.append({"in_set": in_set, "column": column, "msp": msp, "norm_scaling": ours})
    return Claim(
        6,
        EXCEPTION_CLAIM,
        "1 cell worse",
        cells_text([f"{w['column']} on {TITLES[w['in_set']]}" for w in worse], len(COLUMNS) * len(IN_SETS), "worse"),
        verdict=verdict_of([(w["in_set"], w["column"]) for w in worse] == [("svhn", "AUROC")]),
        rule="no exception but the one it names",
        details=worse,
    )


def _order_of_three(tables: Tables) -> Claim:
    """Where, outside SVHN, multi-threshold does not lie between plain MSP and norm-scaling."""
    wrong: list[dict[str, Any]] = []
    others = [in_set for in_set in IN_SETS if in_set != "svhn"]
    for column, in_set in product(COLUMNS, others):
        methods = ("msp", "multi_threshold", OURS)
        found = {method: tables.main_value(THRESHOLDS, in_set, method, column).mean for method in methods}
        msp, many, ours = found.values()
        if not (better(many, msp, column) and better(ours, many, column)):
            wrong.append({"in_set": in_set, "column": column, **found})
    names = [f"{w['column']} on {TITLES[w['in_set']]}" for w in wrong]
    return Claim(
        6,
        ORDER_CLAIM,
        "no other order",
        cells_text(names, len(COLUMNS) * len(others), "in another order"),
        verdict=verdict_of(not wrong),
        rule="the order is the same in every cell",
        details=wrong,
    )


def _ood_lists(tables: Tables) -> Claim:
    """Compare the OoD sets that the text lists with those that the expanded tables have."""
    details: list[dict[str, Any]] = []
    for name in LISTED_OOD_SETS:
        wanted = [in_set for in_set in IN_SETS if in_set != name]
        used = [s for s in wanted if name in {row.ood_set for row in tables.rows(s, OURS, "AUROC")}]
        details.append({"ood_set": name, "listed_for": wanted, "used_for": used})
    short = [row for row in details if row["used_for"] != row["listed_for"]]
    texts = []
    for row in short:
        users = _listed([TITLES[name] for name in row["used_for"]])
        texts.append(f"{TITLES[row['ood_set']]} {'only for ' + users if users else 'never'}")
    return Claim(
        7,
        "Nine OoD sets, of which each in-distribution set leaves out only itself.",
        "nine sets",
        "; ".join(texts) or "every listed set is used",
        verdict=verdict_of(not short),
        rule="every listed set is in the tables",
        details=details,
    )


def cells_text(named: Sequence[str], total: int, what: str) -> str:
    """How many cells of a table are an exception, and which."""
    return f"{len(named)} of {total} cells {what}" + (f": {', '.join(named)}" if named else "")


def _listed(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
