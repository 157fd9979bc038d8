"""One report over several runs: the same tables from what is recorded, and networks of one's own as seeds."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from statistics import fmean, pstdev

import pytest

import normscale as ns
from bench.report.doctored_run import doctored_run
from bench.report.small_run import make_run
from normscale.bench.experiments.run_folder import RunFolder, read_results
from normscale.bench.paper.additions import paper_additions
from normscale.bench.paper.published import paper_value
from normscale.bench.report.own_outputs import report_on
from normscale.bench.report.runs import ReportedRun, gaps, read_runs
from normscale.bench.report.table import ReportTable, Value
from normscale.bench.report.tables import averages_table, comparison_table, expanded_table, fitted_on
from normscale.bench.report.writing import report
from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import ModelOutputs

OOD = {"textures": "photo_patches", "uniform": "uniform_noise", "own set": "gaussian_noise"}
METHODS = ("msp", "multi_threshold", "energy", "norm_scaling", "norm_scaling_frozen")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs with different numbers of networks; read only."""
    place = Path(tmp_path_factory.mktemp("runs"))
    first = make_run(
        place / "cifar100", seeds=(0, 1), sets=OOD, methods=METHODS, data="cifar100", name="cifar100-small"
    )
    second = make_run(place / "cifar10", seeds=(0,), sets=OOD, methods=METHODS, missing={"lsun": "no mirror answered"})
    for run in (first, second):
        for seed in run.plan.seeds:  # results.jsonl adds up the seconds of epochs
            log = json.loads(run.network(seed).result.read_text())
            log["log"] = [{**line, "seconds": 1.0} for line in log["log"]]
            run.network(seed).result.write_text(json.dumps(log))
        run.write_results()
        report(run.path, figures=False, resamples=30)
    return [first.path, second.path]


def with_paper(folders: list[Path]) -> list[ReportedRun]:
    return read_runs(folders, paper_additions(), resamples=30)


def recorded(folder: Path, target: Path) -> Path:
    """What is committed of a run: no cells, no networks."""
    target.mkdir()
    for name in ("settings.json", "results.jsonl", "comparisons.json"):
        shutil.copyfile(folder / name, target / name)
    return target


def row_of(table: ReportTable, section: str, first: str) -> dict[str, Value]:
    (found,) = [one for one in table.sections if one.title.startswith(section)]
    (row,) = [row for row in found.rows if row[0] == first]
    return dict(zip([column.title for column in table.columns], row, strict=True))


def slow_mean(folder: Path, method: str, metric: str, sets: tuple[str, ...]) -> float:
    """From the lines of results.jsonl, by hand."""
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return fmean(r["metrics"][metric] for r in rows if r["ood_set"] in sets and r["method"] == method)


def test_averages_of_all_runs_are_best_first_with_streamed_methods_apart(folders: list[Path]) -> None:
    runs = with_paper(folders)
    table = averages_table(runs)
    assert [section.title for section in table.sections] == ["Static", "Streamed", "Ranked per predicted class"]
    means = [row[1] for row in table.sections[0].rows]
    assert means == sorted(means, key=lambda one: -float(one or 0.0))
    energy = row_of(table, "Static", "Energy")
    for folder, title in zip(folders, ("CIFAR-100", "CIFAR-10"), strict=True):
        assert energy[title] == pytest.approx(slow_mean(folder, "energy", "auroc", tuple(OOD)))
    assert energy["Mean"] == pytest.approx(fmean([float(energy[one] or 0) for one in ("CIFAR-10", "CIFAR-100")]))
    assert [row[0] for row in table.sections[1].rows] == ["Norm-Scaling"]


def test_averages_stand_beside_the_papers_over_the_same_sets(folders: list[Path]) -> None:
    one = with_paper(folders)[0]
    table = expanded_table(one, "expanded")
    assert table is not None
    titles = [column.title for column in table.columns]
    (found,) = [row for row in table.sections[0].rows if row[0] == "Norm-Scaling"]
    row = dict(zip(titles, found, strict=True))
    shared = ("textures", "uniform")
    assert one.shared == shared
    assert row["Ours"] == pytest.approx(slow_mean(folders[0], "norm_scaling", "auroc", shared))
    printed = [paper_value("cifar100", name, "norm_scaling", "auroc") for name in shared]
    assert row["Paper"] == pytest.approx(fmean(value.mean for value in printed if value is not None))


def test_the_same_tables_come_from_what_is_recorded(folders: list[Path], tmp_path: Path) -> None:
    kept = [recorded(folder, tmp_path / folder.name) for folder in folders]
    additions = paper_additions()
    made = [report(many, tmp_path / name, figures=False, resamples=30, additions=additions)
            for name, many in (("a", folders), ("b", kept))]  # fmt: skip
    for path in sorted((made[0].parent / "tables").iterdir()):
        if path.stem == "ood_sets_cifar_10":  # why a set is missing stands in the folder of the network
            continue
        assert path.read_text() == (made[1].parent / "tables" / path.name).read_text(), path.name


def test_what_is_recorded_of_one_run_has_the_opening_picture_alone(folders: list[Path], tmp_path: Path) -> None:
    page = report(recorded(folders[1], tmp_path / "kept"))
    assert {path.name for path in (page.parent / "figures").iterdir()} == {"ranking.png", "ranking.svg"}


def test_without_scores_and_comparisons_the_gap_is_said(folders: list[Path], tmp_path: Path) -> None:
    kept = recorded(folders[0], tmp_path / "kept")
    (kept / "comparisons.json").unlink()
    (one,) = read_runs([kept])
    assert one.resampled is None
    assert any("its scores are not there, and no comparison of them was recorded" in text for text in gaps(one))


def test_files_and_page(folders: list[Path], tmp_path: Path) -> None:
    page = report(folders, tmp_path / "joint", resamples=30, additions=paper_additions())
    assert page == tmp_path / "joint" / "report.html"
    text = page.read_text()
    for words in ("CIFAR-100", "Norm-Scaling", "Beside the paper", "What the paper claims", "no mirror answered"):
        assert words in text, words
    names = {path.name for path in (page.parent / "figures").iterdir()}
    drawn = ("ranking_cifar_10", "ranking_cifar_100", "ece")
    assert names == {f"{one}.{suffix}" for one in drawn for suffix in ("png", "svg")}
    assert "on every in-distribution set, one network of each" in text
    rows = list(csv.DictReader((page.parent / "tables" / "averages.csv").read_text().splitlines()))
    assert {row["statistics"] for row in rows} == {"Static", "Streamed", "Ranked per predicted class"}


def test_two_runs_on_one_set_stand_side_by_side_and_the_mean_counts_the_first(
    folders: list[Path], tmp_path: Path
) -> None:
    again = make_run(tmp_path / "again", seeds=(0,), sets=OOD, methods=METHODS, name="cifar10-wide")
    table = averages_table(with_paper([folders[1], again.path, folders[0]]))
    titles = [column.title for column in table.columns]
    assert titles == ["Method", "Mean", "CIFAR-10 (cifar10-small)", "CIFAR-10 (cifar10-wide)", "CIFAR-100"]
    row = row_of(table, "Static", "Energy")
    assert row["Mean"] == pytest.approx(fmean([float(row[titles[2]] or 0), float(row["CIFAR-100"] or 0)]))
    assert "Mean: without CIFAR-10 (cifar10-wide)." in table.notes


SAMPLE = ns.load_sample()


def own_network(folder: Path, shift: float) -> Path:
    """A stranger's network: outputs of their own, measured by `eval --report`."""
    test = ModelOutputs(SAMPLE.test.logits * shift, labels=SAMPLE.test.labels)
    ood = {name: ModelOutputs(SAMPLE.ood[name].logits) for name in ("unseen_digits", "uniform_noise")}
    from normscale.bench.experiments.comparison import compare_each

    kept = list(compare_each(test, ood, train=SAMPLE.train, detectors=["msp", "energy", "norm_scaling"]))
    report_on(folder, kept, test, ood, id_name="fashion", figures=False, resamples=20)
    return folder


def test_networks_of_ones_own_are_seeds_with_a_spread(tmp_path: Path) -> None:
    folders = [own_network(tmp_path / f"net{number}", shift) for number, shift in enumerate((1.0, 0.9, 1.2))]
    (one,) = read_runs(folders, as_seeds=True, resamples=20)
    assert one.board.seeds == [0, 1, 2]
    single = [[one for one in RunFolder.open(folder).cells() if one.method == "energy"] for folder in folders]
    means = [fmean(cell.auroc for cell in cells) for cells in single]
    row = row_of(comparison_table(one, "comparison"), "Static", "Energy")
    assert row["AUROC ↑"] == pytest.approx(fmean(means))
    assert row["± over seeds"] == pytest.approx(pstdev(means))
    assert one.resampled is not None
    assert {found.n_networks for found in one.resampled.comparisons} == {3}
    page = ns.report(folders, tmp_path / "seeds", as_seeds=True, resamples=20, figures=False)
    assert "± over seeds" in page.read_text()


def test_networks_on_other_rows_are_no_seeds(tmp_path: Path) -> None:
    folder, other = doctored_run(tmp_path / "one").path, doctored_run(tmp_path / "two").path
    for path in (other / "cells").rglob("*.safetensors"):
        path.unlink()
    text = (
        (other / "results.jsonl")
        .read_text()
        .replace('"n_ood":200', '"n_ood":300')
        .replace('"n_ood": 200', '"n_ood": 300')
    )
    (other / "results.jsonl").write_text(text)
    with pytest.raises(InvalidInput, match=r"measured on other rows .* without --as-seeds"):
        read_runs([folder, other], as_seeds=True, resamples=1)


def test_a_strangers_runs_never_hear_of_the_paper(tmp_path: Path) -> None:
    folders = [own_network(tmp_path / f"net{number}", shift) for number, shift in enumerate((1.0, 0.9))]
    page = report(folders, tmp_path / "joint", figures=False, resamples=20, additions=paper_additions())
    body = page.read_text().partition("</style>")[2]
    assert "paper" not in body.lower()
    for path in (page.parent / "tables").iterdir():
        assert "paper" not in path.read_text().lower(), path.name


def test_every_run_is_about_its_own_subject(folders: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folders[1], copy)
    (copy / "comparisons.json").unlink()
    document = json.loads((copy / "settings.json").read_text())
    document["plan"]["subject"] = "energy"
    (copy / "settings.json").write_text(json.dumps(document))
    text = report([folders[0], copy], tmp_path / "joint", figures=False, resamples=20).read_text()
    assert "Is Norm-Scaling better?" in text
    assert "Is Energy better?" in text


def test_what_cannot_be_read_is_refused(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="named twice"):
        read_runs([folders[0], folders[0]])
    with pytest.raises(InvalidInput, match="runs is empty"):
        report([])
    kept = recorded(folders[0], tmp_path / "kept")
    (kept / "comparisons.json").write_text('{"subject": 1}')
    with pytest.raises(FileFormatError, match="is not what this version writes"):
        read_runs([kept])
    (kept / "results.jsonl").write_text("{}\n")
    with pytest.raises(FileFormatError, match="line 1 is not a line of results"):
        read_runs([kept])
    (kept / "results.jsonl").unlink()
    with pytest.raises(InvalidInput, match="neither finished cells nor results"):
        read_runs([kept])


def test_folders_of_one_name_have_distinct_titles(tmp_path: Path) -> None:
    runs = [doctored_run(tmp_path / place / "mine").path for place in ("a", "b")]
    titles = [one.title for one in read_runs(runs, resamples=1)]
    assert len(set(titles)) == 2


def test_results_are_read_back_as_they_were(folders: list[Path]) -> None:
    run = RunFolder.open(folders[0])
    kept = read_results(run.results)
    cells = run.cells()
    assert kept.cells == cells


def test_what_methods_are_fitted_on() -> None:
    assert fitted_on("energy") == "nothing"
    assert fitted_on("odin") == "the step epsilon on in-distribution validation pictures"
    assert fitted_on("oodd_frozen") == "training outputs", "fit reads logits, too, and no attacked inputs"
    assert fitted_on("mahalanobis:weights=attacks") == "labelled training outputs and attacks on the training inputs"
    assert fitted_on("my method") == ""
