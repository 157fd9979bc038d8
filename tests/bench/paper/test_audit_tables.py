"""What follows from the paper's tables, against the files themselves in plain Python, and on doctored tables."""

from __future__ import annotations

import csv
import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscale.bench.paper import published as paper
from normscale.bench.paper.audit import DIFFERS, HOLDS, UNCHECKED, Claim, audit_tables, summary
from normscale.bench.paper.audit.tables import agrees, may_be
from normscale.bench.paper.published import EXPANDED, PaperRow

FOLDER = Path(paper.__file__).parent / "csv"
SETS = ("CIFAR-10", "CIFAR-100", "SVHN", "TinyImageNet")
APPENDIX = [row for row in paper.paper_rows() if row.table == EXPANDED]


def lines(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))


def find(claim: str, findings: Iterable[Claim]) -> Claim:
    found = [finding for finding in findings if claim in finding.claim]
    assert len(found) == 1, [finding.claim for finding in found]
    return found[0]


def doctored(change: Callable[[PaperRow], PaperRow]) -> list[Claim]:
    return audit_tables(change(row) if row.table == EXPANDED else row for row in paper.paper_rows())


def doctored_main(change: Callable[[PaperRow], PaperRow]) -> list[Claim]:
    return audit_tables(row if row.table == EXPANDED else change(row) for row in paper.paper_rows())


def main_name(row: PaperRow) -> tuple[str, ...]:
    return row.table, row.in_set, row.method, row.metric


OVER_OOD = "The averages over OoD sets"
OVER_IN = "The averages over the four"
REPEATED = "The main text's tables repeat"
FPR_GAIN = "reduction in FPR95"
OVER_MSP = "over plain MSP"
ACROSS = "across the board"
ORDER = "plain MSP, then Multi-Threshold"
POSITIVE = "One AUPR column"
SEEDS = "standard deviation over five seeds"
LAST_ROW = "comparison's last row"
LISTS = "Nine OoD sets"
DEPLOYED = "picture of deployment"


def test_every_point_that_the_tables_can_answer_is_there() -> None:
    findings = audit_tables()
    assert {finding.point for finding in findings} == {2, 4, 5, 6, 7}
    assert all(finding.verdict in (HOLDS, DIFFERS) for finding in findings)
    assert {finding.claim: finding.verdict for finding in findings if finding.verdict == HOLDS}.keys() == {
        find(claim, findings).claim for claim in (OVER_OOD, "in AUROC over previous", "in AUPR over previous", OVER_MSP)
    }


def test_all_averages_over_ood_sets_follow_from_their_rows() -> None:
    rows = defaultdict(list)
    printed = {}
    for line in lines("appendix_results.csv"):
        key = line["in_dataset"], line["method"], line["metric"]
        if line["ood_dataset"] == "Average":
            printed[key] = Decimal(line["mean"])
        else:
            rows[key].append(Decimal(line["mean"]))
    off = {key: abs(printed[key] - sum(values, Decimal(0)) / len(values)) for key, values in rows.items()}
    exact = sum(distance <= Decimal("0.00005") for distance in off.values())
    assert len(off) == 72
    assert all(distance <= Decimal("0.0001") for distance in off.values())
    finding = find(OVER_OOD, audit_tables())
    assert finding.verdict == HOLDS
    assert f"72 of 72 agree with their rows ({exact} to the last digit, {72 - exact} within" in finding.recomputed


def test_a_changed_row_changes_the_verdict_on_its_average() -> None:
    wanted = ("svhn", "lsun", "odin", "auroc")
    moved = doctored(lambda row: row._replace(mean=row.mean + 0.01) if row[1:5] == wanted else row)
    finding = find(OVER_OOD, moved)
    assert finding.verdict == DIFFERS
    assert finding.recomputed.startswith("71 of 72")
    (detail,) = finding.details
    assert (detail["in_set"], detail["method"], detail["column"], detail["printed"]) == (
        "svhn",
        "ODIN",
        "AUROC",
        0.8359,
    )
    last_digit = doctored(lambda row: row._replace(mean=row.mean + 0.0001) if row[1:5] == wanted else row)
    assert find(OVER_OOD, last_digit).verdict == HOLDS, "a seventh of a unit is within rounding"


def test_one_average_over_in_sets_does_not_follow() -> None:
    rows = [r for r in lines("main_tables.csv") if r["table"] == "comparison"]
    wrong = []
    for method, metric in itertools.product({r["method"] for r in rows}, ("AUROC", "AUPR", "FPR95")):
        here = {r["in_dataset"]: Decimal(r["mean"]) for r in rows if (r["method"], r["metric"]) == (method, metric)}
        mean = sum((here[name] for name in SETS), Decimal(0)) / 4
        if abs(mean - here["Average"]) > Decimal("0.0001"):
            wrong.append((method, metric, here["Average"], mean))
    assert wrong == [("Norm-Scaling", "FPR95", Decimal("0.3578"), Decimal("0.346750"))]
    finding = find(OVER_IN, audit_tables())
    assert finding.verdict == DIFFERS
    assert "14 of 15" in finding.recomputed
    assert "Norm-Scaling FPR95 0.3578, rows 0.3468" in finding.recomputed


def test_the_other_row_that_would_explain_it_is_the_only_one() -> None:
    """Every four-digit value in place of each of the four rows."""
    four = [0.2160, 0.3305, 0.3395, 0.5010]
    found = []
    for i, name in enumerate(SETS):
        for units in range(10001):
            rows = [*four[:i], units / 10000, *four[i + 1 :]]
            if abs(sum(rows) / 4 - 0.3578) <= 0.5000001e-4 and abs(statistics.stdev(rows) - 0.1019) <= 0.5000001e-4:
                found.append((name, units / 10000))
    assert {name for name, _ in found} == {"CIFAR-10"}
    (detail,) = find(OVER_IN, audit_tables()).details
    assert detail["explained_by"] == f"{found[0][1]:.4f} instead of 0.2160 on CIFAR-10"


def test_the_corrected_average_is_accepted_and_moves_the_headline() -> None:
    def correct(row: PaperRow) -> PaperRow:
        same = main_name(row)[1:] == ("average", "norm_scaling", "fpr95_out")
        return row._replace(mean=0.3468) if same else row

    findings = doctored_main(correct)
    assert find(OVER_IN, findings).verdict == HOLDS
    gain = find(FPR_GAIN, findings)
    assert gain.verdict == DIFFERS
    assert gain.recomputed.startswith("-26.04 %")
    assert gain.recomputed.endswith("-33.19 % is given by no pair of its numbers")


def test_the_headline_compares_an_average_with_one_set() -> None:
    table = {
        (r["in_dataset"], r["method"], r["metric"]): float(r["mean"])
        for r in lines("main_tables.csv")
        if r["table"] == "comparison"
    }
    ours, rivals = table["Average", "Norm-Scaling", "FPR95"], ("MSP", "ODIN", "Mahalanobis", "Energy")
    assert min(rivals, key=lambda m: table["Average", m, "FPR95"]) == "Mahalanobis"
    finding = find(FPR_GAIN, audit_tables())
    assert finding.verdict == DIFFERS
    assert finding.recomputed.startswith(f"{100 * (ours / table['Average', 'Mahalanobis', 'FPR95'] - 1):+.2f} %")
    summed = sum(table[name, "Norm-Scaling", "FPR95"] for name in SETS) / 4
    assert f"{100 * (summed / table['Average', 'Mahalanobis', 'FPR95'] - 1):+.2f} % with" in finding.recomputed
    assert finding.recomputed.endswith(
        "-33.19 % is the average 0.3578 against Mahalanobis on TinyImageNet alone, "
        f"{table['TinyImageNet', 'Mahalanobis', 'FPR95']:.4f}"
    )


@pytest.mark.parametrize(("column", "metric"), [("AUROC", "auroc"), ("AUPR", "aupr_out")])
def test_a_gain_falls_with_the_rival_that_it_was_over(column: str, metric: str) -> None:
    assert find(f"in {column} over previous", audit_tables()).verdict == HOLDS

    def stronger(row: PaperRow) -> PaperRow:
        same = (row.table, row.in_set, row.method, row.metric) == ("comparison", "average", "energy", metric)
        return row._replace(mean=0.83) if same else row

    finding = find(f"in {column} over previous", doctored_main(stronger))
    assert finding.verdict == DIFFERS
    assert "the best average, Energy's 0.8300" in finding.recomputed


def test_the_gains_over_msp_are_means_of_ratios() -> None:
    table = {
        (r["in_dataset"], r["method"], r["metric"]): float(r["mean"])
        for r in lines("main_tables.csv")
        if r["table"] == "norm_scaling_vs_thresholds"
    }
    finding = find(OVER_MSP, audit_tables())
    assert finding.verdict == HOLDS
    for detail, metric in zip(finding.details, ("AUROC", "AUPR", "FPR95"), strict=True):
        ratios = [table[s, "Norm-Scaling", metric] / table[s, "MSP", metric] - 1 for s in SETS]
        whole = sum(table[s, "Norm-Scaling", metric] for s in SETS) / sum(table[s, "MSP", metric] for s in SETS) - 1
        assert detail["mean_of_ratios"] == pytest.approx(sum(ratios) / 4, abs=1e-6)
        assert detail["ratio_of_means"] == pytest.approx(whole, abs=1e-6)
        assert round(sum(ratios) / 4, 2) == detail["claimed"]
    halved = doctored_main(lambda row: row._replace(mean=row.mean / 2) if row.method == "norm_scaling" else row)
    assert find(OVER_MSP, halved).verdict == DIFFERS


def test_norm_scaling_is_worse_in_two_cells_not_one() -> None:
    finding = find(ACROSS, audit_tables())
    assert finding.verdict == DIFFERS
    assert [(d["in_set"], d["column"]) for d in finding.details] == [("svhn", "AUROC"), ("svhn", "FPR95")]
    fixed = doctored_main(
        lambda row: row._replace(mean=0.2) if main_name(row)[1:] == ("svhn", "norm_scaling", "fpr95_out") else row
    )
    assert find(ACROSS, fixed).verdict == HOLDS
    nowhere = doctored_main(
        lambda row: row._replace(mean=0.9) if main_name(row)[1:] == ("svhn", "msp", "auroc") else row
    )
    assert [d["column"] for d in find(ACROSS, nowhere).details] == ["FPR95"]
    assert find(ACROSS, nowhere).verdict == DIFFERS


def test_multi_threshold_is_not_always_between() -> None:
    finding = find(ORDER, audit_tables())
    assert finding.verdict == DIFFERS
    assert [(d["in_set"], d["column"]) for d in finding.details] == [("cifar100", "FPR95"), ("tinyimagenet", "FPR95")]

    def between(row: PaperRow) -> PaperRow:
        same = row.method == "multi_threshold" and row.metric == "fpr95_out" and row.in_set != "svhn"
        return row._replace(mean=0.58) if same else row

    # 0.58 lies between norm-scaling and MSP on all three sets
    assert find(ORDER, doctored_main(between)).verdict == HOLDS


def test_one_cell_of_the_main_text_is_not_the_appendix() -> None:
    finding = find(REPEATED, audit_tables())
    assert finding.verdict == DIFFERS
    (detail,) = finding.details
    assert detail == {
        "table": "comparison",
        "in_set": "tinyimagenet",
        "method": "MSP",
        "column": "AUROC",
        "main": "0.5511 ± 0.0320",
        "expanded": "0.5510 ± 0.1104",
    }
    wanted = ("comparison", "tinyimagenet", "msp", "auroc")
    fixed = doctored_main(lambda row: row._replace(mean=0.5510, std=0.1104) if main_name(row) == wanted else row)
    assert find(REPEATED, fixed).verdict == HOLDS
    assert "105 of 105" in find(REPEATED, fixed).recomputed
    only_mean = doctored_main(lambda row: row._replace(mean=0.5510) if main_name(row) == wanted else row)
    assert find(REPEATED, only_mean).verdict == DIFFERS, "the ± must be the same too"


def test_only_multi_threshold_falls_as_the_ood_set_grows() -> None:
    sizes = {
        "LSUN": 3000,
        "Textures": 5640,
        "CIFAR-100": 10000,
        "TinyImageNet": 10000,
        "SVHN": 26032,
        "Places365": 36500,
    }
    finding = find(POSITIVE, audit_tables())
    for detail in finding.details:
        rises = falls = 0
        cells = [r for r in lines("appendix_results.csv") if r["method"] == detail["method"] and r["metric"] == "AUPR"]
        for name in SETS:
            here = [
                (sizes[r["ood_dataset"]], float(r["mean"]))
                for r in cells
                if r["in_dataset"] == name and r["ood_dataset"] in sizes
            ]
            for (n, a), (m, b) in itertools.product(here, here):
                if n < m:
                    rises, falls = rises + (a < b), falls + (a > b)
        assert (detail["rises_with_size"], detail["falls_with_size"]) == (rises, falls)
    inside = [d["method"] for d in finding.details if d["positive"] == "in-distribution"]
    assert inside == ["Multi-Threshold"]
    assert finding.verdict == DIFFERS
    assert all(
        d["against_ood"] > d["against_id"] if d["method"] in inside else d["against_ood"] < d["against_id"]
        for d in finding.details
    ), "an AUPR below chance with an AUROC above it speaks against a reading"


def test_an_aupr_that_rises_for_all_is_one_column() -> None:
    msp = {row[1:3]: row.mean for row in APPENDIX if row[3:5] == ("msp", "aupr_out")}
    findings = doctored(lambda row: row._replace(mean=msp[row[1:3]]) if row.metric == "aupr_in" else row)
    finding = find(POSITIVE, findings)
    assert finding.verdict == HOLDS
    assert {detail["positive"] for detail in finding.details} == {"OoD"}


def test_two_kinds_of_spread() -> None:
    finding = find(SEEDS, audit_tables())
    assert finding.verdict == DIFFERS
    for detail in finding.details:
        by_sets = by_seeds = 0
        for name, metric in itertools.product(SETS, ("AUROC", "AUPR", "FPR95")):
            key = (name, detail["method"], metric)
            cells = [r for r in lines("appendix_results.csv") if (r["in_dataset"], r["method"], r["metric"]) == key]
            printed = float(next(r["std"] for r in cells if r["ood_dataset"] == "Average"))
            means = [float(r["mean"]) for r in cells if r["ood_dataset"] != "Average"]
            seeds = [float(r["std"]) for r in cells if r["ood_dataset"] != "Average"]
            centre = sum(means) / len(means)
            spread = (sum((m - centre) ** 2 for m in means) / len(means)) ** 0.5
            by_sets += abs(spread - printed) <= 1.000001e-4
            by_seeds += abs(sum(seeds) / len(seeds) - printed) <= 1.000001e-4
        assert (detail["averages"], detail["between_sets"], detail["seed_deviations"]) == (12, by_sets, by_seeds)
        expected = (0, 12) if detail["method"] in ("Multi-Threshold", "Norm-Scaling") else (12, 0)
        assert (by_sets, by_seeds) == expected


def test_one_kind_of_spread_for_all_holds_only_if_it_is_over_seeds() -> None:
    cells = defaultdict(list)
    for row in APPENDIX:
        if row.ood_set != "average":
            cells[row.in_set, row.method, row.metric].append(row)

    def seeds(row: PaperRow) -> PaperRow:
        here = cells.get((row.in_set, row.method, row.metric))
        return row._replace(std=statistics.fmean(r.std for r in here)) if here and row.ood_set == "average" else row

    def sets(row: PaperRow) -> PaperRow:
        here = cells.get((row.in_set, row.method, row.metric))
        return row._replace(std=statistics.pstdev(r.mean for r in here)) if here and row.ood_set == "average" else row

    assert find(SEEDS, doctored(seeds)).verdict == HOLDS
    assert find(SEEDS, doctored(sets)).verdict == DIFFERS
    neither = find(SEEDS, doctored(lambda row: row._replace(std=0.5) if row.ood_set == "average" else row))
    assert neither.verdict == DIFFERS
    assert neither.recomputed.startswith("neither throughout: MSP")


def test_the_last_rows_spread() -> None:
    finding = find(LAST_ROW, audit_tables())
    assert finding.verdict == DIFFERS
    readings = {(d["method"], d["column"]): d["reading"] for d in finding.details}
    for method in ("MSP", "ODIN", "Mahalanobis", "Energy"):
        for metric in ("AUROC", "AUPR", "FPR95"):
            every = [
                float(r["mean"])
                for r in lines("appendix_results.csv")
                if r["ood_dataset"] != "Average" and (r["method"], r["metric"]) == (method, metric)
            ]
            printed = next(
                float(r["std"])
                for r in lines("main_tables.csv")
                if (r["in_dataset"], r["method"], r["metric"]) == ("Average", method, metric)
            )
            centre = sum(every) / 28
            assert (sum((m - centre) ** 2 for m in every) / 28) ** 0.5 == pytest.approx(printed, abs=1.000001e-4)
            assert readings[method, metric] == "population deviation over all 28 pairs of sets"
    assert (
        readings["Norm-Scaling", "AUROC"] == readings["Norm-Scaling", "AUPR"] == "sample deviation of the four averages"
    )
    assert readings["Norm-Scaling", "FPR95"] == "no reading fits"


def test_the_ood_lists() -> None:
    finding = find(LISTS, audit_tables())
    assert finding.verdict == DIFFERS
    assert finding.recomputed == "CIFAR-10 never; CIFAR-100 only for SVHN and TinyImageNet"
    model = next(row for row in APPENDIX if row[3:5] == ("norm_scaling", "auroc"))
    pairs = [("cifar10", "cifar100"), ("cifar100", "cifar10"), ("svhn", "cifar10"), ("tinyimagenet", "cifar10")]
    more = [model._replace(in_set=a, ood_set=b) for a, b in pairs]
    assert find(LISTS, audit_tables([*paper.paper_rows(), *more])).verdict == HOLDS


def test_the_shares_of_the_streams() -> None:
    finding = find(DEPLOYED, audit_tables())
    shares = {(d["in_set"], d["which"]): (d["ood_set"], d["share"]) for d in finding.details}
    assert shares["cifar10", "lowest"] == ("lsun", round(3000 / 13000, 4))
    assert shares["cifar10", "highest"] == ("places365", round(36500 / 46500, 4))
    assert shares["svhn", "lowest"] == ("lsun", round(3000 / 29032, 4))
    assert finding.verdict == DIFFERS


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_rounding_never_makes_a_true_average_or_deviation_disagree(values: list[float]) -> None:
    rounded = [round(value, 4) for value in values]
    assert agrees(round(statistics.fmean(values), 4), statistics.fmean(rounded))
    assert agrees(round(statistics.pstdev(values), 4), statistics.pstdev(rounded))


@given(st.floats(0.1, 1), st.floats(0.1, 1))
def test_rounding_never_makes_a_true_gain_impossible(ours: float, theirs: float) -> None:
    assert may_be(round(ours / theirs - 1, 4), round(ours, 4), round(theirs, 4))
    assert not may_be(ours / theirs - 1 + 0.05, round(ours, 4), round(theirs, 4))


def test_the_summary_counts() -> None:
    one = Claim(1, "", verdict=HOLDS)
    assert summary([one]) == "Of 1 claim checked, 1 holds and 0 differ."
    many = [one, one, one._replace(verdict=DIFFERS), one._replace(verdict=UNCHECKED)]
    assert summary(many) == "Of 3 claims checked, 2 hold and 1 differs; 1 more cannot be checked on these outputs."
