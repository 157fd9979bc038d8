"""The leaderboard: averages by hand, what is missing is said, and a page that sorts and filters in a real browser."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.experiments.stress_rows import stress_row
from normscale.bench.experiments.stress import KINDS
from normscale.bench.experiments.stress_result import StressResult
from normscale.bench.paper.additions import openood
from normscale.bench.report.leaderboard import leaderboard
from normscale.bench.report.published import OodGroupReference
from normscale.detectors.base import Setting

WHY = "odin reads perturbed_logits, which nobody has."
SETS = ("cifar100", "tinyimagenet", "svhn", "places365", "gaussian")
AUROCS = {
    "energy": (0.7, 0.5, 0.8, 0.6, 0.9),
    "knn": (0.9, 0.7, 0.8, 0.6, 0.6),
    "norm_scaling_frozen": (0.6, 0.6, 0.6, 0.6, 0.6),
    "norm_scaling": (0.9, 0.9, 0.9, 0.9, 0.9),
    "default_frozen": (0.8, 0.8, 0.8, 0.8, 0.8),
    "default": (0.896, 0.896, 0.896, 0.896, 0.896),
}
RUNNING = ("norm_scaling", "default")


def result(aurocs: Mapping[str, tuple[float, ...]] = AUROCS, in_set: str = "cifar10", **settings: Any) -> StressResult:
    """All rows as written down; in streams, a method that runs falls by .1 in bursts and .4 under one class."""
    rows = []
    for method, values in aurocs.items():
        kind = Setting.STREAM if method in RUNNING else Setting.FROZEN
        for name, auroc in zip(SETS, values, strict=False):
            for title, stream in {"": None, **KINDS}.items():
                lost = {"Bursts": 0.1, "One class 80 %": 0.4}.get(title, 0.0) * (method == "norm_scaling")
                row = stress_row(method, auroc - lost, 1.0 - auroc, stream or KINDS["50 % OoD"], name)
                rows.append(row._replace(stream=stream, setting=kind.value))
    about = {"network": f"{in_set}-net", "in_set": in_set, "left_out": {"odin": WHY}, "n_train": 10, "n_id": 20}
    return StressResult(rows, {**about, "ood_sets": dict.fromkeys(SETS, 30), **settings})


def written(results: list[StressResult], folder: Path, groups: OodGroupReference | None = None) -> Path:
    return leaderboard(results, folder, openood() if groups is None else groups)


def rows_of(page: Path, name: str) -> dict[str, dict[str, str]]:
    text = (page.parent / "tables" / f"{name}.csv").read_text()
    return {row["Method"]: row for row in csv.DictReader(text.splitlines())}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written([result(), result(in_set="cifar100")], tmp_path_factory.mktemp("leaderboard"))


def test_averages_by_hand(page: Path) -> None:
    found = rows_of(page, "network_cifar_10")
    assert list(found) == ["KNN", "Energy", "ODIN", "Default", "Norm-Scaling"], "by section, best first, nothing last"
    energy, norm_scaling = found["Energy"], found["Norm-Scaling"]
    assert float(energy["As fitted ↑"]) == pytest.approx(0.7)
    assert float(energy["Near ↑"]) == pytest.approx(0.6)  # cifar100, tinyimagenet
    assert float(energy["Far ↑"]) == pytest.approx(0.7)  # svhn, places365
    assert float(energy["FPR95 ↓"]) == pytest.approx(0.3)
    assert float(norm_scaling["As fitted ↑"]) == pytest.approx(0.6)
    assert float(norm_scaling["10 % OoD ↑"]) == pytest.approx(0.9)
    assert float(norm_scaling["One class 80 % ↑"]) == pytest.approx(0.5)
    assert float(norm_scaling["All streams ↑"]) == pytest.approx((3 * 0.9 + 0.8 + 0.5) / 5)
    assert (found["KNN"]["Published near"], found["KNN"]["Published far"]) == ("0.9064", "0.9296")
    assert norm_scaling["Published near"] == ""
    assert (found["KNN"]["Reads"], found["Default"]["Remark"]) == ("features", "default")


def test_a_detector_that_failed_is_a_dash_with_its_sentence(page: Path) -> None:
    failed = rows_of(page, "network_cifar_10")["ODIN"]
    assert failed["As fitted ↑"] == failed["All streams ↑"] == ""
    assert failed["Remark"] == f"not measured: {WHY}"
    text = (page.parent / "tables" / "network_cifar_10.md").read_text()
    (line,) = [one for one in text.splitlines() if one.startswith("| ODIN")]
    assert line.split(" | ")[1:3] == ["–", "–"]


def test_weipers_defaults_are_said_to_be_tuned_on_ood_data(tmp_path: Path) -> None:
    page = written([result({**AUROCS, "weiper": AUROCS["knn"]})], tmp_path)
    assert "tuned on OoD data" in rows_of(page, "network_cifar_10")["WeiPer+KLD"]["Remark"]


def test_sets_that_are_missing_are_named(page: Path) -> None:
    text = (page.parent / "tables" / "network_cifar_10.md").read_text()
    assert "Near: cifar100, tinyimagenet." in text
    assert "Far: svhn, places365; not measured: mnist, textures. Groups by OpenOOD v1.5." in text
    assert "compare the order, not the numbers" in text


def test_a_detector_without_all_sets_has_no_average_and_takes_nothing_from_the_others(tmp_path: Path) -> None:
    found = rows_of(written([result({**AUROCS, "vim": (0.99,)})], tmp_path), "network_cifar_10")
    assert found["ViM"]["As fitted ↑"] == ""
    assert float(found["Energy"]["As fitted ↑"]) == pytest.approx(0.7)


def test_groups_that_nobody_has_defined_are_left_out(tmp_path: Path) -> None:
    page = written([result(in_set="mine")], tmp_path)
    assert "Near ↑" not in rows_of(page, "network_mine")["KNN"]


def test_several_networks_have_a_mean_where_all_have_a_number(tmp_path: Path) -> None:
    second = result({"energy": AUROCS["knn"], "norm_scaling": (1.0,) * 5}, "cifar100")
    found = rows_of(written([result(), second], tmp_path), "overview")
    assert [float(found["Energy"][one]) for one in ("Mean ↑", "CIFAR-10 ↑", "CIFAR-100 ↑")] == pytest.approx(
        [0.71, 0.7, 0.72]
    )
    assert (found["KNN"]["Mean ↑"], found["KNN"]["CIFAR-100 ↑"]) == ("", "")
    assert float(found["Norm-Scaling"]["Mean ↑"]) == pytest.approx((0.8 + 0.9) / 2), "in streams"


def test_it_says_where_the_default_is_behind(page: Path) -> None:
    rows = list(csv.DictReader((page.parent / "tables" / "lead.csv").read_text().splitlines()))
    verdicts = {row["Stream"]: row["The default is"] for row in rows if row["Network"] == "CIFAR-10"}
    assert verdicts == dict.fromkeys(("50 % OoD", "10 % OoD", "2 % OoD"), "level") | {
        "Bursts": "first",
        "One class 80 %": "first",
    }
    worse = result({**AUROCS, "default": (0.89,) * 5})
    other = written([worse], page.parent / "other").parent / "tables" / "lead.csv"
    rows = list(csv.DictReader(other.read_text().splitlines()))
    assert (rows[0]["The default is"], rows[0]["First"]) == ("behind", "Norm-Scaling")


# -- the page in a real browser ---------------------------------------------------------------------------------

STATIC, STREAMED = "#table-network_cifar_10-0", "#table-network_cifar_10-1"


@pytest.fixture(scope="module")
def address(page: Path) -> str:
    return page.resolve().as_uri()


def first_column(page: Any, table: str = STATIC) -> list[str]:
    found: list[str] = page.locator(f"{table} tbody tr:visible > :first-child").all_inner_texts()
    return found


def test_a_click_sorts_and_dashes_stay_last(open_page: Any) -> None:
    page = open_page()
    assert first_column(page)[-1] == "ODIN"
    near = page.locator(f"{STATIC} thead th", has_text="Near ↑").locator("button")
    near.click()
    assert first_column(page) == ["KNN", "Energy", "ODIN"]
    near.click()
    assert first_column(page) == ["Energy", "KNN", "ODIN"]


def test_the_filter_shows_what_fits_and_everything_again(open_page: Any) -> None:
    page = open_page()
    assert page.locator("output").inner_text() == "10 rows"
    page.locator("input[name=words]").fill("knn")
    assert first_column(page) == ["KNN"]
    assert page.locator("output").inner_text() == "2 of 10 rows"
    assert not page.locator(STREAMED).is_visible()
    page.locator("button[type=reset]").click()
    page.get_by_text("10 rows", exact=True).wait_for()  # the form is empty only after the click
    assert len(first_column(page)) == 3
    page.locator("select[name=statistics]").select_option("streamed")
    assert not page.locator(STATIC).is_visible()
    assert first_column(page, STREAMED) == ["Default", "Norm-Scaling"]
    page.locator("button[type=reset]").click()
    page.locator("select[name=reads]").select_option("features")
    assert first_column(page) == ["KNN"]
    page.locator("select[name=network]").select_option("CIFAR-100")
    assert not page.locator("#network-cifar-10").is_visible()
    assert first_column(page, "#table-network_cifar_100-0") == ["KNN"]
    page.locator("input[name=words]").fill("nothing of this name")
    assert page.locator("output").inner_text() == "0 of 10 rows"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits(open_page: Any, scheme: str) -> None:
    for width in (1300, 390):
        page = open_page(width, scheme)
        page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") == width
