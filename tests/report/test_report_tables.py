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

from normscale.experiments.measurement import Measurement
from normscale.experiments.methods import title_of
from normscale.experiments.run_folder import RunFolder
from normscale.paper.published import ACCURACIES, paper_results
from normscale.paper.report_additions import _threshold_tables, paper_reference
from normscale.report.reference import BesideReference
from normscale.report.renderers import latex_text, to_csv, to_latex, to_markdown
from normscale.report.scoreboard import Scoreboard
from normscale.report.table import Column, ReportTable, Section
from normscale.report.tables import (
    METRIC_TITLES,
    accuracies_of,
    accuracy_table,
    comparison_table,
    expanded_table,
    ood_set_table,
    per_set_table,
)
from report.small_run import METHODS, SETS, make_run

SEEDS = (0, 1, 2)
PRINTED = {(row.in_set, row.ood_set, row.method, row.metric): row for row in paper_results()}


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


def rows_of(table: ReportTable, metric: str) -> list[dict[str, Any]]:
    section = next(one for one in table.sections if one.title == METRIC_TITLES[metric])
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, row, strict=True)) for row in section.rows]


@pytest.fixture(scope="module")
def board(finished: RunFolder) -> Scoreboard:
    return Scoreboard.of(finished)


@pytest.fixture(scope="module")
def paper(board: Scoreboard) -> BesideReference:
    return BesideReference(board, paper_reference("cifar10"))


@pytest.mark.parametrize("metric", ["auroc", "aupr_out", "fpr95_out"])
def test_averages_and_both_spreads(finished: RunFolder, board: Scoreboard, paper: BesideReference, metric: str) -> None:
    rows = rows_of(comparison_table(board, paper), metric)
    assert [row["Method"] for row in rows] == [title_of(method) for method in METHODS]
    for row, method in zip(rows, METHODS, strict=True):
        values = np.array([[recomputed(finished, metric, method, name, seed) for name in SETS] for seed in SEEDS])
        assert row["Ours"] == pytest.approx(values.mean(), abs=1e-12)
        assert row["± over seeds"] == pytest.approx(values.mean(axis=1).std(), abs=1e-12)
        assert row["± over OoD sets"] == pytest.approx(values.mean(axis=0).std(), abs=1e-12)
        shared = [name for name in SETS if ("cifar10", name, method, metric) in PRINTED]
        if not shared:
            assert row["Paper"] is row["Ours − paper"] is row["Ours, same sets"] is None
            continue
        assert shared == ["svhn", "textures", "uniform"]  # "own set" is not the paper's
        ours = values[:, :3].mean()
        theirs = np.mean([PRINTED["cifar10", name, method, metric].mean for name in shared])
        assert row["Ours, same sets"] == pytest.approx(ours, abs=1e-12)
        assert row["Paper"] == pytest.approx(theirs)
        assert row["Ours − paper"] == pytest.approx(ours - theirs, abs=1e-12)


def test_multi_threshold_meets_the_papers_column_in_its_own_positive_class(
    board: Scoreboard, paper: BesideReference
) -> None:
    (table,) = _threshold_tables(board, paper)
    assert [row["Method"] for row in rows_of(table, "auroc")] == ["MSP", "Multi-Threshold", "Norm-Scaling"]
    outside, inside = (rows_of(table, metric)[1] for metric in ("aupr_out", "aupr_in"))
    assert outside["Paper"] is None
    theirs = [PRINTED["cifar10", name, "multi_threshold", "aupr_in"].mean for name in ("svhn", "textures", "uniform")]
    assert inside["Paper"] == pytest.approx(np.mean(theirs))
    assert any("in-distribution as positive" in note for note in table.notes)


@pytest.mark.parametrize("metric", ["auroc", "aupr_out", "aupr_in", "fpr95_out"])
def test_every_set_and_method(finished: RunFolder, board: Scoreboard, paper: BesideReference, metric: str) -> None:
    table = expanded_table(board, paper)
    assert table is not None
    rows = rows_of(table, metric)
    assert [(row["OoD set"], row["Method"]) for row in rows] == [(s, title_of(m)) for s in SETS for m in METHODS]
    for row, (name, method) in zip(rows, [(s, m) for s in SETS for m in METHODS], strict=True):
        values = [recomputed(finished, metric, method, name, seed) for seed in SEEDS]
        assert row["Ours"] == pytest.approx(np.mean(values), abs=1e-12)
        assert row["± over seeds"] == pytest.approx(np.std(values), abs=1e-12)
        printed = PRINTED.get(("cifar10", name, method, metric))
        assert row["Paper"] == (None if printed is None else printed.mean)
        assert row["Paper ± over seeds"] == (None if printed is None else printed.std)
        if printed is not None:
            assert row["Ours − paper"] == pytest.approx(np.mean(values) - printed.mean)


def test_a_glance_at_every_set_marks_the_best_single_ranking(finished: RunFolder, board: Scoreboard) -> None:
    table = per_set_table(board)
    for metric, section in zip(("auroc", "aupr_out", "fpr95_out"), table.sections, strict=True):
        assert [row[0] for row in section.rows] == [title_of(method) for method in METHODS]
        for j, name in enumerate(SETS, 1):
            values = [np.mean([recomputed(finished, metric, m, name, s) for s in SEEDS]) for m in METHODS]
            assert table.columns[j].title == name
            assert [row[j] for row in section.rows] == [pytest.approx(value) for value in values]
            ranked = {i: value for i, value in enumerate(values) if METHODS[i] != "multi_threshold"}
            best = (min if metric == "fpr95_out" else max)(ranked, key=lambda i: ranked[i])
            assert {i for i, column in section.best if column == j} == {best}


def test_the_best_average_is_bold_and_never_multi_threshold(board: Scoreboard, paper: BesideReference) -> None:
    for section in comparison_table(board, paper).sections:
        ((place, column),) = section.best
        values = {row[0]: row[1] for row in section.rows if row[0] != "Multi-Threshold"}
        wanted = (min if "↓" in section.title else max)(values, key=lambda name: values[name])  # type: ignore[return-value,arg-type]
        assert column == 1
        assert section.rows[place][0] == wanted


def test_accuracy(finished: RunFolder) -> None:
    accuracies = accuracies_of(finished)
    expected = [finished.outputs(seed, "test").accuracy for seed in SEEDS]
    assert list(accuracies.values()) == expected
    table = accuracy_table(accuracies, "cifar10", paper_reference("cifar10"))
    assert table is not None
    *single, mean = table.sections[0].rows
    assert [row[:2] for row in single] == [(f"seed {seed}", value) for seed, value in zip(SEEDS, expected, strict=True)]
    printed = ACCURACIES["cifar10"]
    assert mean[0] == "mean of 3 networks"
    assert mean[3:5] == (printed.mean, printed.std)
    numbers = (np.mean(expected), np.std(expected), np.mean(expected) - printed.mean)
    assert (mean[1], mean[2], mean[5]) == pytest.approx(numbers)
    assert accuracy_table({}, "cifar10", paper_reference("cifar10")) is None
    alone = accuracy_table({0: 0.5}, "digits")
    assert alone is not None
    assert alone.sections[0].rows == [("seed 0", 0.5)]  # and not once more as the mean of one


def test_sizes_are_told(finished: RunFolder, board: Scoreboard, paper: BesideReference) -> None:
    notes = " ".join(comparison_table(board, paper).notes)
    assert "svhn 354 (paper 26,032), textures 400 (paper 5,640), uniform 400 (paper 10,000)" in notes
    rows = {row[0]: row[1:] for row in ood_set_table(finished, board, paper).sections[0].rows}
    assert rows["svhn"] == (354, 26032, "15 of 15", "")
    assert rows["own set"] == (400, None, "15 of 15", "")
    assert rows["lsun"] == (None, None, "0 of 15", "no mirror answered")


def test_a_doctored_cell_changes_the_table(finished: RunFolder, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "energy"), sets={"svhn": "unseen_digits"})
    before = Scoreboard.of(run)
    msp, energy = (run.load_cell(0, "svhn", method) for method in ("msp", "energy"))
    run.save_cell(msp[0]._replace(metrics=energy[0].metrics), energy[1])
    run.save_cell(energy[0]._replace(metrics=msp[0].metrics), msp[1])
    after = Scoreboard.of(run)
    old, new = (
        comparison_table(board, BesideReference(board, paper_reference("cifar10"))).sections[0].rows
        for board in (before, after)
    )
    assert old[0][1] != old[1][1]
    assert (old[0][1], old[1][1]) == (new[1][1], new[0][1])


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_averages_use_the_largest_block_without_gaps(tmp_path: Path) -> None:
    gaps = [(2, "uniform", "energy"), (2, "own set", "energy")]
    run = make_run(tmp_path / "run", methods=("msp", "energy", "norm_scaling"), leave_out=gaps)
    board = Scoreboard.of(run)
    # either all four sets of two seeds (8) or two sets of three (6)
    assert board.block == (("msp", "energy", "norm_scaling"), (0, 1), tuple(SETS))
    table = comparison_table(board, BesideReference(board, paper_reference("cifar10")))
    values = [[recomputed(run, "auroc", "msp", name, seed) for name in SETS] for seed in (0, 1)]
    assert rows_of(table, "auroc")[0]["Ours"] == pytest.approx(np.mean(values))
    assert "2 seeds (0, 1)" in table.notes[0]
    expanded = expanded_table(board, BesideReference(board, paper_reference("cifar10")))
    assert expanded is not None
    mean = next(r for r in rows_of(expanded, "auroc") if (r["OoD set"], r["Method"]) == ("uniform", "Energy"))
    assert mean["Ours"] == pytest.approx(np.mean([recomputed(run, "auroc", "energy", "uniform", s) for s in (0, 1)]))
    assert any("Energy on uniform (2 of 3)" in note for note in expanded.notes)


def test_more_networks_on_fewer_sets_may_be_the_larger_block() -> None:
    def cell(seed: int, ood_set: str) -> Measurement:
        return Measurement(ood_set, "msp", "msp", "MSP", "frozen", {}, {"auroc": 0.5}, 1, 1, seed, in_set="digits")

    cells = [cell(0, name) for name in "abcd"] + [cell(seed, name) for seed in (1, 2) for name in "ab"]
    assert Scoreboard(cells).block == (("msp",), (0, 1, 2), ("a", "b"))  # 6 cells, against 4 of the first network
    assert Scoreboard(cells[:-2]).block == (("msp",), (0,), ("a", "b", "c", "d"))  # 4 and 4: more sets are better
    assert Scoreboard([]).block == ((), (), ())


def test_a_method_with_hardly_a_cell_is_left_out_of_averages(tmp_path: Path) -> None:
    gaps = [(seed, name, "energy") for seed in (0, 1) for name in SETS if (seed, name) != (0, "svhn")]
    run = make_run(tmp_path / "run", seeds=(0, 1), methods=("msp", "energy", "norm_scaling"), leave_out=gaps)
    board = Scoreboard.of(run)
    assert board.block == (("msp", "norm_scaling"), (0, 1), tuple(SETS))
    table = comparison_table(board, BesideReference(board, paper_reference("cifar10")))
    assert [row["Method"] for row in rows_of(table, "auroc")] == ["MSP", "Norm-Scaling"]
    assert any("Left out, because too few of their cells are finished: Energy." in note for note in table.notes)
    assert board.average("auroc", "energy") is None


def test_one_seed_and_one_set_have_no_spread_and_a_foreign_set_no_paper(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(4,), sets={"noise": "uniform_noise"}, data="digits")
    board = Scoreboard.of(run)
    paper = BesideReference(board, paper_reference("digits"))
    table = comparison_table(board, paper)
    assert [column.title for column in table.columns] == ["Method", "Mean"]  # no column "Ours" without a "theirs"
    assert {len(row) for section in table.sections for row in section.rows} == {2}
    assert "±" not in to_markdown(table)
    assert expanded_table(board, paper) is None  # every number of it stands in the table of the sets


def test_with_one_network_and_a_paper_no_column_is_empty(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), sets={"svhn": "unseen_digits", "uniform": "uniform_noise"})
    board = Scoreboard.of(run)
    paper = BesideReference(board, paper_reference("cifar10"))
    averages, expanded = comparison_table(board, paper), expanded_table(board, paper)
    assert expanded is not None
    accuracy = accuracy_table(accuracies_of(run), "cifar10", paper_reference("cifar10"))
    assert accuracy is not None
    titles = [column.title for column in averages.columns]
    assert titles == ["Method", "Ours", "± over OoD sets", "Paper", "Ours − paper"]
    for table in (averages, expanded, accuracy):
        for j, column in enumerate(table.columns):
            assert any(row[j] is not None for section in table.sections for row in section.rows), column.title
        for section, rows in zip(table.sections, table.shown(), strict=True):
            for row, shown in zip(section.rows, rows, strict=True):
                assert len(row) == len(table.columns)
                if row[-1] is not None and section.title.startswith("AUROC"):
                    ours, theirs = (
                        (float(shown[titles.index(one)]) for one in ("Ours", "Paper"))
                        if (table is averages)
                        else (float(shown[2]), float(shown[3]))
                    )
                    assert shown[-1] == f"{ours - theirs:+.4f}".replace("-", "−")


# -- the three formats -------------------------------------------------------------------------------------------------

ODD = ReportTable(
    "odd_name",
    "A & B_1 <b>",
    [Column("Set"), Column("Ours", "value"), Column("Difference", "difference")],
    [Section("one|two", [("50 % of $x_{1}$ | <i>~^\\#", 0.5, -0.25), ("b", None, None)], frozenset({(0, 1)}))],
    ["a note with 10 % & more"],
)


def test_markdown_escapes_what_would_be_read_as_markup() -> None:
    lines = to_markdown(ODD).splitlines()
    assert lines[0] == "## A & B\\_1 \\<b\\>"
    assert lines[2] == "### one\\|two"
    assert lines[6] == "| 50 % of $x\\_\\{1\\}$ \\| \\<i\\>~^\\\\# | **0.5000** | −0.2500 |"
    assert lines[7] == "| b | – | – |"
    assert lines[-1] == "* a note with 10 % & more"


def test_latex_escapes_every_special_character() -> None:
    text = to_latex(ODD)
    assert r"\caption{A \& B\_1 \textless{}b\textgreater{}: one|two}" in text
    row = r"50 \% of \$x\_\{1\}\$ | \textless{}i\textgreater{}\textasciitilde{}\textasciicircum{}\textbackslash{}\#"
    assert rf"{row} & \textbf{{0.5000}} & $-$0.2500 \\" in text
    assert r"\begin{tabular}{lrr}" in text
    assert r"\footnotesize a note with 10 \% \& more" in text
    for word in ("toprule", "midrule", "bottomrule"):
        assert text.count(rf"\{word}") == 1
    assert latex_text("±↑↓") == r"$\pm$$\uparrow$$\downarrow$"


def test_csv_keeps_every_digit(finished: RunFolder, board: Scoreboard, paper: BesideReference) -> None:
    table = expanded_table(board, paper)
    assert table is not None
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(rows) == 4 * len(SETS) * len(METHODS)
    first = rows[0]
    assert (first["metric"], first["OoD set"], first["Method"]) == ("AUROC ↑", "svhn", "MSP")
    assert float(first["Ours"]) == table.sections[0].rows[0][2]
    assert next(row for row in rows if row["OoD set"] == "own set")["Paper"] == ""
