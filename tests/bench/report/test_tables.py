"""Every number of the tables, computed again from the stored scores with scikit-learn and numpy."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from bench.report.small_run import METHODS, SETS, make_run
from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.methods import title_of
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.paper.additions import paper_additions
from normscale.bench.paper.published import ACCURACIES, EXPANDED, paper_rows
from normscale.bench.report.rendering import RENDERERS, latex_text
from normscale.bench.report.runs import ReportedRun, gaps, read_runs
from normscale.bench.report.scoreboard import Scoreboard
from normscale.bench.report.table import Column, ReportTable, Section
from normscale.bench.report.tables import (
    SETTINGS,
    accuracy_table,
    averages_table,
    comparison_table,
    expanded_table,
    metric_title,
    ood_set_table,
    per_set_table,
)
from normscale.metrics import METRICS

SEEDS = (0, 1, 2)
PRINTED = {row[1:5]: row for row in paper_rows() if row.table == EXPANDED}


def ranking(inside: NDArray[Any], outside: NDArray[Any], metric: str) -> float:
    truth, scores = np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside]
    if metric == "auroc":
        return float(roc_auc_score(truth, scores))
    if metric == "aupr_out":
        return float(average_precision_score(truth, scores))
    if metric == "aupr_in":
        return float(average_precision_score(1 - truth, -scores))
    caught = np.sort(outside)[::-1][int(np.ceil(0.95 * len(outside))) - 1]
    return float(np.mean(inside >= caught))


def recomputed(run: RunFolder, metric: str, method: str, ood_set: str, seed: int) -> float:
    _, pair = run.load_cell(seed, ood_set, method)
    if method != "multi_threshold":
        return ranking(pair.id_scores, pair.ood_scores, metric)
    assert pair.id_predicted is not None
    assert pair.ood_predicted is not None
    return float(
        np.mean(
            [
                ranking(pair.id_scores[pair.id_predicted == c], pair.ood_scores[pair.ood_predicted == c], metric)
                for c in np.intersect1d(pair.id_predicted, pair.ood_predicted)
            ]
        )
    )


def read(run: RunFolder) -> ReportedRun:
    (one,) = read_runs([run.path], paper_additions(), resamples=5)
    return one


def rows_of(table: ReportTable | None, section: str) -> dict[str, dict[str, Any]]:
    assert table is not None
    found = next(one for one in table.sections if one.title == section)
    titles = [column.title for column in table.columns]
    return {str(row[0]): dict(zip(titles, row, strict=True)) for row in found.rows}


@pytest.fixture(scope="module")
def one(finished: RunFolder) -> ReportedRun:
    return read(finished)


STATIC = [method for method in METHODS if method not in ("norm_scaling", "multi_threshold")]
GROUPS = {"Static": STATIC, "Streamed": ["norm_scaling"], "Ranked per predicted class": ["multi_threshold"]}


@pytest.mark.parametrize("metric", ["auroc", "aupr_out", "fpr95_out"])
def test_averages_and_both_spreads(finished: RunFolder, one: ReportedRun, metric: str) -> None:
    table = comparison_table(one, "comparison")
    assert [section.title for section in table.sections] == list(SETTINGS.values())
    for group, methods in GROUPS.items():
        rows = rows_of(table, group)
        assert set(rows) == {title_of(method) for method in methods}
        for method in methods:
            row = rows[title_of(method)]
            values = np.array([[recomputed(finished, metric, method, name, seed) for name in SETS] for seed in SEEDS])
            assert row[metric_title(metric)] == pytest.approx(values.mean(), abs=1e-12)
            if metric == "auroc":
                assert row["± over seeds"] == pytest.approx(values.mean(axis=1).std(), abs=1e-12)
                assert row["± over OoD sets"] == pytest.approx(values.mean(axis=0).std(), abs=1e-12)


def test_the_best_comes_first_and_is_bold_within_its_kind(one: ReportedRun) -> None:
    table = comparison_table(one, "comparison")
    for section in table.sections:
        means = [float(row[1] or 0.0) for row in section.rows]
        assert means == sorted(means, reverse=True)
    assert (0, 1) in table.sections[0].best
    assert table.sections[1].best == frozenset()  # the best of one is no news


@pytest.mark.parametrize("metric", ["auroc", "aupr_in", "fpr95_out"])
def test_every_set_and_its_share_of_the_stream(finished: RunFolder, one: ReportedRun, metric: str) -> None:
    table = per_set_table(one, "per_set")
    n_id, n_ood = one.board.n_id(), one.board.n_ood("svhn")
    assert table.columns[1].title == f"svhn ({100 * n_ood / (n_ood + n_id):.0f} % OoD)"
    rows = rows_of(table, f"{metric_title(metric)}, static")
    for method in STATIC:
        expected = [np.mean([recomputed(finished, metric, method, name, seed) for seed in SEEDS]) for name in SETS]
        assert list(rows[title_of(method)].values())[1:] == pytest.approx(expected, abs=1e-12)
    section = next(one for one in table.sections if one.title == f"{metric_title(metric)}, static")
    for place in range(1, len(table.columns)):
        values = [float(row[place] or 0.0) for row in section.rows]
        wanted = (min if metric.startswith("fpr") else max)(values)
        assert {i for i, j in section.best if j == place} == {i for i, value in enumerate(values) if value == wanted}


def test_a_mean_is_shown_with_its_deviation_over_seeds(finished: RunFolder, one: ReportedRun) -> None:
    values = [recomputed(finished, "auroc", "energy", "svhn", seed) for seed in SEEDS]
    text = f"{np.mean(values):.4f} ±{np.std(values):.4f}"
    table = per_set_table(one, "per_set")
    rows = next(
        texts for texts, section in zip(table.texts(), table.sections, strict=True) if "static" in section.title
    )
    assert next(row[1] for row in rows if row[0] == "Energy") == text
    assert any("± their population standard deviation" in note for note in table.notes)
    averages = averages_table([one])
    assert all("±" in row[-1] for row in averages.texts()[0])


def averages_of(one: ReportedRun, metric: str) -> dict[str, dict[str, Any]]:
    """The averages beside the paper's, by method."""
    table = expanded_table(one, "expanded")
    assert table is not None
    (found,) = [section for section in table.sections if section.title == f"{metric_title(metric)}, averages"]
    titles = [column.title for column in table.columns]
    return {str(row[0]): dict(zip(titles, row, strict=True)) for row in found.rows}


def test_ours_stand_beside_the_papers_over_the_same_sets(finished: RunFolder, one: ReportedRun) -> None:
    rows = averages_of(one, "auroc")
    shared = ["svhn", "textures", "uniform"]  # "own set" is not the paper's
    for method in ("msp", "energy", "norm_scaling", "multi_threshold"):
        ours = np.array([[recomputed(finished, "auroc", method, name, seed) for name in shared] for seed in SEEDS])
        theirs = [PRINTED["cifar10", name, method, "auroc"] for name in shared]
        row = rows[title_of(method)]
        assert (row["Ours"], row["Paper"]) == pytest.approx((ours.mean(), np.mean([cell.mean for cell in theirs])))
        # the paper's own ±: the mean over the OoD sets of the standard deviation over seeds
        assert row["± over seeds"] == pytest.approx(ours.std(axis=0).mean(), abs=1e-12)
        assert row["Paper ± over seeds"] == pytest.approx(np.mean([cell.std for cell in theirs]))
        assert row["Ours − paper"] == pytest.approx(round(row["Ours"], 4) - round(row["Paper"], 4))
    assert title_of("norm_scaling_frozen") not in rows


def test_multi_threshold_meets_the_papers_column_in_its_own_positive_class(one: ReportedRun) -> None:
    assert set(averages_of(one, "aupr_in")) == {"Multi-Threshold"}
    assert "Multi-Threshold" not in averages_of(one, "aupr_out")


@pytest.mark.parametrize("metric", ["auroc", "aupr_out", "aupr_in"])
def test_every_set_and_method(finished: RunFolder, one: ReportedRun, metric: str) -> None:
    table = expanded_table(one, "expanded")
    assert table is not None
    section = next(part for part in table.sections if part.title == f"{metric_title(metric)}, every OoD set")
    assert len(section.rows) == len(SETS) * len(METHODS)
    for row in section.rows:
        method = next(name for name in METHODS if title_of(name) == row[0])
        values = [recomputed(finished, metric, method, str(row[1]), seed) for seed in SEEDS]
        n_ood = one.board.n_ood(str(row[1]))
        assert row[2] == n_ood / (n_ood + one.board.n_id())
        assert row[3:5] == pytest.approx((np.mean(values), np.std(values)), abs=1e-12)
        printed = PRINTED.get(("cifar10", str(row[1]), method, metric))
        assert row[5:7] == ((None, None) if printed is None else (printed.mean, printed.std))


def test_accuracy(finished: RunFolder, one: ReportedRun) -> None:
    expected = [finished.outputs(seed, "test").accuracy for seed in SEEDS]
    assert list(one.accuracies.values()) == expected
    table = accuracy_table([one])
    assert table is not None
    printed = ACCURACIES["cifar10"]
    (row,) = table.sections[0].rows
    numbers = (np.mean(expected), np.std(expected), min(expected), max(expected))
    assert row[:2] == ("CIFAR-10", 3)
    assert row[2:6] == pytest.approx(numbers)
    assert row[6:8] == (printed.mean, printed.std)
    assert row[8] == pytest.approx(np.mean(expected) - printed.mean, abs=1e-4)
    assert accuracy_table([one._replace(accuracies={})]) is None


def test_sizes_and_shares_are_shown(one: ReportedRun) -> None:
    n_id = one.board.n_id()
    assert ood_set_table(one, "ood_sets").notes[0].endswith(f" {n_id} rows, in the paper 10,000.")
    rows = {row[0]: row[1:] for row in ood_set_table(one, "ood_sets").sections[0].rows}
    assert rows["svhn"] == (354, 354 / (354 + n_id), 26032, 26032 / 36032, "15 of 15", "")
    assert rows["own set"] == (400, 400 / (400 + n_id), None, None, "15 of 15", "")
    assert rows["lsun"][-2:] == ("0 of 15", "no mirror answered")
    assert rows["places365"][2:] == (36500, 36500 / 46500, "0 of 0", "not measured here")


def test_a_doctored_cell_changes_the_table(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "energy"), sets={"svhn": "unseen_digits"})
    old = rows_of(comparison_table(read(run), "comparison"), "Static")
    msp, energy = (run.load_cell(0, "svhn", method) for method in ("msp", "energy"))
    run.save_cell(msp[0]._replace(metrics=energy[0].metrics), energy[1])
    run.save_cell(energy[0]._replace(metrics=msp[0].metrics), msp[1])
    new = rows_of(comparison_table(read(run), "comparison"), "Static")
    assert old["MSP"]["AUROC ↑"] != old["Energy"]["AUROC ↑"]
    assert old["MSP"]["AUROC ↑"] == new["Energy"]["AUROC ↑"]


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_averages_use_the_largest_block_without_gaps(tmp_path: Path) -> None:
    missing = [(2, "uniform", "energy"), (2, "own set", "energy")]
    run = make_run(tmp_path / "run", methods=("msp", "energy", "norm_scaling"), leave_out=missing)
    one = read(run)
    # either all four sets of two seeds (8) or two sets of three (6)
    assert one.board.block == (("msp", "energy", "norm_scaling"), (0, 1), tuple(SETS))
    table = comparison_table(one, "comparison")
    values = [[recomputed(run, "auroc", "msp", name, seed) for name in SETS] for seed in (0, 1)]
    assert rows_of(table, "Static")["MSP"]["AUROC ↑"] == pytest.approx(np.mean(values))
    assert "2 seeds" in table.notes[0]
    assert "Not finished: 34 of 36 cells are there." in gaps(one)


def test_more_networks_on_fewer_sets_may_be_the_larger_block() -> None:
    def cell(seed: int, ood_set: str) -> Measurement:
        return Measurement(ood_set, "msp", "msp", "MSP", "frozen", {}, {"auroc": 0.5}, 1, 1, seed, in_set="digits")

    cells = [cell(0, name) for name in "abcd"] + [cell(seed, name) for seed in (1, 2) for name in "ab"]
    assert Scoreboard(cells).block == (("msp",), (0, 1, 2), ("a", "b"))  # 6 cells, against 4 of the first network
    assert Scoreboard(cells[:-2]).block == (("msp",), (0,), ("a", "b", "c", "d"))  # 4 and 4: more sets are better
    assert Scoreboard([]).block == ((), (), ())


def test_a_method_with_hardly_a_cell_is_left_out_of_averages(tmp_path: Path) -> None:
    missing = [(seed, name, "energy") for seed in (0, 1) for name in SETS if (seed, name) != (0, "svhn")]
    run = make_run(tmp_path / "run", seeds=(0, 1), methods=("msp", "energy", "norm_scaling"), leave_out=missing)
    one = read(run)
    assert one.board.block == (("msp", "norm_scaling"), (0, 1), tuple(SETS))
    table = comparison_table(one, "comparison")
    assert rows_of(table, "Static")["Energy"]["AUROC ↑"] is None
    assert [row[0] for row in table.sections[0].rows] == ["MSP", "Energy"]  # what has no number comes last
    assert any("because cells are missing: Energy." in note for note in table.notes)


def test_a_method_that_failed_is_not_waited_for(tmp_path: Path) -> None:
    lost = [(seed, name, "energy") for seed in (0, 1) for name in SETS]
    run = make_run(tmp_path / "run", seeds=(0, 1), methods=("msp", "energy"), leave_out=lost)
    for seed in run.plan.seeds:
        run.save_failures(seed, {"energy": "it reads what is not there"})
    one = read(run)
    assert gaps(one) == ["Without Energy: it reads what is not there"]
    rows = [row for row in ood_set_table(one, "ood_sets").sections[0].rows if row[0] in SETS]
    assert {row[-2:] for row in rows} == {("2 of 2", "without Energy")}
    run.cell_path(1, "svhn", "msp").unlink()
    assert "Not finished: 7 of 8 cells are there." in gaps(read(run))


def test_one_seed_and_one_set_have_no_spread_and_a_foreign_set_no_paper(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(4,), sets={"noise": "uniform_noise"}, data="digits", name="digits")
    one = read(run)
    table = comparison_table(one, "comparison")
    titles = [column.title for column in table.columns]
    assert titles[2:4] == ["from", "to"]
    assert titles[:2] + titles[4:] == ["Method", *map(metric_title, METRICS)]  # all: there is no table of single sets
    assert "±" not in RENDERERS["md"](table)
    assert expanded_table(one, "expanded") is None  # every number of it stands in the table of the sets


# -- the three formats -------------------------------------------------------------------------------------------------

ODD = ReportTable(
    "odd_name",
    "A & B_1 <b>",
    [Column("Set"), Column("Ours", "value"), Column("Difference", "difference")],
    [Section("one|two", [("50 % of $x_{1}$ | <i>~^\\#", 0.5, -0.25), ("b", None, None)], frozenset({(0, 1)}))],
    ["a note with 10 % & more"],
)


def test_markdown_escapes_what_would_be_read_as_markup() -> None:
    lines = RENDERERS["md"](ODD).splitlines()
    assert lines[0] == "## A & B\\_1 \\<b\\>"
    assert lines[2] == "### one\\|two"
    assert lines[6] == "| 50 % of $x\\_\\{1\\}$ \\| \\<i\\>~^\\\\# | **0.5000** | −0.2500 |"
    assert lines[7] == "| b | – | – |"
    assert lines[-1] == "* a note with 10 % & more"


def test_latex_escapes_every_special_character() -> None:
    text = RENDERERS["tex"](ODD)
    assert r"\caption{A \& B\_1 \textless{}b\textgreater{}: one|two}" in text
    row = r"50 \% of \$x\_\{1\}\$ | \textless{}i\textgreater{}\textasciitilde{}\textasciicircum{}\textbackslash{}\#"
    assert rf"{row} & \textbf{{0.5000}} & $-$0.2500 \\" in text
    assert r"\begin{tabular}{lrr}" in text
    assert r"\footnotesize a note with 10 \% \& more" in text
    for word in ("toprule", "midrule", "bottomrule"):
        assert text.count(rf"\{word}") == 1
    assert latex_text("±↑↓") == r"$\pm$$\uparrow$$\downarrow$"


def test_csv_keeps_every_digit(one: ReportedRun) -> None:
    table = expanded_table(one, "expanded")
    assert table is not None
    rows = list(csv.DictReader(io.StringIO(RENDERERS["csv"](table))))
    every = [row for row in rows if row["metric"].endswith("every OoD set")]
    assert len(every) == len(METRICS) * len(SETS) * len(METHODS)
    first = every[0]
    assert (first["metric"], first["OoD set"], first["Method"]) == ("AUROC ↑, every OoD set", "svhn", "MSP")
    section = next(one for one in table.sections if one.title == first["metric"])
    assert float(first["Ours"]) == section.rows[0][3]
    assert next(row for row in every if row["OoD set"] == "own set")["Paper"] == ""


def test_intervals_stand_beside_the_averages(one: ReportedRun) -> None:
    assert one.resampled is not None
    row = rows_of(comparison_table(one, "comparison"), "Static")["MSP"]
    assert (row["from"], row["to"]) == one.resampled.intervals["msp"]
    assert row["from"] < row["AUROC ↑"] < row["to"]
