"""One page over several runs: the right numbers from the right cells, and nothing missing in silence."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest

from normscale.errors import FileFormatError, InvalidInput
from normscale.experiments.results_file import read_results
from normscale.experiments.run_folder import RunFolder
from normscale.paper.joint_additions import joint_additions, printed_mean
from normscale.paper.published import ACCURACIES, paper_value
from normscale.report.better_than import compare_all
from normscale.report.comparison_record import ComparisonRecord
from normscale.report.fitted_on import fitted_on, fitted_on_note
from normscale.report.joint_report import read_joint, write_joint_report
from normscale.report.leaderboard_runs import read_leaderboard_runs
from normscale.report.ood_groups import LeaderboardReference
from normscale.report.scoreboard import Scoreboard
from normscale.report.table import ReportTable, Value
from normscale.report.writing import write_report
from report.doctored_run import doctored_run
from report.small_run import SETS, make_run

OOD = {"textures": "photo_patches", "uniform": "uniform_noise", "own set": "gaussian_noise"}
METHODS = ("msp", "multi_threshold", "energy", "norm_scaling", "norm_scaling_frozen")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs with different numbers of networks; read only."""
    place = Path(tmp_path_factory.mktemp("runs"))
    first = make_run(place / "cifar100", seeds=(0, 1), sets=OOD, methods=METHODS, data="cifar100")
    second = make_run(place / "cifar10", seeds=(0,), sets=OOD, methods=METHODS, missing={"lsun": "no mirror answered"})
    for run in (first, second):
        for seed in run.plan.seeds:  # results.jsonl adds up the seconds of epochs
            log = json.loads(run.network(seed).result.read_text())
            log["log"] = [{**line, "seconds": 1.0} for line in log["log"]]
            run.network(seed).result.write_text(json.dumps(log))
        run.write_results()
        write_report(run.path, figures=False, resamples=30)
    return [first.path, second.path]


def recorded(folder: Path, target: Path) -> Path:
    """What is committed of a run: no cells, no networks."""
    target.mkdir()
    for name in ("settings.json", "results.jsonl", "comparisons.json"):
        shutil.copyfile(folder / name, target / name)
    return target


def row_of(table: ReportTable, section: str, *first: str) -> dict[str, Value]:
    (found,) = [one for one in table.sections if one.title.startswith(section)]
    (row,) = [row for row in found.rows if row[: len(first)] == first]
    return dict(zip([column.title for column in table.columns], row, strict=True))


def slow_mean(folder: Path, method: str, metric: str, sets: tuple[str, ...]) -> float:
    """From the lines of results.jsonl, by hand."""
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    wanted = [r["value"] for r in rows if r["method"] == method and r["metric"] == metric and r["ood_set"] in sets]
    return fmean(wanted)


def test_averages_stand_beside_the_papers_over_the_same_sets(folders: list[Path]) -> None:
    joint = read_joint(folders, joint_additions())
    assert [one.title for one in joint.runs] == ["CIFAR-10", "CIFAR-100"]  # in the paper's order
    shared = ("textures", "uniform")
    row = row_of(joint.tables["averages"], "AUROC", "Norm-Scaling")
    ours, theirs = [], []
    for title, in_set, folder in (("CIFAR-100", "cifar100", folders[0]), ("CIFAR-10", "cifar10", folders[1])):
        ours.append(slow_mean(folder, "norm_scaling", "auroc", shared))
        theirs.append(fmean(paper_value(in_set, name, "norm_scaling", "auroc").mean for name in shared))  # type: ignore[union-attr]
        assert row[f"{title}, ours"] == pytest.approx(ours[-1], abs=1e-12)
        assert row[f"{title}, paper"] == pytest.approx(theirs[-1], abs=1e-12)
    assert row["Mean, ours"] == pytest.approx(fmean(ours), abs=1e-12)
    assert row["Mean, paper"] == pytest.approx(fmean(theirs), abs=1e-12)
    assert row["Mean as the paper prints it"] == printed_mean("auroc", "norm_scaling") == 0.8860
    frozen = row_of(joint.tables["averages"], "FPR95", "Norm-Scaling, frozen")
    assert frozen["CIFAR-10, paper"] is frozen["Mean, paper"] is frozen["Mean as the paper prints it"] is None


def test_every_ood_set_ours_and_theirs_also_one_that_was_not_measured(folders: list[Path]) -> None:
    table = read_joint(folders, joint_additions()).tables["per_set"]
    ours = row_of(table, "CIFAR-100: AUROC", "textures", "ours")
    assert ours["Energy"] == pytest.approx(slow_mean(folders[0], "energy", "auroc", ("textures",)), abs=1e-12)
    assert row_of(table, "CIFAR-100: AUROC", "textures", "paper")["Energy"] == 0.7045
    assert row_of(table, "CIFAR-10: AUROC", "lsun", "paper")["Norm-Scaling"] == 0.9312
    section = next(one for one in table.sections if one.title.startswith("CIFAR-10: AUROC"))
    assert not [row for row in section.rows if row[:2] == ("lsun", "ours")]
    assert [row[1] for row in section.rows if row[0] == "own set"] == ["ours"]
    assert any("lsun (no mirror answered)" in note for note in table.notes)


def test_the_same_page_comes_from_what_is_recorded(folders: list[Path], tmp_path: Path) -> None:
    kept = [recorded(folder, tmp_path / folder.name) for folder in folders]
    whole, small = (read_joint(each, joint_additions(), resamples=30) for each in (folders, kept))
    for name in ("averages", "thresholds", "accuracy", "better_than", "claims", "methods"):
        assert small.tables[name] == whole.tables[name], name
    assert "Missing on CIFAR-10: lsun (no mirror answered)." in whole.sentences
    assert small.sentences == [text.replace(" (no mirror answered)", "") for text in whole.sentences]
    assert small.runs[0].comparisons


def test_comparisons_are_those_of_the_scores(folders: list[Path]) -> None:
    run = RunFolder.open(folders[0])
    board = Scoreboard.of(run)
    made = compare_all(run, board, resamples=30)
    kept = ComparisonRecord.load(run)
    assert kept is not None
    assert list(kept.comparisons) == made
    assert (kept.subject, kept.resamples, kept.level) == ("norm_scaling", 30, 0.95)
    assert kept.fits(board)
    cells = [cell for cell in run.cells() if cell.seed == 0]
    assert not kept.fits(Scoreboard(cells, "norm_scaling"))
    assert not kept._replace(comparisons=[made[0]._replace(auroc=made[0].auroc + 1e-6), *made[1:]]).fits(board)


def test_without_scores_and_comparisons_the_page_says_so(folders: list[Path], tmp_path: Path) -> None:
    kept = [recorded(folder, tmp_path / folder.name) for folder in folders]
    (kept[0] / "comparisons.json").unlink()
    lines = (kept[1] / "results.jsonl").read_text().splitlines()
    (kept[1] / "results.jsonl").write_text("\n".join(line for line in lines if '"energy"' not in line) + "\n")
    joint = read_joint(kept, joint_additions())
    assert "better_than" not in joint.tables
    told = " ".join(joint.sentences)
    assert "No comparison row by row for CIFAR-100: its scores are not there, and no comparison of them was" in told
    assert "No comparison row by row for CIFAR-10: its scores are not there, and the comparisons kept are of" in told
    assert "The run on CIFAR-10 is not finished" in told
    assert row_of(joint.tables["averages"], "AUROC", "Energy")["Mean, ours"] is None  # not a mean over fewer sets


def test_missing_sets_and_unequal_numbers_of_networks_are_said(folders: list[Path]) -> None:
    joint = read_joint(folders, joint_additions())
    told = " ".join(joint.sentences)
    assert "Missing: SVHN, TinyImageNet. No run of them was given." in told
    assert "The runs have different numbers of networks: CIFAR-10 1, CIFAR-100 2." in told
    assert "were not measured" in told
    accuracy = row_of(joint.tables["accuracy"], "", "CIFAR-100")
    assert (accuracy["Networks"], accuracy["Paper"]) == (2, ACCURACIES["cifar100"].mean)
    for name in ("averages", "thresholds", "per_set"):
        assert any(note.startswith("Fitted and tuned on: ") for note in joint.tables[name].notes)


def test_files_and_page(folders: list[Path], tmp_path: Path) -> None:
    page = write_joint_report(folders, tmp_path / "out", joint_additions())
    assert page == tmp_path / "out" / "report.html"
    text = page.read_text()
    for words in ("Mean as the paper prints it", "9.78 % improvement in AUROC", "How to repeat it", str(folders[0])):
        assert words in text
    assert "http" not in text.replace("http://www.w3.org", "")
    names = {file.name for file in (page.parent / "tables").iterdir()}
    tables = ("averages", "thresholds", "claims", "accuracy", "per_set", "better_than", "methods", "runs")
    assert names == {f"{table}.{suffix}" for table in tables for suffix in ("md", "tex", "csv")}
    with open(page.parent / "tables" / "averages.csv", newline="") as file:
        row = next(one for one in csv.DictReader(file) if one["Method"] == "MSP")
    assert float(row["CIFAR-10, ours"]) == slow_mean(folders[1], "msp", "auroc", ("textures", "uniform"))
    assert write_joint_report(folders, tmp_path / "mine.html", joint_additions()) == tmp_path / "mine.html"
    assert write_joint_report(folders, None, joint_additions()) == folders[0].parent.resolve() / "joint" / "report.html"


def test_two_runs_on_one_set_stand_side_by_side(folders: list[Path], tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    shutil.copytree(folders[1], wide)
    joint = read_joint([*folders, wide], joint_additions())
    titles = [one.title for one in joint.runs]
    assert titles == ["CIFAR-10 (cifar10)", "CIFAR-10 (wide)", "CIFAR-100"]
    row = row_of(joint.tables["averages"], "AUROC", "MSP")
    assert row["Mean, ours"] == pytest.approx(fmean([row["CIFAR-10 (cifar10), ours"], row["CIFAR-100, ours"]]))  # type: ignore[list-item]


def test_what_the_mean_leaves_out_is_said(tmp_path: Path) -> None:
    numbers = {"small": ("svhn", 0.5), "wide": ("svhn", 0.9), "other": ("cifar10", 0.7)}
    runs = [
        doctored_run(tmp_path / name, {"msp": {"x": (auroc,)}}, data=data).path
        for name, (data, auroc) in numbers.items()
    ]
    table = read_joint(runs).tables["averages"]
    assert row_of(table, "AUROC", "MSP")["Mean"] == pytest.approx((0.5 + 0.7) / 2)
    assert "Mean: of the first run on each in-distribution set; without svhn (wide)." in table.notes
    for fewer in (runs[:2], runs[1:]):
        assert not any(note.startswith("Mean:") for note in read_joint(fewer).tables["averages"].notes)


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    seeds = {"u": (0.8,), "v": (0.8, 0.9)}
    runs = [doctored_run(tmp_path / name / "run", {"msp": {"x": values}}).path for name, values in seeds.items()]
    joint = read_joint(runs)
    titles = [f"cifar10 ({folder})" for folder in runs]
    assert [column.title for column in joint.tables["averages"].columns] == ["Method", *titles]
    assert any(f"different numbers of networks: {titles[0]} 1, {titles[1]} 2." in text for text in joint.sentences)
    board = read_leaderboard_runs(runs, LeaderboardReference())
    assert [one.title for one in board] == [f"cifar10 (run) ({folder})" for folder in runs]


def test_a_method_that_failed_is_not_waited_for(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", seeds=(0,), methods=("msp", "energy"), leave_out=[(0, one, "energy") for one in SETS]
    )
    run.save_failures(0, {"energy": "it reads what is not there"})
    told = read_joint([run.path]).sentences
    assert "cifar10: Energy could not take part: it reads what is not there." in told
    assert "not finished" not in " ".join(told)


def test_every_run_is_about_its_own_subject(folders: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folders[1], other)
    settings = json.loads((other / "settings.json").read_text())
    settings["plan"]["subject"] = "energy"
    (other / "settings.json").write_text(json.dumps(settings))
    page = write_joint_report([folders[0], other], tmp_path / "out", resamples=20)
    table = read_joint([folders[0], other], resamples=20).tables["better_than"]
    titles = [column.title for column in table.columns]
    assert (table.title, titles[1], titles[-1]) == ("Is the subject of each run better?", "Subject", "Subject is")
    numbers = {"cifar100, Norm-Scaling": (folders[0], "norm_scaling"), "cifar10, Energy": (other, "energy")}
    for section, (folder, subject) in numbers.items():
        row = row_of(table, f"{section}: uniform", "MSP")
        assert row["Subject"] == pytest.approx(slow_mean(folder, subject, "auroc", ("uniform",)))
        assert row["Rival"] == pytest.approx(slow_mean(folder, "msp", "auroc", ("uniform",)))
    assert 'class="subject"' not in page.read_text()
    same = write_joint_report(folders, tmp_path / "same", resamples=20)
    assert 'class="subject"' in same.read_text()
    assert "Is Norm-Scaling better?" in same.read_text()


def test_what_cannot_be_read_is_refused(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="named twice"):
        read_joint([folders[0], folders[0]])
    kept = recorded(folders[0], tmp_path / "kept")
    (kept / "results.jsonl").unlink()
    with pytest.raises(InvalidInput, match="neither finished cells nor results"):
        read_joint([folders[1], kept])
    (kept / "results.jsonl").write_text('{"seed": 0}\n')
    with pytest.raises(FileFormatError, match=r"results.jsonl line 1 is not a line of results"):
        read_joint([folders[1], kept])
    kept = recorded(folders[0], tmp_path / "other")
    (kept / "comparisons.json").write_text('{"subject": "norm_scaling"}')
    with pytest.raises(FileFormatError, match=r"comparisons.json is not what this version writes"):
        read_joint([folders[1], kept])


def test_a_run_without_published_numbers(tmp_path: Path, folders: list[Path]) -> None:
    joint = read_joint(folders)
    table = joint.tables["averages"]
    assert [column.title for column in table.columns] == ["Method", "cifar100", "cifar10", "Mean"]
    every = ("textures", "uniform", "own set")
    assert row_of(table, "AUROC", "MSP")["cifar10"] == pytest.approx(slow_mean(folders[1], "msp", "auroc", every))
    best = {place: table.sections[0].rows[i][place] for i, place in table.sections[0].best}
    for place in (1, 2, 3):
        ranked = [row[place] for row in table.sections[0].rows if row[0] != "Multi-Threshold"]
        assert best[place] == max(ranked)  # type: ignore[type-var]


def test_results_are_read_back_as_they_were(folders: list[Path]) -> None:
    run = RunFolder.open(folders[0])
    found = read_results(run.results)
    assert [cell._replace(detector="", title="") for cell in run.cells()] == sorted(
        found.cells, key=lambda cell: [run.plan.seeds.index(cell.seed or 0), [*run.plan.ood].index(cell.ood_set)]
    )
    assert found.accuracies == {seed: run.training(seed)["test_accuracy"] for seed in run.plan.seeds}
    assert read_results(folders[0] / "none.jsonl").cells == []


def test_what_methods_are_fitted_on() -> None:
    assert fitted_on("energy") == "nothing"
    assert fitted_on("odin") == "the step epsilon on in-distribution validation pictures"
    assert fitted_on("mahalanobis:weights=attacks") == "labelled training outputs and attacks on the training inputs"
    assert fitted_on("temperature_scaling").startswith("labelled validation outputs")
    assert fitted_on("norm_scaling_frozen") == "training outputs"
    assert "test stream" in fitted_on("robust_norm_scaling")
    assert fitted_on("nobody's") == ""
    assert fitted_on_note([], ["energy", "msp"]).startswith("Fitted and tuned on: nothing (Energy / MSP). No parameter")
