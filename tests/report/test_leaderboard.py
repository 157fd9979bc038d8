"""The leaderboard: averages by hand, what is missing is said, and a page that sorts and filters in a real browser."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

from normscale.errors import InvalidInput
from normscale.paper.openood import openood
from normscale.report.leaderboard import write_leaderboard
from normscale.report.leaderboard_runs import LeaderboardEntry, read_leaderboard_runs
from normscale.report.ood_groups import LeaderboardReference
from report.doctored_run import AUROCS, doctored_run

WHY = "odin reads perturbed_logits, which nobody has."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return doctored_run(Path(tmp_path_factory.mktemp("runs")) / "mine", failures={"odin": WHY}).path


def entries(*folders: Path, number: int = 0) -> dict[str, LeaderboardEntry]:
    return {entry.method: entry for entry in read_leaderboard_runs(folders, openood())[number].entries}


def test_averages_by_hand(run: Path) -> None:
    found = entries(run)
    energy, knn = found["energy"].averages, found["knn"].averages
    assert energy["near", "auroc"] == pytest.approx((0.8 + 0.6 + 0.6 + 0.4) / 4)  # cifar100, tinyimagenet; two seeds
    assert energy["far", "auroc"] == pytest.approx((0.9 + 0.7 + 0.7 + 0.5) / 4)  # svhn, places365
    assert energy["all", "auroc"] == pytest.approx((0.8 + 0.6 + 0.6 + 0.4 + 0.9 + 0.7 + 0.7 + 0.5 + 1.0 + 0.8) / 10)
    assert knn["near", "fpr95_out"] == pytest.approx(1 - 0.8)
    assert knn["far", "fpr95_out"] == pytest.approx(1 - 0.7)
    assert knn["all", "fpr95_out"] == pytest.approx(1 - 0.72)
    assert found["knn"].published == (0.9064, 0.9296)
    assert found["norm_scaling"].published is None
    assert (found["knn"].setting, found["norm_scaling"].setting) == ("frozen", "stream")
    assert (found["knn"].reads, found["knn"].parameters) == ("features", "k 50, bank 0")


def test_a_detector_that_failed_is_a_dash_with_its_sentence(run: Path, tmp_path: Path) -> None:
    failed = entries(run)["odin"]
    assert set(failed.averages.values()) == {None}
    assert failed.why_not == WHY
    write_leaderboard([run], tmp_path, openood())
    (line,) = [one for one in (tmp_path / "leaderboard.md").read_text().splitlines() if one.startswith("| ODIN")]
    assert line.split(" | ")[1:7] == ["–"] * 4 + ["0.8287", "0.8796"]
    assert "not measured: odin reads" in line


def test_sets_that_are_missing_are_named(run: Path, tmp_path: Path) -> None:
    write_leaderboard([run], tmp_path, openood())
    text = (tmp_path / "leaderboard.md").read_text()
    assert "Near: cifar100, tinyimagenet." in text
    assert "Far: svhn, places365; not measured here: MNIST, Textures. Groups as defined by OpenOOD v1.5." in text
    assert "2 networks" in text
    assert "compare the order, not the numbers" in text


def test_a_detector_without_all_cells_has_no_average_and_takes_nothing_from_the_others(tmp_path: Path) -> None:
    partial = {**AUROCS, "vim": {"svhn": (0.99, 0.99)}}
    found = entries(doctored_run(tmp_path / "partial", partial).path)
    assert set(found["vim"].averages.values()) == {None}
    assert "not measured on every OoD set" in found["vim"].why_not
    assert found["energy"].averages["all", "auroc"] == pytest.approx(0.7)


def test_groups_that_nobody_has_defined_are_empty(tmp_path: Path) -> None:
    folder = doctored_run(tmp_path / "other", data="svhn").path
    found = read_leaderboard_runs([folder], openood())[0]
    assert (found.sets["near"], found.sets["far"]) == ((), ("cifar100", "tinyimagenet", "places365"))
    assert found.entries[0].averages["near", "auroc"] is None
    bare = read_leaderboard_runs([folder], LeaderboardReference())[0]
    assert (bare.sets["near"], bare.sets["far"], len(bare.sets["all"])) == ((), (), 5)


def test_what_was_kept_of_a_run_is_enough(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "mine"
    kept.mkdir()
    for name in ("settings.json", "results.jsonl", "further.jsonl", "failures.json"):
        shutil.copyfile(run / name, kept / name)
    assert entries(kept) == entries(run)


def test_the_files_say_the_same(run: Path, tmp_path: Path) -> None:
    second = doctored_run(tmp_path / "second", {"energy": AUROCS["knn"], "norm_scaling": AUROCS["energy"]}).path
    page = write_leaderboard([run, second], tmp_path / "out", openood(), remarks=["Half of the rows."])
    rows = list(csv.DictReader((page.parent / "leaderboard.csv").read_text().splitlines()))
    assert len(rows) == 4 + 2
    energy = [float(row["All AUROC"]) for row in rows if row["Method"] == "energy"]
    assert energy == pytest.approx([0.7, 0.72])
    assert [row["Why not measured"] for row in rows if row["Method"] == "odin"] == [WHY]
    per_set = list(csv.DictReader((page.parent / "per_set.csv").read_text().splitlines()))
    assert len(per_set) == 5 * (3 + 2)
    (one,) = [row for row in per_set if (row["Network"], row["Method"], row["OoD set"]) == _key("energy", "gaussian")]
    assert float(one["AUROC"]) == pytest.approx(0.9)
    text = (page.parent / "leaderboard.md").read_text()
    assert "* Half of the rows." in text
    assert "| Energy | 0.7100 | 0.7000 | 0.7200 |" in text
    assert "| KNN | – | **0.7200** | – |" in text  # the second run has none, so there is no mean
    assert "Ranked per predicted class" not in text


def test_methods_that_differ_in_a_list_alone_are_told_apart(tmp_path: Path) -> None:
    numbers = {"mahalanobis:layers=stage1,features": 0.9, "mahalanobis:layers=stage2,features": 0.6, "msp": 0.7}
    aurocs = {method: {"svhn": (auroc,)} for method, auroc in numbers.items()}
    runs = [doctored_run(tmp_path / name, aurocs).path for name in ("one", "two")]
    text = (write_leaderboard(runs, tmp_path / "out").parent / "leaderboard.md").read_text()
    best = "Mahalanobis, layers stage1 + features"
    for where in ("Mean of the 2 networks", "cifar10 (one)"):
        assert f"{where}: {best} leads the 3 static detectors (AUROC" in text
    assert f"| {best} | **0.9000** | **0.9000** | **0.9000** |" in text
    assert "| Mahalanobis, layers stage2 + features | 0.6000 | 0.6000 | 0.6000 |" in text


def _key(method: str, ood_set: str) -> tuple[str, str, str]:
    return "CIFAR-10 (mine)", method, ood_set


def test_mistakes_are_explained(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="named twice"):
        write_leaderboard([run, run], tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copyfile(run / "settings.json", empty / "settings.json")
    with pytest.raises(InvalidInput, match="neither finished cells nor results"):
        write_leaderboard([empty], tmp_path)


# -- the page in a real browser ---------------------------------------------------------------------------------

STATIC = "#table-run0-0"


@pytest.fixture(scope="module")
def address(run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    other = doctored_run(Path(tmp_path_factory.mktemp("runs")) / "other", data="cifar100").path
    return write_leaderboard([run, other], tmp_path_factory.mktemp("page"), openood()).resolve().as_uri()


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
    assert not page.locator("#table-run0-1").is_visible()
    page.locator("button[type=reset]").click()
    page.locator("output", has_text="of").wait_for(state="detached")  # the form is empty only after the click
    assert len(first_column(page)) == 3
    page.locator("select[name=statistics]").select_option("Stream-aware")
    assert not page.locator(STATIC).is_visible()
    assert first_column(page, "#table-run0-1") == ["Norm-Scaling"]
    page.locator("button[type=reset]").click()
    page.locator("select[name=reads]").select_option("features")
    assert first_column(page) == ["KNN"]
    page.locator("select[name=network]").select_option("CIFAR-100 (other)")
    assert not page.locator("#network-0").is_visible()
    assert first_column(page, "#table-run1-0") == ["KNN"]
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
