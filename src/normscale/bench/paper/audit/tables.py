"""Points 2 and 4 to 7: what follows from the paper's tables alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, product
from statistics import fmean, pstdev, stdev
from typing import Any

from normscale.bench.paper import claim as claims
from normscale.bench.paper import published as paper
from normscale.bench.paper.claim import COLUMNS, OURS, RIVALS, ROUNDING, Claim, Details, listed, percent
from normscale.bench.paper.published import AVERAGE, COMPARISON, EXPANDED, IN_SETS, THRESHOLDS, TITLES, PaperRow
from normscale.bench.report.published import PublishedValue

UNIT = 1e-4
"""The last printed digit."""
RARE = 0.01
"""The share of OoD inputs that a deployed classifier may well see; more is an attack or a fault."""
NO_READING = "no reading fits"
Check = Callable[["Tables", Claim], Claim]
"""From the tables and a claim to the claim with a verdict."""


class Tables:
    """The paper's tables, looked up by names, or doctored ones to try the audit on."""

    def __init__(self, rows: Iterable[PaperRow]) -> None:
        self.every = list(rows)
        self._found = paper.values_by_name(self.every)

    def value(self, in_set: str, ood_set: str, method: str, column: str, table: str = EXPANDED) -> PublishedValue:
        """A cell."""
        return self._found[table, in_set, ood_set, method, paper.metric_name(method, column)]

    def main(self, table: str, in_set: str, method: str, column: str) -> PublishedValue:
        """A cell of the main text's tables."""
        return self.value(in_set, AVERAGE, method, column, table)

    def four(self, table: str, method: str, column: str) -> list[float]:
        """The means of a method on the four in-distribution sets, from the main text."""
        return [self.main(table, in_set, method, column).mean for in_set in IN_SETS]

    def rows(self, in_set: str | None, method: str, column: str) -> list[PaperRow]:
        """The rows of single OoD sets for one in-distribution set, or for all of them."""
        names = method, paper.metric_name(method, column)
        single = [row for row in self.every if row.table == EXPANDED and row.ood_set != AVERAGE]
        return [row for row in single if row[3:5] == names and in_set in (None, row.in_set)]


def audit_tables(rows: Iterable[PaperRow] | None = None) -> list[Claim]:
    """Check the paper's tables against themselves and against the text.

    ``rows`` in place of :func:`~normscale.bench.paper.published.paper_rows` try the audit on other numbers.

    Examples
    --------
    >>> [(claim.point, claim.verdict) for claim in audit_tables()][:3]
    [(2, 'differs'), (4, 'differs'), (5, 'differs')]
    """
    tables = Tables(paper.paper_rows() if rows is None else rows)
    return [check(tables, claim) for claim, check in _CHECKS]


def agrees(printed: float, recomputed: float, units: float = 1.0) -> bool:
    """Whether a printed number may be the rounding of what the rounded rows give.

    A row is off by half a unit at most, so a mean of rows is too, and so is a population deviation; the printed number
    adds its own half.
    """
    return abs(printed - recomputed) <= units * UNIT * (1 + 1e-6)


def may_be(claimed: float, ours: float, theirs: float) -> bool:
    """Whether a claimed relative change, itself rounded, may come from two printed numbers."""
    half = UNIT / 2
    low, high = claims.relative_change(ours - half, theirs + half), claims.relative_change(ours + half, theirs - half)
    return low - half <= claimed <= high + half


def _shares(tables: Tables, claim: Claim) -> Claim:
    """How many of the inputs of each test stream are OoD, from the sizes of the sets."""
    details: Details = []
    for in_set in IN_SETS:
        sizes = [(paper.ood_size(in_set, row.ood_set), row.ood_set) for row in tables.rows(in_set, OURS, "AUROC")]
        for which, (size, ood_set) in (("lowest", min(sizes)), ("highest", max(sizes))):
            share = size / (size + paper.TEST_SIZES[in_set])
            details.append({"in_set": in_set, "which": which, "ood_set": ood_set, "share": round(share, 4)})
    pairs = zip(details[::2], details[1::2], strict=True)
    each = [f"{TITLES[a['in_set']]} {100 * a['share']:.0f} to {100 * b['share']:.0f} %" for a, b in pairs]
    holds = min(row["share"] for row in details) <= RARE
    return claim.judged(holds, recomputed=f"OoD inputs: {', '.join(each)}", details=details)


def _positive_class(tables: Tables, claim: Claim) -> Claim:
    """Tell from set sizes and AUROC which class each method's AUPR column counts as positive.

    More OoD inputs raise the AUPR if OoD is positive and lower it if in-distribution is. And a ranking that is better
    than chance (AUROC above 0.5) should not have an AUPR below chance, which is the share of positives.
    """
    details: Details = []
    for method in paper.METHODS.values():
        rows = tables.rows(None, method, "AUPR")
        rises = falls = 0
        for a, b in combinations([row for row in rows if row.ood_set in paper.OOD_SIZES], 2):
            if a.in_set == b.in_set and paper.OOD_SIZES[a.ood_set] != paper.OOD_SIZES[b.ood_set] and a.mean != b.mean:
                larger_is_higher = (paper.OOD_SIZES[a.ood_set] > paper.OOD_SIZES[b.ood_set]) == (a.mean > b.mean)
                rises, falls = rises + larger_is_higher, falls + (not larger_is_higher)
        against = {"against_ood": 0, "against_id": 0}
        for row in rows:
            n_ood, n_id = paper.ood_size(row.in_set, row.ood_set), paper.TEST_SIZES[row.in_set]
            above = tables.value(row.in_set, row.ood_set, method, "AUROC").mean - 0.5
            for key, n in (("against_ood", n_ood), ("against_id", n_id)):
                against[key] += (row.mean - n / (n_id + n_ood)) * above < 0
        counts = {"rises_with_size": rises, "falls_with_size": falls, **against}
        positive = "OoD" if rises > falls else "in-distribution"
        details.append({"method": TITLES[method], **counts, "positive": positive})
    inside = [row["method"] for row in details if row["positive"] == "in-distribution"]
    text = f"in-distribution is positive for {listed(inside) or 'none'}, OoD for the others"
    return claim.judged(not inside, recomputed=text, details=details)


def _spread_over_ood_sets(tables: Tables, claim: Claim) -> Claim:
    """Which of two readings gives the ± of the averages over OoD sets, method by method."""
    details: Details = []
    for method in paper.METHODS.values():
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
    readings = {
        "between OoD sets": by_sets,
        "mean over OoD sets of the deviation over seeds": by_seeds,
        "neither throughout": [row["method"] for row in details if row["method"] not in (*by_sets, *by_seeds)],
    }
    text = "; ".join(f"{reading}: {listed(names)}" for reading, names in readings.items() if names)
    return claim.judged(len(by_seeds) == len(details), recomputed=text, details=details)


def _spread_over_in_sets(tables: Tables, claim: Claim) -> Claim:
    """Which reading gives the ± of the comparison's last row."""
    details: Details = []
    groups: dict[str, int] = {}
    for method, column in product((*RIVALS, OURS), COLUMNS):
        printed = tables.main(COMPARISON, AVERAGE, method, column).std
        every = [row.mean for row in tables.rows(None, method, column)]
        four = [tables.main(COMPARISON, in_set, method, column) for in_set in IN_SETS]
        readings = {
            f"population deviation over all {len(every)} pairs of sets": pstdev(every),
            "sample deviation of the four averages": stdev(one.mean for one in four),
            "mean of the four ±": fmean(one.std for one in four),
        }
        # a sample deviation of four passes on a little more of the rows' rounding than a population's
        fits = [name for name, value in readings.items() if agrees(printed, value, 1.1 if "sample" in name else 1.0)]
        reading = listed(fits) or NO_READING
        groups[reading] = groups.get(reading, 0) + 1
        details.append({"method": TITLES[method], "column": column, "printed": printed, "reading": reading})
    text = "; ".join(f"{reading}: {n} of {len(details)}" for reading, n in groups.items())
    return claim.judged(len(groups) == 1 and NO_READING not in groups, recomputed=text, details=details)


def _averages_over_ood_sets(tables: Tables, claim: Claim) -> Claim:
    wrong: Details = []
    cells = list(product(IN_SETS, paper.METHODS.values(), COLUMNS))
    exact = 0
    for in_set, method, column in cells:
        printed = tables.value(in_set, AVERAGE, method, column).mean
        mean = fmean(row.mean for row in tables.rows(in_set, method, column))
        exact += round(mean, 4) == printed
        if not agrees(printed, mean):
            wrong.append(_mismatch(in_set, method, column, printed, mean))
    n, right = len(cells), len(cells) - len(wrong)
    text = f"{right} of {n} agree with their rows ({exact} to the last digit, {right - exact} within the rounding)"
    return claim.judged(not wrong, paper=f"{n} averages", recomputed=text, details=wrong)


def _averages_over_in_sets(tables: Tables, claim: Claim) -> Claim:
    """Sum each average over the four in-distribution sets again; look for one changed row where it fails."""
    wrong: Details = []
    text, cells = "", list(product((*RIVALS, OURS), COLUMNS))
    for method, column in cells:
        printed, four = tables.main(COMPARISON, AVERAGE, method, column), tables.four(COMPARISON, method, column)
        if not agrees(printed.mean, fmean(four)):
            other = _one_other_row(four, printed.mean, printed.std)
            wrong.append(_mismatch(AVERAGE, method, column, printed.mean, fmean(four)) | {"explained_by": other})
            text += f"; {TITLES[method]} {column} {printed.mean:.4f}, rows {fmean(four):.4f}"
            text += f" ({other} would explain both mean and ±)" if other else ""
    n = len(cells)
    text = f"{n - len(wrong)} of {n} agree with their rows{text}"
    return claim.judged(not wrong, paper=f"{n} averages", recomputed=text, details=wrong)


def _mismatch(in_set: str, method: str, column: str, printed: float, recomputed: float) -> dict[str, Any]:
    cell = {"in_set": in_set, "method": TITLES[method], "column": column}
    return cell | {"printed": printed, "recomputed": round(recomputed, 6)}


def _one_other_row(four: list[float], mean: float, std: float) -> str:
    """Which one of four rows, were it another, gives the printed mean and the printed ± as a sample deviation."""
    explanations = []
    for i, in_set in enumerate(IN_SETS):
        others = four[:i] + four[i + 1 :]
        needed = round(4 * mean - sum(others), 4)
        for steps in range(-2, 3):  # four half units of rounding in the sum
            rows = [*others, needed + steps * UNIT]
            if agrees(mean, fmean(rows), 0.5) and agrees(std, stdev(rows), 0.5):
                explanations.append(f"{rows[-1]:.4f} instead of {four[i]:.4f} on {TITLES[in_set]}")
                break
    return " or ".join(explanations)


def _main_against_expanded(tables: Tables, claim: Claim) -> Claim:
    """Compare each number of the main text with the same number of the expanded tables."""
    wrong: Details = []
    main = [row for row in tables.every if row.table != EXPANDED and (EXPANDED, *row[1:5]) in tables._found]
    for row in main:
        printed = tables._found[EXPANDED, *row[1:5]]
        if printed != row[5:]:
            column = next(one for one in COLUMNS if paper.metric_name(row.method, one) == row.metric)
            cell = {"table": row.table, "in_set": row.in_set, "method": TITLES[row.method], "column": column}
            both = {"main": f"{row.mean:.4f} ± {row.std:.4f}", "expanded": f"{printed.mean:.4f} ± {printed.std:.4f}"}
            wrong.append(cell | both)
    n = len(main)
    there = "; ".join(f"{w['method']} {w['column']} on {TITLES[w['in_set']]}: {w['main']}" for w in wrong)
    text = f"{n - len(wrong)} of {n} cells are the same" + "".join(f"; there {w['expanded']}" for w in wrong)
    return claim.judged(not wrong, paper=there or claim.paper, recomputed=text, details=wrong)


def _over_rivals(column: str) -> Check:
    """A gain of the abstract, against the best average among the rivals."""
    metric, claimed = list(paper.GAINS_OVER_RIVALS.items())[COLUMNS.index(column)]

    def check(tables: Tables, claim: Claim) -> Claim:
        gain = claims.gain_over(lambda method: tables.main(COMPARISON, AVERAGE, method, column).mean, RIVALS, column)
        assert gain is not None
        change, rival = gain
        ours, theirs = (tables.main(COMPARISON, AVERAGE, method, column).mean for method in (OURS, rival))
        summed, holds = (
            claims.relative_change(fmean(tables.four(COMPARISON, OURS, column)), theirs),
            may_be(claimed, ours, theirs),
        )
        text = f"{percent(change)} against the best average, {TITLES[rival]}'s {theirs:.4f}"
        text += f"; {percent(summed)} with its own average summed from its rows"
        if not holds:
            sources = listed(list(_other_sources(tables, column, claimed)))
            text += f"; {percent(claimed)} is {sources or 'given by no pair of its numbers'}"
        numbers = {"against_best_average": round(change, 6), "from_rows": round(summed, 6), "best_rival": rival}
        return claim.judged(holds, recomputed=text, details=[{"metric": metric, "claimed": claimed, **numbers}])

    return check


def _other_sources(tables: Tables, column: str, claimed: float) -> Iterator[str]:
    """Every pair of our and a rival's number in the comparison, averages or rows, that gives the claimed gain."""
    for ours_on, rival, theirs_on in product((AVERAGE, *IN_SETS), RIVALS, (AVERAGE, *IN_SETS)):
        ours = tables.main(COMPARISON, ours_on, OURS, column).mean
        theirs = tables.main(COMPARISON, theirs_on, rival, column).mean
        if may_be(claimed, ours, theirs):
            whose = "the average" if ours_on == AVERAGE else f"the row of {TITLES[ours_on]},"
            where = "on average" if theirs_on == AVERAGE else f"on {TITLES[theirs_on]} alone"
            yield f"{whose} {ours:.4f} against {TITLES[rival]} {where}, {theirs:.4f}"


def _over_msp(tables: Tables, claim: Claim) -> Claim:
    """The gains over plain MSP: means of four ratios, beside the ratio of the averages."""
    details: Details = []
    for column, (metric, claimed) in zip(COLUMNS, paper.GAINS_OVER_MSP.items(), strict=True):
        ours, msp = tables.four(THRESHOLDS, OURS, column), tables.four(THRESHOLDS, "msp", column)
        ratio = fmean(map(claims.relative_change, ours, msp))
        numbers = {
            "mean_of_ratios": round(ratio, 6),
            "ratio_of_means": round(claims.relative_change(sum(ours), sum(msp)), 6),
        }
        details.append({"metric": metric, "claimed": claimed, **numbers})
    texts = {key: " / ".join(percent(row[key], 1) for row in details) for key in list(details[0])[2:]}
    text = f"mean of the four sets' ratios {texts['mean_of_ratios']}; ratio of the averages {texts['ratio_of_means']}"
    holds = all(round(row["mean_of_ratios"], 2) == row["claimed"] for row in details)
    return claim.judged(holds, recomputed=text, details=details)


def _in_order(what: str) -> Check:
    def check(tables: Tables, claim: Claim) -> Claim:
        order = claims.in_order(what, lambda *cell: tables.main(THRESHOLDS, *cell).mean, IN_SETS)
        assert order is not None
        text, wrong = order
        holds = [(row["in_set"], row["column"]) for row in wrong] == claims.EXCEPTIONS[what]
        return claim.judged(holds, recomputed=text, details=wrong)

    return check


def _ood_lists(tables: Tables, claim: Claim) -> Claim:
    """Compare the OoD sets that the text lists with those that the expanded tables have."""
    details: Details = []
    texts = []
    for name in paper.LISTED_OOD_SETS:
        listed_for = [in_set for in_set in IN_SETS if in_set != name]
        used = [s for s in listed_for if name in {row.ood_set for row in tables.rows(s, OURS, "AUROC")}]
        details.append({"ood_set": name, "listed_for": listed_for, "used_for": used})
        if used != listed_for:
            users = listed([TITLES[one] for one in used])
            texts.append(f"{TITLES[name]} {'only for ' + users if users else 'never'}")
    text = "; ".join(texts) or "every listed set is used"
    return claim.judged(not texts, recomputed=text, details=details)


_CHECKS: list[tuple[Claim, Check]] = [
    (Claim(2, "A shuffled mixture of both test sets is a reasonable picture of deployment.",
           rule=f"a stream with at most {100 * RARE:g} % OoD inputs"), _shares),
    (Claim(4, "One AUPR column for all methods (no positive class is named).",
           rule="the AUPR of every method rises with the size of the OoD set"), _positive_class),
    (Claim(5, "± is the standard deviation over five seeds, for every method.",
           rule=f"over seeds for every method, {ROUNDING}"), _spread_over_ood_sets),
    (Claim(5, "The ± of the comparison's last row means the same in every column.",
           rule=f"one reading for all cells, {ROUNDING}"), _spread_over_in_sets),
    (Claim(6, "The averages over OoD sets in the expanded tables.",
           rule=f"every one is the mean of its rows, {ROUNDING}"), _averages_over_ood_sets),
    (Claim(6, "The averages over the four in-distribution sets in the comparison.",
           rule=f"every one is the mean of its rows, {ROUNDING}"), _averages_over_in_sets),
    (Claim(6, "The main text's tables repeat the averages of the expanded tables.", rule="every cell is the same"),
     _main_against_expanded),
    *((claims.claim_over_rivals(column), _over_rivals(column)) for column in COLUMNS),
    (claims.OVER_MSP, _over_msp),
    *((claim, _in_order(what)) for what, claim in claims.IN_ORDER.items()),
    (Claim(7, "Nine OoD sets, of which each in-distribution set leaves out only itself.", "nine sets",
           rule="every listed set is in the tables"), _ood_lists),
]  # fmt: skip
