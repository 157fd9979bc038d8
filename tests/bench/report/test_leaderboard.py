"""The leaderboard: averages by hand, what is missing is said, and a page that sorts and filters in a real browser."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.report.doctored_run import AUROCS, doctored_run
from normscale.bench.paper.additions import openood
from normscale.bench.report.published import Additions, OodGroupReference
from normscale.bench.report.runs import read_runs
from normscale.bench.report.table import ReportTable, Value
from normscale.bench.report.tables import averages_table, comparison_table
from normscale.bench.report.writing import report

WHY = "odin reads perturbed_logits, which nobody has."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return doctored_run(Path(tmp_path_factory.mktemp("runs")) / "mine", failures={"odin": WHY}).path


def table_of(*folders: Path, number: int = 0, groups: OodGroupReference | None = None) -> ReportTable:
    known = openood() if groups is None else groups
    (*read,) = read_runs(folders, Additions(groups=known), further=True)
    return comparison_table(read[number], "comparison", known, details=True)


def rows_of(table: ReportTable) -> dict[str, dict[str, Value]]:
    titles = [column.title for column in table.columns]
    return {str(row[0]): dict(zip(titles, row, strict=True)) for section in table.sections for row in section.rows}


def write(folders: list[Path], target: Path) -> Path:
    return report(folders, target, leaderboard=True, figures=False, additions=Additions(groups=openood()))


def test_averages_by_hand(run: Path) -> None:
    table = table_of(run)
    assert [section.title for section in table.sections] == ["Static", "Streamed"]
    assert [row[0] for row in table.sections[0].rows] == ["KNN", "Energy", "ODIN"]  # best first, nothing last
    found = rows_of(table)
    energy, knn = found["Energy"], found["KNN"]
    assert energy["Near AUROC ↑"] == pytest.approx((0.8 + 0.6 + 0.6 + 0.4) / 4)  # cifar100, tinyimagenet; two seeds
    assert energy["Far AUROC ↑"] == pytest.approx((0.9 + 0.7 + 0.7 + 0.5) / 4)  # svhn, places365
    assert energy["AUROC ↑"] == pytest.approx((0.8 + 0.6 + 0.6 + 0.4 + 0.9 + 0.7 + 0.7 + 0.5 + 1.0 + 0.8) / 10)
    assert knn["FPR95, OoD positive ↓"] == pytest.approx(1 - 0.72)
    assert (knn["Published near"], knn["Published far"]) == (0.9064, 0.9296)
    assert found["Norm-Scaling"]["Published near"] is None
    assert knn["Reads"] == "features"


def test_a_detector_that_failed_is_a_dash_with_its_sentence(run: Path, tmp_path: Path) -> None:
    failed = rows_of(table_of(run))["ODIN"]
    assert failed["AUROC ↑"] is failed["Near AUROC ↑"] is None
    assert failed["Remark"] == f"not measured: {WHY}"
    page = write([run], tmp_path)
    text = (page.parent / "tables" / "comparison.md").read_text()
    (line,) = [one for one in text.splitlines() if one.startswith("| ODIN")]
    assert line.split(" | ")[1:3] == ["–", "–"]


def test_weipers_defaults_are_said_to_be_tuned_on_ood_data(tmp_path: Path) -> None:
    folder = doctored_run(tmp_path / "run", {**AUROCS, "weiper": AUROCS["knn"]}).path
    assert "tuned on OoD data" in str(rows_of(table_of(folder))["WeiPer+KLD"]["Remark"])


def test_sets_that_are_missing_are_named(run: Path) -> None:
    text = " ".join(table_of(run).notes)
    assert "Near: cifar100, tinyimagenet." in text
    assert "Far: svhn, places365; not measured: mnist, textures. Groups by OpenOOD v1.5." in text
    assert "compare the order, not the numbers" in text


def test_a_detector_without_all_cells_has_no_average_and_takes_nothing_from_the_others(tmp_path: Path) -> None:
    partial = {**AUROCS, "vim": {"svhn": (0.99, 0.99)}}
    found = rows_of(table_of(doctored_run(tmp_path / "partial", partial).path))
    assert found["ViM"]["AUROC ↑"] is None
    assert found["ViM"]["Remark"] == "not measured: not on every OoD set and network."
    assert found["Energy"]["AUROC ↑"] == pytest.approx(0.7)


def test_groups_that_nobody_has_defined_are_left_out(tmp_path: Path) -> None:
    folder = doctored_run(tmp_path / "other", data="svhn").path
    titles = [column.title for column in table_of(folder).columns]
    assert "Far AUROC ↑" in titles
    assert "Near AUROC ↑" not in titles
    bare = [column.title for column in table_of(folder, groups=OodGroupReference()).columns]
    assert "Far AUROC ↑" not in bare


def test_what_was_kept_of_a_run_is_enough(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "mine"
    kept.mkdir()
    for name in ("settings.json", "results.jsonl", "further.jsonl", "failures.json"):
        shutil.copyfile(run / name, kept / name)
    assert table_of(kept) == table_of(run)


def test_several_runs_have_a_mean_where_all_have_a_number(run: Path, tmp_path: Path) -> None:
    second = doctored_run(
        tmp_path / "second", {"energy": AUROCS["knn"], "norm_scaling": AUROCS["energy"]}, data="cifar100"
    ).path
    page = write([run, second], tmp_path / "out")
    rows = list(csv.DictReader((page.parent / "tables" / "averages.csv").read_text().splitlines()))
    energy, knn = (next(row for row in rows if row["Method"] == name) for name in ("Energy", "KNN"))
    assert [float(energy[one]) for one in ("Mean", "CIFAR-10", "CIFAR-100")] == pytest.approx([0.71, 0.7, 0.72])
    assert (knn["Mean"], knn["CIFAR-100"]) == ("", "")


def test_methods_that_differ_in_a_list_alone_stay_apart(tmp_path: Path) -> None:
    numbers = {"mahalanobis:layers=stage1,features": 0.9, "mahalanobis:layers=stage2,features": 0.6, "msp": 0.7}
    aurocs = {method: {"svhn": (auroc,)} for method, auroc in numbers.items()}
    runs = [doctored_run(tmp_path / name, aurocs, data=name).path for name in ("one", "two")]
    rows = averages_table(read_runs(runs, further=True)).sections[0].rows
    assert rows[0] == ("Mahalanobis, layers stage1 + features", 0.9, 0.9, 0.9)
    assert rows[2] == ("Mahalanobis, layers stage2 + features", 0.6, 0.6, 0.6)


# -- the page in a real browser ---------------------------------------------------------------------------------

STATIC, STREAMED = "#table-comparison_cifar_10-0", "#table-comparison_cifar_10-1"


@pytest.fixture(scope="module")
def address(run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    other = doctored_run(Path(tmp_path_factory.mktemp("runs")) / "other", data="cifar100").path
    return write([run, other], tmp_path_factory.mktemp("page")).resolve().as_uri()


def first_column(page: Any, table: str = STATIC) -> list[str]:
    found: list[str] = page.locator(f"{table} tbody tr:visible > :first-child").all_inner_texts()
    return found


def test_a_click_sorts_and_dashes_stay_last(open_page: Any) -> None:
    page = open_page()
    assert first_column(page)[-1] == "ODIN"
    near = page.locator(f"{STATIC} thead th", has_text="Near AUROC").locator("button")
    near.click()
    assert first_column(page) == ["KNN", "Energy", "ODIN"]
    near.click()
    assert first_column(page) == ["Energy", "KNN", "ODIN"]


def test_the_filter_shows_what_fits_and_everything_again(open_page: Any) -> None:
    page = open_page()
    assert page.locator("output").inner_text() == "7 rows"
    page.locator("input[name=words]").fill("knn")
    assert first_column(page) == ["KNN"]
    assert page.locator("output").inner_text() == "2 of 7 rows"
    assert not page.locator(STREAMED).is_visible()
    page.locator("button[type=reset]").click()
    page.locator("output", has_text="of").wait_for(state="detached")  # the form is empty only after the click
    assert len(first_column(page)) == 3
    page.locator("select[name=statistics]").select_option("streamed")
    assert not page.locator(STATIC).is_visible()
    assert first_column(page, STREAMED) == ["Norm-Scaling"]
    page.locator("button[type=reset]").click()
    page.locator("select[name=reads]").select_option("features")
    assert first_column(page) == ["KNN"]
    page.locator("select[name=network]").select_option("CIFAR-100")
    assert not page.locator("#network-0").is_visible()
    assert first_column(page, "#table-comparison_cifar_100-0") == ["KNN"]
    page.locator("input[name=words]").fill("nothing of this name")
    assert page.locator("output").inner_text() == "0 of 7 rows"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits(open_page: Any, scheme: str) -> None:
    for width in (1300, 390):
        page = open_page(width, scheme)
        page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        cut = page.locator(".scroll").evaluate_all(
            "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.ariaLabel)"
        )
        assert not cut or width == 390, f"columns are cut off: {cut}"
